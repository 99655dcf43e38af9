"""Child processes: started, told, ended, killed with their group, and started again in time."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from scalable_agent_popart.system import supervisor
from scalable_agent_popart.system.supervisor import Child, Restarts
from tests.fakes.programs import is_alive, wait_until

_BEGIN = """
import os, signal, subprocess, sys, time
from scalable_agent_popart.system import supervisor
"""
_FAMILY = f"""{_BEGIN}
program = subprocess.Popen(["sleep", "1000"])
print(program.pid, flush=True)
"""


@contextlib.contextmanager
def _python(code: str, payload: Any = None) -> Iterator[Child]:
    child = Child([sys.executable, "-c", code], payload, output=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()


def _line(child: Child) -> str:
    return child._process.stdout.readline().decode().strip()


def test_child_is_told_what_to_do_and_answers() -> None:
    code = f"{_BEGIN}connection, payload = supervisor.begin()\n"
    code += "connection.sendall(f'no {payload}'.encode())\n"
    code += "sys.exit(3 if os.read(0, 1) == b'' else 4)"
    with _python(code, {"work": 1}) as child:
        assert child.wait() == 3, "programs that it starts read nothing"
        assert child.message == "no {'work': 1}"
        assert child.max_memory_kib > 1000


def test_waiting_ends_with_the_child_or_the_time() -> None:
    with _python("import time; time.sleep(1000)") as child:
        assert child.wait(0.05) is None
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 128 + signal.SIGTERM
        child.send_signal(signal.SIGTERM)  # Nobody is there, and nobody else is meant.


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_child_has_started_ends_with_it(killed: bool) -> None:
    with _python(_FAMILY + "time.sleep(1000)" * killed) as child:
        program = int(_line(child))
        if killed:
            child.kill()
        assert child.wait() == 137 * killed
        wait_until(lambda: not is_alive(program))


def test_children_that_do_not_end_in_time_are_killed() -> None:
    code = "import signal; signal.signal(15, {}); print(1, flush=True); signal.pause()"
    deaf, saving = code.format("signal.SIG_IGN"), code.format("lambda *_: exit(5)")
    with _python(saving) as first, _python(deaf) as second:
        for child in (first, second):
            _line(child)
            child.send_signal(signal.SIGTERM)
        first.wait()
        supervisor.end([second, first], 0.05)
        assert (first.exit_code, second.exit_code) == (5, 137)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_group_ends_with_its_owner_launchers_programs_included(number: int) -> None:
    """Though a launcher has started them, and has died itself."""
    owner = f"{_BEGIN}launcher = [sys.executable, '-c', {_FAMILY!r}]\n"
    owner += "with supervisor.group() as group:\n"
    owner += "    supervisor.Child(launcher, group=group).wait()\n    time.sleep(1000)"
    with _python(owner) as process:
        program = int(_line(process))
        assert is_alive(program)
        os.kill(process.pid, number)
        wait_until(lambda: not is_alive(program))


def test_restarts_come_later_and_later_up_to_a_limit() -> None:
    restarts = Restarts(4, first_pause=10.0)
    healthy = [False, False, False, True, False, False, False, False]
    pauses = [restarts.pause(each) for each in healthy]
    assert pauses == [10.0, 20.0, 40.0, 10.0, 20.0, 40.0, 60.0, None]
    assert restarts.deaths == 5


# What the real engine printed without `zip`, which packs what the map compiler made, shortened.
_NO_ZIP = """/site/compile_map.sh: line 128: zip: command not found
WARNING: Couldn't find image for shader textures/door_placeholder:door_5_9
Traceback (most recent call last):
  File "/code/environment_process.py", line 122, in play
RuntimeError: Failed to compile map.
stack traceback:
\t[C]: in function 'mapFromTextLevel'
"""
_STEPS = "".join(f"step {i} failed\n" for i in range(6))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("a\nb\n\n  c \nd\ne\nf\n", "b c d e f"),
        ("KeyError: 1\nDuring handling\npkg.LuaError: two\n lines\n", "pkg.LuaError: two lines"),
        (
            f"zip: command not found\n{_STEPS}RuntimeError: no map\n",
            "zip: command not found; step 4 failed; step 5 failed; RuntimeError: no map",
        ),
        (
            _NO_ZIP,
            "/site/compile_map.sh: line 128: zip: command not found; "
            "RuntimeError: Failed to compile map.",
        ),
        pytest.param("\n" * 2**18 + "KeyError: 1", "KeyError: 1", id="fast"),
    ],
)
def test_last_words_tell_in_one_line_what_happened_and_why(output: str, words: str) -> None:
    assert supervisor.last_words(output) == words

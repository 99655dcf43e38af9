"""Environments in processes of their own: in step, on their own, lost, and gone for good."""

import fcntl
import functools
import logging
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tree

from environments import EnvironmentLostError, Ready
from scalable_agent_popart.suites import environment_process, process_pool
from scalable_agent_popart.suites.environment_process import ANSWER, REFUSED, MakeEnvironment
from scalable_agent_popart.suites.process_pool import ProcessPool
from tests.fakes import process_environments
from tests.fakes.process_environments import EPISODE_STEPS, OBSERVATION, Counting

_ROOT = Path(__file__).resolve().parents[3]
_DEADLINE_SECONDS = 120

MakePool = Callable[..., ProcessPool]


@pytest.fixture
def make_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePool]:
    """Starts pools whose files are below `tmp_path`."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pools: list[ProcessPool] = []

    def make(*environments: MakeEnvironment) -> ProcessPool:
        names = [f"level_{i}" for i in range(len(environments))]
        task_ids = np.arange(len(environments), dtype=np.int32) % 2
        pools.append(ProcessPool(names, environments, task_ids, OBSERVATION))
        pools[-1].start()
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition did not come about"
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def play(pool: ProcessPool, until: Callable[[Ready], bool], action: int = 5) -> list[Ready]:
    """Gives every environment the action plus its place whenever it is ready."""
    end = time.monotonic() + _DEADLINE_SECONDS
    received = []
    while True:
        assert time.monotonic() < end, "what was waited for did not come about"
        received.append(pool.receive(0.2))
        pool.send(received[-1].ids, (action + received[-1].ids).astype(np.int32))
        if until(received[-1]):
            return received


def steps_of(received: list[Ready], environment: int) -> list[Ready]:
    """What was received of one environment, one by one, without the batch dimension."""
    return [
        Ready(environment, tree.map_structure(lambda a, m=m: a[m], ready.output), ready.fresh[m])
        for ready in received
        for m in np.flatnonzero(ready.ids == environment)
    ]


def num_answers(pool: ProcessPool) -> int:
    """Counts the environments that have answered since the pool last looked."""
    size = fcntl.ioctl(pool._answers, termios.FIONREAD, bytes(4))
    return int.from_bytes(size, sys.byteorder) // ANSWER.itemsize


def has_steps(environment: int, steps: int) -> Callable[[Ready], bool]:
    """Whether an environment has shown so many steps."""

    def reached(ready: Ready) -> bool:
        return bool(
            np.any(ready.output.observation["number"][ready.ids == environment, 0] >= steps)
        )

    return reached


def test_steps_pass_through_in_order(make_pool: MakePool) -> None:
    pool = make_pool(*[Counting] * 3)
    seen: dict[int, int] = dict.fromkeys(range(3), 0)

    def all_have_played(ready: Ready) -> bool:
        for i in ready.ids:
            seen[i] += 1
        return min(seen.values()) > 10

    received = play(pool, all_have_played)
    for ready in received:
        assert ready.ids.tolist() == sorted(set(ready.ids.tolist()))
    for i in range(3):
        for t, (_, output, fresh) in enumerate(steps_of(received, i)):
            place = (t - 1) % EPISODE_STEPS + 1 if t else 0
            ended = place == EPISODE_STEPS
            assert fresh == (t == 0)
            assert (output.reward, output.done) == (place, ended or t == 0)
            assert output.info.episode_step == place
            assert output.info.episode_return == sum(range(place + 1))
            assert output.info.episode_end == ended
            step, action, attempt, _ = output.observation["number"]
            assert (step, action, attempt) == (t, 5 + i if t else -1, 0)
            np.testing.assert_array_equal(output.observation["picture"], np.full((2, 3), t % 256))
    output = received[-1].output
    assert (output.reward.dtype, output.done.dtype) == (np.float32, bool)
    assert output.observation["picture"].dtype == np.uint8
    assert pool.restarts.tolist() == [0, 0, 0]


def test_each_environment_has_a_process_of_its_own(make_pool: MakePool) -> None:
    pool = make_pool(*[Counting] * 3)
    processes = set()

    def all_seen(ready: Ready) -> bool:
        processes.update(ready.output.observation["number"][:, 3].tolist())
        return len(processes) == 3

    play(pool, all_seen)
    assert os.getpid() not in processes
    for process in processes:
        assert os.getsid(process) == process, "or Ctrl-C would reach it"
    for _ in range(2):  # Again is harmless.
        pool.close()
        assert not any(map(is_alive, processes))


def test_one_that_is_slow_to_begin_holds_up_nobody(make_pool: MakePool, tmp_path: Path) -> None:
    file = tmp_path / "may_begin"
    waiting = functools.partial(process_environments.Waiting, file)
    pool = make_pool(waiting, *[Counting] * 2)
    before = play(pool, has_steps(2, 200))
    assert not steps_of(before, 0)
    file.touch()
    after = play(pool, has_steps(0, 20))
    assert steps_of(after, 0)[0].fresh


def test_of_two_one_that_takes_its_time_is_not_waited_for(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_GATHER_SECONDS", 1000.0)
    monkeypatch.setattr(process_pool, "_GRACE_SECONDS", 0.1)
    waiting = functools.partial(process_environments.Waiting, tmp_path / "never")
    pool = make_pool(waiting, Counting)
    pool._turn_began[0] -= process_pool._SLOW_SECONDS
    play(pool, has_steps(1, 50))


def test_receiving_returns_though_nobody_is_ready(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_GRACE_SECONDS", 0.1)
    pool = make_pool(functools.partial(process_environments.Waiting, tmp_path / "never"))
    ids, output, fresh = pool.receive(0.2)
    assert (ids.shape, fresh.shape, output.reward.shape) == ((0,), (0,), (0,))
    assert output.observation["picture"].shape == (0, 2, 3)


def test_who_is_ready_is_told_through_the_kernel_alone(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since memory may show a flag before the frames that were written before it."""
    monkeypatch.setattr(process_pool, "_GRACE_SECONDS", 0.1)
    pool = make_pool(functools.partial(process_environments.Waiting, tmp_path / "never"))
    size = os.fstat(pool._memory).st_size
    os.pwrite(pool._memory, b"\1" * size, 0)
    assert len(pool.receive(0.2).ids) == 0


@pytest.mark.parametrize("kind", [process_environments.Dying, process_environments.Raising])
def test_a_lost_environment_starts_again_and_is_counted(
    make_pool: MakePool, tmp_path: Path, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(functools.partial(kind, 13), Counting)
    with caplog.at_level(logging.WARNING, logger="absl"):
        received = play(pool, lambda ready: pool.restarts[0] == 3)
    own = steps_of(received, 0)
    attempts = [int(output.observation["number"][2]) for _, output, _ in own]
    starts = [t for t, step in enumerate(own) if step.fresh]
    assert [attempts[t] for t in starts] == [0, 1, 2]
    for t in starts:
        info = own[t].output.info
        assert (own[t].output.reward, own[t].output.done) == (0, True)
        assert (info.episode_return, info.episode_step, info.episode_end) == (0, 0, False)
    # Thirteen steps each: none lost, none twice.
    assert np.diff(starts).tolist() == [14, 14]
    assert pool.restarts.tolist() == [3, 0]
    assert not any(step.fresh for step in steps_of(received, 1)[1:])
    words = "the engine has no map" if kind is process_environments.Dying else "wrong status"
    assert sum("level_0" in record.message for record in caplog.records) == 3
    assert all(words in record.message for record in caplog.records)
    (directory,) = tmp_path.glob("environment_processes_*")
    play(pool, lambda ready: 0 in ready.ids)
    assert {path.name for path in directory.iterdir()} == {"0_3", "1_0"}


def test_a_lost_environment_starts_again_though_all_others_are_always_ready(
    make_pool: MakePool,
) -> None:
    """As with a policy that takes longer than a step."""
    pool = make_pool(functools.partial(process_environments.Dying, 12), *[Counting] * 3)
    play(pool, has_steps(0, 12))

    def others_are_ready(ready: Ready) -> bool:
        wait_until(lambda: num_answers(pool) >= 3)
        return pool.restarts[0] == 1 and bool(np.any(ready.fresh))

    play(pool, others_are_ready)


def test_one_that_dies_while_its_actor_takes_its_time_comes_back_fresh(
    make_pool: MakePool,
) -> None:
    pool = make_pool(*[Counting] * 2)
    while True:  # Keeps the first environment's answer, and goes on with the second.
        ids, output, _ = pool.receive(0.2)
        if 0 in ids:
            break
        pool.send(ids, np.zeros(len(ids), np.int32))
    process = int(output.observation["number"][0, 3])
    pool.send(ids[1:], np.zeros(len(ids) - 1, np.int32))
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: not is_alive(process))
    play(pool, has_steps(1, 20))
    assert pool.restarts.tolist() == [0, 0], "nobody has asked for it yet"
    pool.send(np.array([0]), np.array([3], np.int32))
    received = play(pool, has_steps(0, 2))
    first = steps_of(received, 0)[0]
    assert first.fresh
    assert first.output.observation["number"][2] == 1, "a new process"
    assert pool.restarts.tolist() == [1, 0]


def test_it_goes_on_through_a_hundred_deaths(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_FIRST_DELAY_SECONDS", 1e-3)
    dying = functools.partial(process_environments.Dying, 12)
    pool = make_pool(*[dying] * 4, Counting)
    received = play(pool, lambda ready: pool.restarts.sum() == 100)
    for i in range(4):
        attempts = [output.observation["number"][2] for _, output, _ in steps_of(received, i)]
        counts = np.bincount(attempts)
        assert len(counts) >= pool.restarts[i]
        assert np.all(counts[:-1] == 13), "twelve steps and the first"
    assert sum(not step.fresh for step in steps_of(received, 4)) > 1000


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (process_environments.Stillborn, "no display"),
        (functools.partial(process_environments.Dying, 3), "the engine has no map"),
    ],
)
def test_too_many_deaths_in_a_row_are_the_end(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, environment: MakeEnvironment, words: str
) -> None:
    monkeypatch.setattr(process_pool, "_FIRST_DELAY_SECONDS", 1e-3)
    monkeypatch.setattr(process_pool, "_MOST_DEATHS_IN_A_ROW", 3)
    pool = make_pool(environment, Counting)
    with pytest.raises(EnvironmentLostError, match=f"level_0 .* last of 4 in a row.*: {words}"):
        play(pool, lambda ready: False)
    assert pool.restarts.tolist() == [3, 0]


def test_one_that_cannot_begin_is_the_end_at_once(make_pool: MakePool) -> None:
    pool = make_pool(Counting, process_environments.Refusing)
    with pytest.raises(
        EnvironmentLostError, match="level_1 cannot be played: RuntimeError: no such level"
    ):
        play(pool, lambda ready: False)


@pytest.mark.parametrize("code", [1, 3, REFUSED])
def test_whatever_code_it_ends_with_one_that_has_begun_is_started_again(
    make_pool: MakePool, code: int
) -> None:
    pool = make_pool(functools.partial(process_environments.Dying, 2, code=code))
    play(pool, lambda ready: pool.restarts[0] == 1)


def test_programs_that_an_engine_runs_end_with_it(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_GRACE_SECONDS", 0.1)
    pool = make_pool(functools.partial(process_environments.Compiling, tmp_path / "program"))
    wait_until(lambda: (tmp_path / "program").exists())
    program = int((tmp_path / "program").read_text())
    assert is_alive(program)
    pool.close()
    wait_until(lambda: not is_alive(program))


def test_a_death_is_noticed_though_a_program_of_the_engine_lives_on(
    make_pool: MakePool, tmp_path: Path
) -> None:
    pool = make_pool(functools.partial(process_environments.Compiling, tmp_path / "program"))
    wait_until(lambda: (tmp_path / "program").exists())
    program = int((tmp_path / "program").read_text())
    os.kill(pool._children[0].process.pid, signal.SIGKILL)
    play(pool, lambda ready: pool.restarts[0] == 1)
    os.kill(program, signal.SIGKILL)


@pytest.mark.parametrize("begun", [False, True])
def test_one_that_hangs_is_killed_with_its_programs_and_counted(
    make_pool: MakePool, tmp_path: Path, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    if begun:
        pool = make_pool(Counting, Counting)
        play(pool, has_steps(0, 3))
        hung = {pool._children[0].process.pid}
        os.kill(*hung, signal.SIGSTOP)
    else:
        pool = make_pool(
            functools.partial(process_environments.Compiling, tmp_path / "program"), Counting
        )
        wait_until(lambda: (tmp_path / "program").exists())
        hung = {pool._children[0].process.pid, int((tmp_path / "program").read_text())}
    before = play(pool, has_steps(1, 20))
    assert pool.restarts.tolist() == [0, 0], "it has its time"
    pool._turn_began[0] -= process_pool._MOST_TURN_SECONDS
    with caplog.at_level(logging.WARNING, logger="absl"):
        after = play(pool, lambda ready: pool.restarts[0] == 1)
    wait_until(lambda: not any(map(is_alive, hung)))
    assert "level_0 was killed, having hung for 900 s; starting another" in caplog.text
    assert not any(step.fresh for step in steps_of([*before, *after], 1)[1:])


def test_time_in_which_nobody_looks_does_not_count_as_hanging(
    make_pool: MakePool, tmp_path: Path
) -> None:
    """As when a batch system suspends all processes of a job, or a host a virtual machine."""
    file = tmp_path / "may_begin"
    pool = make_pool(functools.partial(process_environments.Waiting, file), Counting)
    play(pool, has_steps(1, 3))
    pool._turn_began -= process_pool._MOST_TURN_SECONDS
    pool._checked -= process_pool._MOST_TURN_SECONDS / 2
    play(pool, has_steps(1, 20))
    file.touch()
    play(pool, has_steps(0, 3))
    assert pool.restarts.tolist() == [0, 0]


def test_closing_ends_processes_at_whatever_they_are(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_GRACE_SECONDS", 0.1)
    stuck = functools.partial(process_environments.Waiting, tmp_path / "never")
    pool = make_pool(stuck, Counting)
    play(pool, has_steps(1, 3))
    wait_until(lambda: bool(list(tmp_path.glob("waiting_*"))))
    (waiting,) = tmp_path.glob("waiting_*")
    pool.close()
    assert not is_alive(int(waiting.name.split("_")[1]))
    assert not list(tmp_path.glob("environment_processes_*"))


def test_what_a_process_says_does_not_grow_for_ever(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(process_environments.Chatty)
    play(pool, has_steps(0, 10 * EPISODE_STEPS))
    (output,) = tmp_path.glob("environment_processes_*/0_0/output")
    assert output.stat().st_size <= 2**20 + (EPISODE_STEPS + 1) * 2**18 + 2**10


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("", "(none)"),
        ("a\nb\n\n  c \nd\ne\nf\n", "b c d e f"),
        (
            "Traceback (most recent call last):\n  File x\nValueError: bad\n  seed\n",
            "ValueError: bad seed",
        ),
        ("KeyError: 1\nDuring handling\npkg.LuaError: two\n lines\n", "pkg.LuaError: two lines"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_last_words_are_one_line_that_tells_what_happened(output: str, told: str) -> None:
    assert process_pool.last_words(output) == told


# What the real engine printed, shortened. Without an image of the data set; the last three lines
# are as newer versions of abseil print them:
_NO_IMAGE = """F0000 00:00:1700000000.000000 19815 context.cc:1090] Check failed: result.ok() \
[modifyControl] - [image.load] - "/data/1706.png" could not be read.
stack traceback:
\t[C]: in function 'load'
\t...eepmind_lab/baselab/game_scripts/datasets/reader.lua:38: in function 'getImage'
\t...actories/psychlab/continuous_recognition_factory.lua:297: in function 'addArray'
\t...actories/psychlab/continuous_recognition_factory.lua:238: in function 'mouseHoverCallback'
\t.../game_scripts/factories/psychlab/point_and_click.lua:302: in function 'f'
\t.../game_scripts/factories/psychlab/point_and_click.lua:325: in function 'onMouseOver'
\t.../game_scripts/factories/psychlab/point_and_click.lua:504: in function 'step'
*** Check failure stack trace: ***
    @     0x7f2a8c3d4e5f  absl::log_internal::LogMessage::SendToLog()
    @     0x7f2a8c3d4e60  deepmind::lab::Context::ModifyControl()
"""
# Without `zip`, which packs what the map compiler has made:
_NO_ZIP = """/site/deepmind_lab/deepmind/level_generation/compile_map.sh: line 128: zip: \
command not found
E0000 00:00:1700000000.000000 18698 compile_map.cc:136] 2.5.17
Q3Map         - v1.0r (c) 1999 Id Software Inc.
Script file scripts/ghost.shader was not found
WARNING: Unknown surfaceparm: "noclip"
WARNING: Couldn't find image for shader textures/door_placeholder:door_5_9
Writing /tmp/0_0/baselab/keysdoors_demo_map.bsp
Wrote 0.3 MB (359576 bytes)
        4 seconds elapsed

Traceback (most recent call last):
  File "/code/scalable_agent_popart/suites/environment_process.py", line 122, in play
    first = environment.reset()
            ^^^^^^^^^^^^^^^^^^^
RuntimeError: Failed to start environment - "[deepmind.lab.TextLevelMaker.mapFromTextLevel] - \
Failed to compile map.
Map Name:
keysdoors_demo_mapEntity Layer:
***********
**   I   **
***H***H***
**P  I   **
***********
Variations Layer:

stack traceback:
\t[C]: in function 'mapFromTextLevel'
\t...eepmind_lab/baselab/game_scripts/common/make_map.lua:37: in function 'makeMap'
\t...cripts/factories/rooms/keys_doors_puzzle_factory.lua:129: in function 'start'
"""
# Without OSMesa:
_NO_LIBRARY = """Failed to open library! - /site/deepmind_lab/libdmlab_headless_sw.so
libOSMesa.so.8: cannot open shared object file: No such file or directory
Traceback (most recent call last):
  File "<string>", line 3, in <module>
RuntimeError: Failed to connect RL API
"""
# Without a file that the engine asks for by ending the process:
_NO_MAP = "Didn't find map 'lt_chasm'\n: No such file or directory\n"


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (_NO_IMAGE, r'F0000 .* Check failed: .* - "/data/1706\.png" could not be read\.'),
        (
            _NO_ZIP,
            r"/site/\S+/compile_map\.sh: line 128: zip: command not found; RuntimeError: Failed to "
            r'start environment - "\[\S+\] - Failed to compile map\. .*',
        ),
        (
            _NO_LIBRARY,
            "Failed to open library! - .*; libOSMesa.so.8: cannot open shared object file: No such "
            "file or directory; RuntimeError: Failed to connect RL API",
        ),
        (_NO_MAP, "Didn't find map 'lt_chasm' : No such file or directory"),
    ],
)
def test_last_words_tell_why_the_real_engine_ended(output: str, told: str) -> None:
    words = process_pool.last_words(output)
    assert re.fullmatch(told, words)
    assert "lua:" not in words
    assert "WARNING" not in words


def test_of_many_reasons_the_first_is_kept() -> None:
    later = "\n".join(f"step {i} failed" for i in range(6))
    words = process_pool.last_words(f"zip: command not found\n{later}\nRuntimeError: no map\n")
    assert words == "zip: command not found; step 4 failed; step 5 failed; RuntimeError: no map"


def test_why_an_engine_ended_is_found_above_much_else(
    make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    words = "sh: 1: zip: not found\n" + 1000 * "entering scripts/common.shader\n"
    pool = make_pool(functools.partial(process_environments.Dying, 2, words=words))
    with caplog.at_level(logging.WARNING, logger="absl"):
        play(pool, lambda ready: pool.restarts[0] == 1)
    assert "zip: not found" in caplog.text


def test_processes_start_no_threads_of_their_own(tmp_path: Path) -> None:
    """As many as cores in each of thirty processes would get in each other's way."""
    variables = process_pool.child_environment(tmp_path)
    libraries = {"LP": "0", "OMP": "1", "OPENBLAS": "1", "MKL": "1"}
    assert {name: variables[f"{name}_NUM_THREADS"] for name in libraries} == libraries


_PARENT = """
import functools, sys
from pathlib import Path
import numpy as np
from tests.fakes import process_environments
from scalable_agent_popart.suites.process_pool import ProcessPool

waiting = functools.partial(process_environments.Waiting, Path(sys.argv[1]) / "may_begin")
make = [process_environments.Counting, waiting]
pool = ProcessPool(["a", "b"], make, np.zeros(2, np.int32), process_environments.OBSERVATION)
pool.start()
while True:
    ready = pool.receive(0.2)
    if len(ready.ids):
        print(ready.output.observation["number"][0, 3], flush=True)
    pool.send(ready.ids, ready.ids.astype(np.int32))
"""


def test_processes_notice_that_their_parent_was_killed(tmp_path: Path) -> None:
    """One of them while it begins, and so only once it has begun."""
    path = str(_ROOT)
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout
    counting = int(parent.stdout.readline())
    wait_until(lambda: bool(list(tmp_path.glob("waiting_*"))))
    waiting = int(next(tmp_path.glob("waiting_*")).name.split("_")[1])
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_alive(counting))
    assert is_alive(waiting)
    (tmp_path / "may_begin").touch()
    wait_until(lambda: not is_alive(waiting))
    assert not list(tmp_path.glob("environment_processes_*")), "nothing is left behind"


def test_files_go_though_a_killed_parent_lets_go_of_them_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its sockets, by which its children see that it is gone."""
    directory = tmp_path / "environment_processes_x"
    directory.mkdir()
    parent = os.open(directory, os.O_RDONLY)
    fcntl.flock(parent, fcntl.LOCK_SH)
    monkeypatch.setattr(environment_process.time, "sleep", lambda s: s and os.close(parent))
    with environment_process.Hold(directory):
        pass
    assert not directory.exists()


def test_a_child_that_is_never_told_what_to_do_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its parent was killed just after it had started it."""
    directory = tmp_path / "environment_processes_x" / "0_0"
    directory.mkdir(parents=True)
    child = subprocess.run(
        [sys.executable, "-c", process_pool._CHILD],
        env={**process_pool.child_environment(directory), "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_DEADLINE_SECONDS,
    )
    assert child.returncode != 0
    assert not directory.parent.exists()

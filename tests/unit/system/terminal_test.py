"""What is shown on a terminal and in a log file."""

import functools
import io
import itertools
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scalable_agent_popart.errors import FAILS_AGAIN
from scalable_agent_popart.system.terminal import progress_bar

_ROOT = Path(__file__).resolve().parents[3]
# Prints in every way that the program does, more than a buffer holds, and then writes its result.
_PROGRAM = """
import sys
from absl import logging
from scalable_agent_popart.system import terminal
terminal.outlive_terminal()
with terminal.progress_bar(3, " episodes") as progress:
    progress.update(3)
logging.error("not to be seen")
terminal.show_saved(40, "a directory")
print(10**5 * "table")
with open(sys.argv[1], "w") as result:
    print(result.fileno(), file=result)
sys.exit(3)
"""


def test_a_log_file_does_not_get_a_line_for_every_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    with progress_bar(25, " episodes") as progress:
        seconds = itertools.count(progress.start_t)
        monkeypatch.setattr(progress, "_time", lambda: next(seconds))
        for _ in range(25):
            progress.update(1)
    lines = log.getvalue().split("\r")[1:]
    assert len(lines) <= 4  # The first, the last and one every ten seconds.
    assert "25/25" in lines[-1]


def _full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def _without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _closed_terminal() -> int:
    window, terminal = pty.openpty()
    os.close(window)
    return terminal


@pytest.mark.parametrize("broken", [_full, _without_reader, _closed_terminal, None])
def test_what_cannot_be_printed_stops_nothing(
    tmp_path: Path, broken: Callable[[], int] | None
) -> None:
    result, output = tmp_path / "result", broken() if broken else None
    close_all = None if broken else functools.partial(os.closerange, 0, 3)
    command = [sys.executable, "-c", _PROGRAM, str(result)]
    ended = subprocess.run(command, cwd=_ROOT, stdout=output, stderr=output, preexec_fn=close_all)
    if output is not None:
        os.close(output)
    assert ended.returncode == 3
    assert int(result.read_text()) >= 3, "what is printed later would be written into it"


def test_the_launch_script_ends_as_it_would_if_all_could_be_printed() -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([sys.executable, "experiment.py", "--typo"], cwd=_ROOT, stderr=full)
    assert ended.returncode == FAILS_AGAIN

"""What is shown on a terminal and in a log file."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_log_file_gets_a_whole_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar(25_000, " frames", initial=5000, desc="starts") as progress:
        now = progress.start_t
        monkeypatch.setattr(progress, "_time", lambda: now)
        now += 10
        progress.update(0)
        progress.set_description(refresh=False)
        for _ in range(20):
            now += 1
            progress.update(1000)
            progress.set_postfix_str("loss 0.5", refresh=False)
        print("a warning", file=sys.stderr)
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "starts, 5,000 of 25,000 frames",
        "15,000 of 25,000 frames, 1,000 frames/s, 00:10 left, loss 0.5",
        "25,000 of 25,000 frames, 1,000 frames/s, 00:00 left, loss 0.5",
        "a warning",
    ]


def test_a_log_file_gets_the_end_once_and_nothing_if_nothing_was_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_bar(3, " episodes") as progress:
        now = progress.start_t + 60
        progress._time = lambda: now
        progress.update(3)
    for nothing in ({"disable": True}, {"leave": False}):
        with progress_bar(3, " episodes"), progress_bar(3, " episodes", **nothing) as hidden:
            hidden.update(3)
    assert capsys.readouterr().err == "3 of 3 episodes, 0.05 episodes/s, 00:00 left\n"


@pytest.mark.parametrize("closed", [False, True])
def test_what_cannot_be_printed_stops_nothing(tmp_path: Path, closed: bool) -> None:
    result = tmp_path / "result"
    close_all = functools.partial(os.closerange, 0, 3) if closed else None
    command = [sys.executable, "-c", _PROGRAM, str(result)]
    with open("/dev/full", "wb") as full:
        how = {"stdout": full, "stderr": full, "preexec_fn": close_all}
        assert subprocess.run(command, cwd=_ROOT, **how).returncode == 3
    assert int(result.read_text()) >= 3, "what is printed later would be written into it"

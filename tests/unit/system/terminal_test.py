"""What is shown on a terminal and in a log file."""

import io
import itertools

import pytest

from scalable_agent_popart.system.terminal import progress_bar


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

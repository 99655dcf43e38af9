"""Log files survive what happens to runs."""

from pathlib import Path

import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.logs import JsonLines


def test_a_log_is_cut_back_to_the_checkpoint_and_goes_on(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.open()
    log.write({"n": 1})
    log.flush()
    saved = int(log.length)
    log.write({"n": 2})
    log.flush()
    log.close()

    resumed = JsonLines(tmp_path / "log.jsonl")
    resumed.length.assign(saved)
    resumed.open()
    resumed.write({"n": 3})
    resumed.close()
    assert list(resumed.read()) == [{"n": 1}, {"n": 3}]


def test_a_log_shorter_than_the_checkpoint_says_is_cut_to_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n"')
    log = JsonLines(path)
    log.length.assign(1000)
    log.open()
    log.write({"n": 3})
    log.close()
    assert list(log.read()) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"n": 1}\nnonsense\n')
    log = JsonLines(path)
    with pytest.raises(UserError, match="line 2"):
        list(log.read())

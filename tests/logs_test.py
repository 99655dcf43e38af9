"""Log files survive what happens to runs."""

from pathlib import Path

import numpy as np
import pytest

from environments import StepOutputInfo
from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.logs import JsonLines, RunLog
from scalable_agent_popart.run_directory import RunDirectory


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


def test_a_record_says_what_the_batches_since_the_last_were_of(tmp_path: Path) -> None:
    log = RunLog(RunDirectory(str(tmp_path)), suites.resolve("catch_0.1,catch_1,catch_10"), 1)
    log.open(0, 1000, show_progress=False)
    info = StepOutputInfo(
        episode_return=np.zeros([3, 4], np.float32),
        episode_step=np.ones([3, 4], np.int32),
        episode_end=np.zeros([3, 4], bool),
    )
    for frames, task_ids in ((8, [0, 0, 2, 2]), (16, [0, 0, 0, 0])):
        log.record_batch(frames, np.array(task_ids), info)
    log.record_metrics(16, {"total_loss": 1.0}, {})
    log.record_batch(24, np.array([1, 1, 1, 2]), info)
    log.record_metrics(24, {"total_loss": 1.0}, {})
    log.close()
    first, second = (record["batch_share"] for record in log.metrics.read())
    assert first == {"catch_0.1": 0.75, "catch_1": 0, "catch_10": 0.25}
    assert second == {"catch_0.1": 0, "catch_1": 0.75, "catch_10": 0.25}
    # Of a process that has loaded TensorFlow.
    assert all(100 < record["memory_mib"] < 100_000 for record in log.metrics.read())

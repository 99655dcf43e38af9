"""Logs go on from the checkpoint, and say what was learned and played."""

import io
import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from environments import StepOutputInfo
from scalable_agent_popart.errors import FAILS_AGAIN, UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.runs.logs import JsonLines, RunLog
from scalable_agent_popart.system.program import exit_code
from tests.fakes.programs import metrics, read_log


def test_a_log_is_cut_back_to_the_checkpoint_and_to_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n"')
    for length, left in ((1000, [1, 2, 3]), (9, [1, 3])):
        log = JsonLines(path)
        log.length.assign(length)
        log.open()
        log.write({"n": 3})
        log.flush()
        assert int(log.length) == path.stat().st_size
        log.close()
        assert [line["n"] for line in read_log(path)] == left


def _log(directory: Path, tasks: str = "catch5", on_episode: Any = lambda *_: None) -> RunLog:
    flags = {"level_name": tasks, "logdir": str(directory), "total_environment_frames": 1000}
    return RunLog(Config.from_flags(flags), RunDirectory(directory), "1 core", on_episode)


def _info(batch_size: int) -> StepOutputInfo:
    """The progress of episodes in a batch in which no game ends."""
    shape = (3, batch_size)
    return StepOutputInfo(np.zeros(shape), np.ones(shape, int), np.zeros(shape, bool))


def test_the_start_is_shown_until_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    log = _log(tmp_path)
    log.open(0)
    for text in ("17 of 30 environments ready", "compiling the update"):
        log.show_start(text)
        assert terminal.getvalue().rpartition("\r")[2].startswith(text)
    log.record_batch(40, np.array([0, 1]), _info(2))
    log.close()
    last = terminal.getvalue().rpartition("\r")[2]
    assert "compiling" not in last
    assert "40.0" in last


def test_games_before_a_resume_count_and_foreign_ones_are_refused(tmp_path: Path) -> None:
    line = b'{"task": "catch_1", "frames": %d, "episode_return": 2.5}\n'
    for other, refused in ((line % 6, False), (b"not json\n", True), (b'{"task": 1}\n', True)):
        (tmp_path / "episodes.jsonl").write_bytes(content := line % 5 + other)
        episodes = mock.Mock()
        log = _log(tmp_path, "catch_1", on_episode=episodes)
        log.episodes.length.assign(len(content))
        if refused:
            with pytest.raises(UserError, match="damaged or not of this program"):
                log.open(6, show_progress=False)
        else:
            log.open(6, show_progress=False)
            log.close()
            assert [call.args[2] for call in episodes.mock_calls] == [5, 6]


def test_a_disk_that_is_full_for_tensorboard_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _log(tmp_path)
    log.open(0, show_progress=False)
    full = tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    monkeypatch.setattr(log._tensorboard, "flush", mock.Mock(side_effect=full))
    with pytest.raises(UserError, match="make room") as error:
        log.record_metrics(40, {"total_loss": 1.0, "mean_entropy": 1.0}, {})
    assert exit_code(error.value) != FAILS_AGAIN
    monkeypatch.undo()
    log.close()


def test_tensorboard_has_the_flags_of_the_start_that_learned(tmp_path: Path) -> None:
    for tasks in ("catch_1", "catch_10"):
        log = _log(tmp_path, tasks)
        log.open(0, show_progress=False)
        log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    shown = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert "catch_10" in shown.hparams["level_name"].string_value
    assert not shown.group_name, "runs with the same flags and seed have a row each"


def test_a_record_has_scores_and_what_the_batches_since_the_last_were_of(tmp_path: Path) -> None:
    log = _log(tmp_path, "catch_0.1,catch_1,catch_10")
    log.open(0, show_progress=False)
    info, measured = _info(4), ("total_loss", "entropy_loss", "mean_entropy", "queue_fill")
    log.record_batch(8, np.array([0, 0, 2, 2]), info)
    log.record_batch(16, np.array([0, 0, 0, 0]), info)
    log.record_metrics(16, dict.fromkeys(measured, 1.0), {"shift": {"catch_1": math.nan}})
    info.episode_end[1] = True
    log.record_batch(24, np.array([1, 1, 1, 2]), info)
    by_task = {"shift": {"catch_1": 0.0}, "scale": {"catch_1": 1.0}}
    log.record_metrics(24, dict.fromkeys(measured, 1.0), by_task)
    log.close()
    first, second = metrics(tmp_path)
    assert first["batch_share"] == {"catch_0.1": 0.75, "catch_1": 0, "catch_10": 0.25}
    assert second["batch_share"] == {"catch_0.1": 0, "catch_1": 0.75, "catch_10": 0.25}
    assert first["shift"] == {"catch_1": None}  # JSON has no NaN.
    # Memory of a process that has loaded TensorFlow.
    assert all(100 < record["memory_mib"] < 100_000 for record in (first, second))
    assert second.keys() >= {"frames", "total_loss", "queue_fill", "mean_capped", "shift", "scale"}
    tags = sorted(EventAccumulator(str(tmp_path)).Reload().Tags()["tensors"])  # In groups.
    tags = [tag for tag in tags if not tag.startswith("_")]
    assert {*tags} >= {"losses/total_loss", "losses/entropy_loss", "learning/mean_entropy"}
    assert {*tags} >= {"speed/queue_fill", "speed/frames_per_second", "speed/memory_mib"}
    assert {*tags} >= {"popart_shift/catch_1", "popart_scale/catch_1", "share_of_batch/catch_1"}
    scores = ["mean", "mean_capped", "median", "tasks_scored"]
    opens_on = [f"aggregate_score/{name}" for name in scores]
    assert tags[:6] == [*opens_on, "episode_return/catch_1", "episode_return/catch_10"]
    assert all(tag.count("/") == 1 for tag in tags)

"""Whole runs of `experiment.main` with tiny settings, in every mode and for every agent."""

import errno
import json
import math
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.evaluation import videos
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import Change, Record, RunDirectory
from scalable_agent_popart.system import hardware
from scalable_agent_popart.training import trainer
from tests.fakes.main_program import run
from tests.fakes.programs import metrics, read_log

TASKS = ("catch_0.01", "catch_0.1", "catch_1", "catch_10", "catch_100")
SIZES = {"num_actors": 10, "batch_size": 4, "unroll_length": 10, "total_environment_frames": 400}
TINY = {"level_name": "catch5", **SIZES}
SHIFT = "learner/head/shift/.ATTRIBUTES/VARIABLE_VALUE"


def train(logdir: Path, **given: Any) -> None:
    run(**{**TINY, "logdir": str(logdir), **given})


def test(logdir: Path, **given: Any) -> dict[str, Any]:
    """Runs `--mode=test` and returns what it wrote."""
    run(mode="test", logdir=str(logdir), **given)
    return json.loads((logdir / "evaluation.json").read_text())


test.__test__ = False  # type: ignore[attr-defined] - not a test itself.


def saved(logdir: Path, name: str = "learner/frames/.ATTRIBUTES/VARIABLE_VALUE") -> np.ndarray:
    """Returns a variable of the newest checkpoint; by default the run's frames."""
    return tf.train.load_variable(str(logdir / "checkpoints"), name)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 400 frames, for `logdir` to copy."""
    logdir = tmp_path_factory.mktemp("finished") / "run"
    train(logdir, use_popart=True)
    return logdir


@pytest.fixture
def logdir(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(finished_run, tmp_path / "run")


def resume(logdir: Path, frames: int = 800, **given: Any) -> None:
    """Resumes the copied run."""
    more = {"use_popart": True, "total_environment_frames": frames}
    train(logdir, **{**more, **given})


def recorded(logdir: Path) -> dict[str, Any]:
    return json.loads((logdir / "config.json").read_text())


def fails(logdir: Path, **given: Any) -> str:
    """Returns the line with which a command, by default to resume, is refused."""
    with pytest.raises(SystemExit, match=r"^error: [^\n]*$") as end:
        run(logdir=str(logdir), **given) if "mode" in given else resume(logdir, **given)
    return str(end.value.code)


AGENTS: dict[str, dict[str, Any]] = {
    "multi-head": {"multi_head": True, "network": "deep", "reward_clipping": "soft_asymmetric"},
    "popart": {
        **{"use_popart": True, "use_lstm": True, "momentum": 0.5, "reward_clipping": "oar"},
        **{"popart_second_moment_of": "mean"},
    },
}


@pytest.mark.parametrize("agent", AGENTS)
def test_agent_trains_and_is_tested(tmp_path: Path, agent: str) -> None:
    train(tmp_path, **AGENTS[agent])
    lines = metrics(tmp_path)
    assert recorded(tmp_path)["device"] == hardware.device()
    assert lines[-1]["frames"] == 400
    for line in lines:
        assert {"frames", "frames_per_second", "policy_lag", "mean_entropy"} <= line.keys()
        assert math.isfinite(line["total_loss"])
        assert line["precision"] == "float32"
        assert ("shift" in line) == ("scale" in line) == (agent == "popart")
        assert tuple(line.get("shift", TASKS)) == tuple(line.get("scale", TASKS)) == TASKS
    episodes = read_log(tmp_path / "episodes.jsonl")
    assert episodes
    for line in episodes:
        scale = float(line["task"].removeprefix("catch_"))
        assert abs(line["episode_return"]) == pytest.approx(scale), "raw whatever the clipping"
        assert line["episode_frames"] == 9
        assert 0 < line["frames"] <= 400
    assert list(tmp_path.glob("events.out.tfevents.*"))

    result = test(tmp_path, test_num_episodes=3)
    assert (result["frames"], result["starts"], tuple(result["tasks"])) == (400, "noop", TASKS)
    assert result["precision"] == "float32"
    for task in result["tasks"].values():
        assert task["episodes"] == len(task["returns"]) == 3
    some = test(tmp_path, level_name="catch_100,catch_1", test_num_episodes=2)
    assert list(some["tasks"]) == ["catch_100", "catch_1"]


def test_the_same_command_resumes(
    logdir: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logdir = logdir.rename(logdir.with_name("a run"))
    assert saved(logdir) == 400
    episodes = (logdir / "episodes.jsonl").read_text()
    for name in ("metrics.jsonl", "episodes.jsonl"):  # Lines after the checkpoint are cut.
        with open(logdir / name, "a") as log:
            log.write('{"frames": 999999, "task": "catch_1", "episode_return": 1.0}\n{"cut o')
    resume(logdir)
    messages = capsys.readouterr().err
    assert f"; logs in {logdir}: loading TensorFlow" in messages
    assert "resumes at 400 frames: 5 tasks of Catch-5" in messages
    assert "the learning rate changes from 0 to 0.0025 at 400 frames" in caplog.text
    end = f"{logdir} is finished: 800 of 800 frames"
    assert f"--mode=test --logdir='{logdir}'" in messages[messages.index(end) :]
    shift = saved(logdir, SHIFT)
    assert saved(logdir) == 800
    after = (logdir / "episodes.jsonl").read_text()
    assert after.startswith(episodes)
    assert json.loads(after.splitlines()[-1])["frames"] == 800
    frames = [line["frames"] for line in metrics(logdir)]
    assert frames == sorted(set(frames))
    assert frames[-1] == 800
    # A finished run has nothing left to do, and loses nothing by the command. It even keeps the
    # revision that trained it.
    record = {**recorded(logdir), "git_revision": "older"}
    (logdir / "config.json").write_text(json.dumps(record))
    resume(logdir)
    assert end in capsys.readouterr().err
    assert saved(logdir) == 800
    np.testing.assert_array_equal(saved(logdir, SHIFT), shift)
    assert recorded(logdir)["git_revision"] == "older"


@pytest.mark.parametrize(
    ("trained_for", "schedule", "rates"),
    [(1600, "linear", "from 0.00375 to 0.0025"), (800, "linear", ""), (400, "constant", "")],
)
def test_other_frames_change_the_learning_rate_with_a_word(
    trained_for: int, schedule: str, rates: str
) -> None:
    flags = {"total_environment_frames": 800, "learning_rate_schedule": schedule}
    config = Config.from_flags({**TINY, **flags})
    # An earlier start with 800 frames was killed before it could learn.
    change = Change(400, {"total_environment_frames": (trained_for, 800)})
    learner = mock.Mock(frames=400, **{"hyperparameters.learning_rate": 5e-3})
    message = trainer._describe_new_rate(Record(config, (change,)), config, learner)
    assert rates in message
    assert bool(message) == bool(rates)


def test_a_run_that_had_to_have_a_gpu_is_tested_without_one(logdir: Path) -> None:
    record = recorded(logdir)
    record["flags"]["gpus"] = 1
    (logdir / "config.json").write_text(json.dumps(record))
    assert test(logdir, test_num_episodes=1, num_actors=5)["frames"] == 400


def test_a_run_that_lost_its_checkpoints_keeps_its_logs(logdir: Path) -> None:
    log = (logdir / "metrics.jsonl").read_text()
    shutil.rmtree(logdir / "checkpoints")
    assert "logs but no checkpoints" in fails(logdir)
    assert (logdir / "metrics.jsonl").read_text() == log
    (logdir / "metrics.jsonl").write_text(log.splitlines(keepends=True)[0])
    resume(logdir, 40)  # A process that was killed before its first checkpoint begins again.
    assert saved(logdir) == 40


def test_a_full_disk_ends_the_run_with_one_line(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(trainer.RunLog, "record_batch", mock.Mock(side_effect=full))
    assert "no space left" in fails(logdir)


def test_a_full_disk_loses_no_scores_for_films_and_no_table_for_scores(
    logdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_after_the_table() -> bool:
        line = fails(logdir, mode="test", test_num_episodes=2, record_video=True)
        return "no space left" in line and "mean normalised score" in capsys.readouterr().out

    (logdir / "videos").mkdir()
    monkeypatch.setattr(videos.uuid, "uuid4", mock.Mock(return_value=mock.Mock(hex="own")))
    (logdir / "videos" / "catch_1.own.tmp").symlink_to("/dev/full")
    assert fails_after_the_table()
    evaluation = json.loads((logdir / "evaluation.json").read_text())
    assert evaluation["tasks"]["catch_1"]["episodes"] == 2
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(RunDirectory, "write_evaluation", mock.Mock(side_effect=full))
    assert fails_after_the_table()

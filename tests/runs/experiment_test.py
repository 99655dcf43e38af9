"""Whole runs of `experiment.main` with tiny settings, in every mode and for every agent."""

import errno
import json
import math
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from scalable_agent_popart.evaluation import videos
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.checkpoints import saved_frames
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.system import hardware
from scalable_agent_popart.training.local_actors import LocalActors
from tests.fakes.main_program import run
from tests.fakes.programs import metrics, read_log, wait_until

_TASKS = ("catch_0.01", "catch_0.1", "catch_1", "catch_10", "catch_100")
_TINY = {"level_name": "catch5", "num_actors": 10, "batch_size": 4, "unroll_length": 10}
_TINY |= {"total_environment_frames": 400}
_MULTI_HEAD = {"multi_head": True, "network": "deep", "reward_clipping": "soft_asymmetric"}
_POPART = {"use_popart": True, "use_lstm": True, "momentum": 0.5, "reward_clipping": "oar"}
_POPART |= {"popart_second_moment_of": "mean"}
_OF_THE_MACHINE = {"time", "frames_per_second", "learner_wait", "memory_mib"}
_FULL = OSError(errno.ENOSPC, "No space left on device")


def _train(logdir: Path, **given: Any) -> None:
    run(**{**_TINY, "logdir": str(logdir), **given})


def _test(logdir: Path, **given: Any) -> dict[str, Any]:
    """Runs `--mode=test` and returns what it wrote."""
    run(mode="test", logdir=str(logdir), **given)
    return json.loads((logdir / "evaluation.json").read_text())


def _saved(logdir: Path) -> int | None:
    return saved_frames(logdir / "checkpoints")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 400 frames, for `logdir` to copy."""
    logdir = tmp_path_factory.mktemp("finished") / "run"
    _train(logdir, use_popart=True)
    return logdir


@pytest.fixture
def logdir(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(finished_run, tmp_path / "run")


def _resume(logdir: Path, frames: int = 800) -> None:
    """Resumes the copied run."""
    _train(logdir, use_popart=True, total_environment_frames=frames)


def _change_record(logdir: Path, **changed: Any) -> None:
    record = json.loads((logdir / "config.json").read_text())
    (logdir / "config.json").write_text(json.dumps(record | changed))


@pytest.mark.parametrize("agent", [_MULTI_HEAD, _POPART], ids=["multi-head", "popart"])
def test_agent_trains_and_is_tested(tmp_path: Path, agent: dict[str, Any]) -> None:
    _train(tmp_path, **agent)
    lines = metrics(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["device"] == hardware.device()
    assert lines[-1]["frames"] == 400
    for line in lines:
        assert {"frames", "frames_per_second", "policy_lag", "mean_entropy"} <= line.keys()
        assert math.isfinite(line["total_loss"])
        assert line["precision"] == "float32"
        assert ("shift" in line) == ("scale" in line) == ("use_popart" in agent)
        assert tuple(line.get("shift", _TASKS)) == tuple(line.get("scale", _TASKS)) == _TASKS
    episodes = read_log(tmp_path / "episodes.jsonl")
    assert episodes
    for line in episodes:
        scale = float(line["task"].removeprefix("catch_"))
        assert abs(line["episode_return"]) == pytest.approx(scale), "raw whatever the clipping"
        assert line["episode_frames"] == 9
        assert 0 < line["frames"] <= 400
    assert list(tmp_path.glob("events.out.tfevents.*"))

    result = _test(tmp_path, test_num_episodes=3)
    assert (result["frames"], result["starts"], tuple(result["tasks"])) == (400, "noop", _TASKS)
    assert result["precision"] == "float32"
    for task in result["tasks"].values():
        assert task["episodes"] == len(task["returns"]) == 3
    some = _test(tmp_path, level_name="catch_100,catch_1", test_num_episodes=2)
    assert list(some["tasks"]) == ["catch_100", "catch_1"]


def test_one_actor_thread_and_a_seed_decide_all_that_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_batch = LocalActors.next_batch

    def next_batch_in_step(actors: LocalActors) -> Rollout | None:
        """Lets the learner go on once the actor waits, so that no race decides on its weights."""
        batch, queue = next_batch(actors), actors.rollout_queue
        if batch is not None:
            wait_until(lambda: queue.fill() == len(queue._waiting) == 1)
            wait_until(lambda: not actors.feed._batches.empty())
        return batch

    monkeypatch.setattr(LocalActors, "next_batch", next_batch_in_step)
    how = {**_TINY, **_POPART, "batch_size": 10, "actor_threads": 1, "log_seconds": 1e-9}
    learned = []
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        _train(tmp_path / name, **how, seed=seed)
        saved = tf.train.load_checkpoint(str(tmp_path / name / "checkpoints"))
        names = sorted(n for n in saved.get_variable_to_shape_map() if n.startswith("learner"))
        weights = [saved.get_tensor(n).tobytes() for n in names]
        lines = [
            {key: value for key, value in line.items() if key not in _OF_THE_MACHINE}
            for line in metrics(tmp_path / name)
        ]
        learned.append((weights, lines, read_log(tmp_path / name / "episodes.jsonl")))
    one, same, other = learned
    assert len(one[1]) == 4
    assert one == same
    assert all(first != second for first, second in zip(one, other, strict=True))


def test_the_same_command_resumes(
    logdir: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logdir = logdir.rename(logdir.with_name("a run"))
    assert _saved(logdir) == 400
    episodes = (logdir / "episodes.jsonl").read_text()
    for name in ("metrics.jsonl", "episodes.jsonl"):  # Lines after the checkpoint are cut.
        with open(logdir / name, "a") as log:
            log.write('{"frames": 999999, "task": "catch_1", "episode_return": 1.0}\n{"cut o')
    _resume(logdir)
    messages = capsys.readouterr().err
    assert "resumes at 400 frames: 5 tasks of Catch-5" in messages
    assert "the learning rate changes from 0 to 0.0025 at 400 frames" in caplog.text
    end = f"{logdir} is finished: 800 of 800 frames"
    assert f"--mode=test --logdir='{logdir}'" in messages[messages.index(end) :]
    assert _saved(logdir) == 800
    after = (logdir / "episodes.jsonl").read_text()
    assert after.startswith(episodes)
    assert json.loads(after.splitlines()[-1])["frames"] == 800
    frames = [line["frames"] for line in metrics(logdir)]
    assert frames == sorted(set(frames))
    assert frames[-1] == 800
    # A finished run has nothing left to do, and loses nothing by the command. It even keeps the
    # revision that trained it.
    _change_record(logdir, git_revision="older")
    before = {path: path.read_bytes() for path in logdir.glob("*/*")}
    _resume(logdir)
    assert end in capsys.readouterr().err
    assert {path: path.read_bytes() for path in logdir.glob("*/*")} == before
    assert json.loads((logdir / "config.json").read_text())["git_revision"] == "older"


def test_a_run_that_had_to_have_a_gpu_is_tested_without_one(logdir: Path) -> None:
    flags = json.loads((logdir / "config.json").read_text())["flags"]
    _change_record(logdir, flags={**flags, "gpus": 1})
    assert _test(logdir, test_num_episodes=1, num_actors=5)["frames"] == 400


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(logdir: Path) -> None:
    log = (logdir / "metrics.jsonl").read_text()
    shutil.rmtree(logdir / "checkpoints")
    (logdir / "metrics.jsonl").write_text(log.splitlines(keepends=True)[0])
    _resume(logdir, 40)
    assert _saved(logdir) == 40


def test_a_full_disk_loses_no_scores_for_films_and_no_table_for_scores(
    logdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (logdir / "videos").mkdir()
    monkeypatch.setattr(videos.uuid, "uuid4", mock.Mock(return_value=mock.Mock(hex="name")))
    (logdir / "videos" / "catch_1.name.tmp").symlink_to("/dev/full")
    for evaluation_fails in (False, True):
        if evaluation_fails:
            monkeypatch.setattr(RunDirectory, "write_evaluation", mock.Mock(side_effect=_FULL))
        with pytest.raises(SystemExit, match=rf"^error: [^\n]*{_FULL.strerror}[^\n]*$"):
            _test(logdir, test_num_episodes=2, record_video=True)
        assert "mean normalised score" in capsys.readouterr().out
        evaluation = json.loads((logdir / "evaluation.json").read_text())
        assert evaluation["tasks"]["catch_1"]["episodes"] == 2

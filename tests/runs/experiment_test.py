"""Whole runs of `experiment.main` with tiny settings, in every mode and for every agent."""

import errno
import itertools
import json
import math
import re
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import experiment
from environments import StepOutput
from scalable_agent_popart import factory
from scalable_agent_popart.evaluation import videos
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import Change, Record, RunDirectory
from scalable_agent_popart.suites import catch
from scalable_agent_popart.suites.atari import emulator as atari_emulator
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


def snapshot(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


def fails(logdir: Path, **given: Any) -> str:
    """Returns the line with which a command, by default to resume, is refused."""
    with pytest.raises(SystemExit, match=r"^error: [^\n]*$") as exit_info:
        run(logdir=str(logdir), **given) if "mode" in given else resume(logdir, **given)
    return str(exit_info.value.code)


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
    assert lines[-1]["frames"] == 400
    for line in lines:
        assert {"frames", "frames_per_second", "total_loss", "policy_lag"} <= line.keys()
        assert math.isfinite(line["total_loss"])
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
    for task in result["tasks"].values():
        assert task["episodes"] == len(task["returns"]) == 3
        assert task["mean_return"] == pytest.approx(np.mean(task["returns"]))
    normalised = [task["normalised"] for task in result["tasks"].values()]
    mean_capped = np.mean(np.minimum(normalised, 100))
    expected = {"mean": np.mean(normalised), "median": np.median(normalised)}
    assert result["aggregate"] == pytest.approx({**expected, "mean_capped": mean_capped})
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
    told = capsys.readouterr().err
    assert f"; logs in {logdir}: loading TensorFlow" in told
    assert re.search(
        rf"resumes at 400 frames: 5 tasks of Catch-5, \d+ actors, on .*; logs in {logdir}", told
    )
    assert "the learning rate changes from 0 to 0.0025 at 400 frames" in caplog.text
    end = f"{logdir} is finished: 800 of 800 frames"
    assert f"test it with --mode=test --logdir='{logdir}', or" in told[told.index(end) :]
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
    ("trained_for", "schedule", "expected"),
    [
        (400, "linear", "the learning rate changes from 0 to 0.0025 at 400 frames: "),
        (1600, "linear", "the learning rate changes from 0.00375 to 0.0025 at 400 frames: "),
        (800, "linear", ""),
        (400, "constant", ""),
    ],
)
def test_other_frames_change_the_learning_rate_with_a_word(
    trained_for: int, schedule: str, expected: str
) -> None:
    flags = {"total_environment_frames": 800, "learning_rate_schedule": schedule}
    config = Config.from_flags({**TINY, **flags})
    # An earlier start with 800 frames was killed before it could learn.
    change = Change(400, {"total_environment_frames": (trained_for, 800)})
    learner = mock.Mock(frames=400, **{"hyperparameters.learning_rate": 5e-3})
    words = trainer._describe_new_rate(Record(config, (change,)), config, learner)
    assert words.startswith(expected)
    assert bool(words) == bool(expected)


def test_a_run_keeps_the_type_that_it_has_recorded(logdir: Path) -> None:
    record = recorded(logdir)
    assert record["flags"]["precision"] == "float32"
    assert record["device"] == hardware.device()
    assert {line["precision"] for line in metrics(logdir)} == {"float32"}
    record["flags"]["precision"] = "bfloat16"  # An older version chose it by itself.
    (logdir / "config.json").write_text(json.dumps(record))
    resume(logdir, 440)
    assert recorded(logdir)["flags"]["precision"] == metrics(logdir)[-1]["precision"] == "bfloat16"
    assert test(logdir, test_num_episodes=1)["precision"] == "bfloat16"
    assert test(logdir, test_num_episodes=1, precision="float32")["precision"] == "float32"
    assert "--precision was bfloat16 and is float32" in fails(logdir, precision="float32")


def test_a_run_from_the_fixed_start_resumes_as_it_was(tmp_path: Path) -> None:
    older = {"popart_start": "fixed", "popart_step_size": 0.01}
    train(tmp_path, use_popart=True, **older)
    record = recorded(tmp_path)
    for name in ("popart_start", "padding"):  # These settings did not exist.
        del record["flags"][name]
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert "popart_start was fixed" in fails(tmp_path, popart_start="average", allow_changes=True)
    resume(tmp_path)
    assert saved(tmp_path) == 800
    assert recorded(tmp_path)["flags"].items() >= older.items()
    assert list(recorded(tmp_path)["history"][0]["changed"]) == ["total_environment_frames"]


def test_an_actor_job_of_an_older_run_plays_as_that_was_trained(tmp_path: Path) -> None:
    given = {"level_name": "cluttered_catch", "logdir": str(tmp_path)}
    RunDirectory(str(tmp_path)).record(Config.from_flags(given))
    record = recorded(tmp_path)
    del record["flags"]["padding"]
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert experiment._make_config({**given, "job_name": "actor", "task": 0}).padding == "same"


def test_a_run_that_had_to_have_a_gpu_is_tested_without_one(logdir: Path) -> None:
    record = recorded(logdir)
    record["flags"]["gpus"] = 1
    (logdir / "config.json").write_text(json.dumps(record))
    assert test(logdir, test_num_episodes=1, num_actors=5)["frames"] == 400


def test_another_run_is_refused_and_other_flags_resume_only_if_allowed(logdir: Path) -> None:
    before = snapshot(logdir)
    assert "--network was shallow and is deep" in fails(logdir, network="deep")
    assert "--discounting was 0.99 and is 0.5" in fails(logdir, discounting=0.5)
    assert "--use_lstm was False and is True" in fails(logdir, mode="test", use_lstm=True)
    assert "catch5" in fails(logdir, mode="test", level_name="pong")
    assert snapshot(logdir) == before
    resume(logdir, 440, discounting=0.5, allow_changes=True)
    resume(logdir, 480, discounting=0.5)
    first, second = recorded(logdir)["history"]
    frames = "total_environment_frames"
    assert first["frames"] == 400
    assert first["changed"] == {"discounting": [0.99, 0.5], frames: [400, 440]}
    assert second["changed"] == {frames: [440, 480]}
    assert recorded(logdir)["flags"]["discounting"] == 0.5


def test_damaged_or_lost_checkpoints_are_refused_until_the_user_has_decided(logdir: Path) -> None:
    newest = Path(tf.train.latest_checkpoint(str(logdir / "checkpoints")))
    (data,) = newest.parent.glob(f"{newest.name}.data*")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    before = snapshot(logdir)
    message = fails(logdir)
    assert "damaged" in message
    assert newest.name in message
    assert "damaged" in fails(logdir, mode="test")
    assert snapshot(logdir) == before
    data.unlink()  # The line's advice helps.
    Path(f"{newest}.index").unlink()
    resume(logdir, 440)
    assert saved(logdir) == 440

    for path in newest.parent.iterdir():  # The writing of the first was cut off.
        if not path.name.startswith("ckpt-1."):
            path.unlink()  # Even the file that names the newest is gone.
    before = snapshot(logdir)
    assert "logs but no checkpoints" in fails(logdir)
    assert snapshot(logdir) == before
    lines = (logdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (logdir / "metrics.jsonl").write_text(lines[0])
    resume(logdir, 40)
    assert saved(logdir) == 40


def test_the_seed_decides_the_first_weights(tmp_path: Path) -> None:
    train(tmp_path, seed=7, total_environment_frames=40, learning_rate=1e-30)  # This is one batch.
    config = RunDirectory(str(tmp_path)).read_config()
    for seed in (7, 8):
        tf.random.set_seed(seed)
        learner = factory.make_learner(config, factory.make_rollout_spec(config))
        first = np.concatenate([v.numpy().ravel() for v in learner.agent.trainable_variables])
        assert trainer.Checkpoints(tmp_path / "checkpoints", learner=learner).restore()
        saved_ones = [v.numpy().ravel() for v in learner.agent.trainable_variables]
        moved = np.abs(np.concatenate(saved_ones) - first).max()
        assert moved < 1e-20 if seed == 7 else moved > 1e-3  # A bias of 0 moves by about 1e-30.


def test_all_is_saved_while_signals_are_held_back_and_before_actors_are_closed(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = []
    save = trainer.Checkpoints.save

    def spy(self: trainer.Checkpoints) -> str:
        handlers.append(signal.getsignal(signal.SIGTERM))
        return save(self)

    def broken(self: catch.CatchEnvironments) -> None:
        raise ZeroDivisionError("while closing")

    monkeypatch.setattr(trainer.Checkpoints, "save", spy)
    monkeypatch.setattr(catch.CatchEnvironments, "close", broken)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError, match="while closing"):
        resume(logdir)  # No user can fix it, so it keeps its traceback.
    assert saved(logdir) == 800
    assert len(handlers) >= 2
    assert before not in handlers
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_was_learned_is_saved_if_actors_fail_in_an_unforeseen_way(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, receive = itertools.count(), catch.CatchEnvironments.receive

    def breaks(self: catch.CatchEnvironments) -> StepOutput:
        if next(steps) == 100:
            raise ZeroDivisionError
        return receive(self)

    monkeypatch.setattr(catch.CatchEnvironments, "receive", breaks)
    with pytest.raises(ZeroDivisionError):
        resume(logdir, 10**6, checkpoint_seconds=1e9, log_seconds=1e9)
    assert saved(logdir) == metrics(logdir)[-1]["frames"] > 440  # One batch was saved at once.


def test_divergence_and_a_full_disk_end_the_run_with_one_line(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr(trainer.RunLog, "record_batch", mock.Mock(side_effect=full))
        assert "no space left" in fails(logdir, frames=10**6)
    # It is noticed when it is logged, or earlier, if an actor can choose no action any more.
    for log_seconds in (1000, 1e-9):
        every = {"log_seconds": log_seconds, "checkpoint_seconds": log_seconds}
        diverges = {"learning_rate": 1e30, "frames": 10**6, "allow_changes": True}
        assert "diverged" in fails(logdir, **diverges, **every)


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


def test_real_atari_trains_and_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 80)  # Games have 20 agent steps.
    tasks = "pong,crazy_climber"
    train(tmp_path, level_name=tasks, network="shallow", num_actors=4, use_popart=True)
    assert metrics(tmp_path)[-1]["frames"] == 480
    assert saved(tmp_path, SHIFT).shape == (2,)
    episodes = read_log(tmp_path / "episodes.jsonl")
    assert {line["episode_frames"] for line in episodes} == {80}
    assert ",".join(test(tmp_path, test_num_episodes=1)["tasks"]) == tasks

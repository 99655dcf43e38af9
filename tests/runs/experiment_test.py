"""Whole runs of `experiment.main` with tiny settings, in every mode and for every agent."""

import errno
import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.suites import catch
from scalable_agent_popart.suites.atari import emulator as atari_emulator
from scalable_agent_popart.system import hardware
from scalable_agent_popart.training import trainer
from tests.fakes.main_program import run

TASKS = ("catch_0.01", "catch_0.1", "catch_1", "catch_10", "catch_100")
TINY = {
    "level_name": "catch5",
    "num_actors": 10,
    "batch_size": 4,
    "unroll_length": 10,
    "total_environment_frames": 400,
}


def train(logdir: Path, **given: Any) -> None:
    run(**{**TINY, "logdir": str(logdir), **given})


def test(logdir: Path, **given: Any) -> dict[str, Any]:
    """Runs `--mode=test` and returns what it wrote."""
    run(mode="test", logdir=str(logdir), **given)
    return json.loads((logdir / "evaluation.json").read_text())


test.__test__ = False  # type: ignore[attr-defined] - not a test itself.


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def saved(logdir: Path) -> dict[str, np.ndarray]:
    """The variables of the newest checkpoint by name."""
    reader = tf.train.load_checkpoint(str(logdir / "checkpoints"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


FRAMES = "learner/frames/.ATTRIBUTES/VARIABLE_VALUE"
SHIFT = "learner/head/shift/.ATTRIBUTES/VARIABLE_VALUE"


def measures(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes the measurement of types come out like this."""
    monkeypatch.setattr(factory, "_faster_type", lambda network, shape: tf.as_dtype(name))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 400 frames, for `logdir` to copy."""
    logdir = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        measures(monkeypatch, "float32")
        train(logdir, use_popart=True, precision="auto")
    return logdir


@pytest.fixture
def logdir(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(finished_run, tmp_path / "run")


def go_on(logdir: Path, frames: int = 800, **given: Any) -> None:
    """Trains the copied run further."""
    train(logdir, **{"use_popart": True, "total_environment_frames": frames, **given})


def recorded(logdir: Path) -> dict[str, Any]:
    return json.loads((logdir / "config.json").read_text())


def snapshot(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


def fails(**given: Any) -> str:
    """Runs the main program, which must refuse, and returns its one line."""
    with pytest.raises(SystemExit) as exit_info:
        run(**given)
    message = str(exit_info.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def refuses(logdir: Path, **given: Any) -> str:
    """Asks to train the copied run further, which must be refused in one line."""
    same = {**TINY, "logdir": str(logdir), "use_popart": True, "total_environment_frames": 800}
    return fails(**{**same, **given})


@pytest.mark.parametrize(
    "agent",
    [
        {},
        {"multi_head": True, "network": "deep", "reward_clipping": "soft_asymmetric"},
        {"use_popart": True, "use_lstm": True, "reward_clipping": "oar"},
        {
            "use_popart": True,
            "multi_head": True,
            "popart_order": "statistics_first",
            "popart_second_moment_of": "mean",
            "momentum": 0.5,
            "reward_clipping": "abs_one",
        },
    ],
    ids=["impala", "multi-head", "popart", "popart-options"],
)
def test_every_agent_trains_and_is_tested(tmp_path: Path, agent: dict[str, Any]) -> None:
    train(tmp_path, **agent)
    metrics = lines(tmp_path / "metrics.jsonl")
    assert metrics[-1]["frames"] == 400
    for line in metrics:
        assert {"frames", "frames_per_second", "total_loss", "policy_lag"} <= line.keys()
        assert math.isfinite(line["total_loss"])
        assert ("shift" in line) == ("scale" in line) == bool(agent.get("use_popart"))
        if "shift" in line:
            assert tuple(line["shift"]) == tuple(line["scale"]) == TASKS
    episodes = lines(tmp_path / "episodes.jsonl")
    assert episodes
    for line in episodes:
        scale = float(line["task"].removeprefix("catch_"))
        # Raw whatever the clipping.
        assert abs(line["episode_return"]) == pytest.approx(scale)
        assert line["episode_frames"] == 9
        assert 0 < line["frames"] <= 400
    assert list(tmp_path.glob("events.out.tfevents.*"))

    result = test(tmp_path, test_num_episodes=3)
    assert result["frames"] == 400
    assert result["starts"] == "noop"
    assert tuple(result["tasks"]) == TASKS
    for task in result["tasks"].values():
        assert task["episodes"] == len(task["returns"]) == 3
        assert task["mean_return"] == pytest.approx(np.mean(task["returns"]))
    normalised = [task["normalised"] for task in result["tasks"].values()]
    assert result["aggregate"] == pytest.approx(
        {
            "mean": np.mean(normalised),
            "median": np.median(normalised),
            "mean_capped": np.mean(np.minimum(normalised, 100)),
        }
    )


def test_the_same_command_resumes(logdir: Path) -> None:
    assert saved(logdir)[FRAMES] == 400
    episodes = (logdir / "episodes.jsonl").read_text()
    for name in ("metrics.jsonl", "episodes.jsonl"):  # Lines after the checkpoint are cut.
        with open(logdir / name, "a") as log:
            log.write('{"frames": 999999, "task": "catch_1", "episode_return": 1.0}\n{"cut o')
    go_on(logdir)
    after = saved(logdir)
    assert after[FRAMES] == 800
    assert (logdir / "episodes.jsonl").read_text().startswith(episodes)
    frames = [line["frames"] for line in lines(logdir / "metrics.jsonl")]
    assert frames == sorted(set(frames))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert max(line["frames"] for line in lines(logdir / name)) == 800
    # A finished run has nothing left to do, and loses nothing by being asked to: not even what
    # program it was that trained it.
    record = {**recorded(logdir), "git_revision": "older"}
    (logdir / "config.json").write_text(json.dumps(record))
    go_on(logdir)
    again = saved(logdir)
    assert again[FRAMES] == 800
    np.testing.assert_array_equal(again[SHIFT], after[SHIFT])
    assert recorded(logdir)["git_revision"] == "older"


def test_the_type_that_was_measured_is_recorded_and_kept(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(logdir)
    assert record["flags"]["precision"] == "float32"
    assert record["device"] == hardware.device()
    assert {line["precision"] for line in lines(logdir / "metrics.jsonl")} == {"float32"}
    # A run that was recorded as auto goes on in the type that is measured then, and keeps it.
    record["flags"]["precision"] = "auto"
    (logdir / "config.json").write_text(json.dumps(record))
    measures(monkeypatch, "bfloat16")
    go_on(logdir)
    measures(monkeypatch, "float32")  # As another machine would.
    assert test(logdir, test_num_episodes=1)["precision"] == "bfloat16"
    assert test(logdir, test_num_episodes=1, precision="float32")["precision"] == "float32"
    go_on(logdir, 1200, precision="auto")
    assert recorded(logdir)["flags"]["precision"] == "bfloat16"
    assert lines(logdir / "metrics.jsonl")[-1]["precision"] == "bfloat16"
    assert "--precision was bfloat16 and is float32" in refuses(logdir, precision="float32")


def test_a_run_goes_on_with_other_flags_only_if_that_is_allowed_and_records_it(
    logdir: Path,
) -> None:
    before = snapshot(logdir)
    for name, then, now in (("discounting", 0.99, 0.5), ("batch_size", 4, 8), ("seed", 1, 2)):
        message = refuses(logdir, **{name: now})
        assert f"--{name} was {then} and is {now}" in message
        assert "--allow_changes" in message
    assert snapshot(logdir) == before
    go_on(logdir, discounting=0.5, allow_changes=True)
    go_on(logdir, 1200, discounting=0.5)
    first, second = recorded(logdir)["history"]
    assert first["frames"] == 400
    frames = "total_environment_frames"
    assert first["changed"] == {"discounting": [0.99, 0.5], frames: [400, 800]}
    assert second["changed"] == {frames: [800, 1200]}
    assert recorded(logdir)["flags"]["discounting"] == 0.5


def test_a_run_can_be_tested_on_some_of_its_levels(logdir: Path) -> None:
    result = test(logdir, level_name="catch_100,catch_1", test_num_episodes=2)
    assert list(result["tasks"]) == ["catch_100", "catch_1"]


def test_another_architecture_or_suite_is_refused_with_the_difference(logdir: Path) -> None:
    before = snapshot(logdir)
    message = refuses(logdir, network="deep", use_popart=False)
    assert "--network was shallow and is deep" in message
    assert "--use_popart was True and is False" in message
    assert "--level_name was catch5 and is pong" in refuses(logdir, level_name="pong")
    tested = {"mode": "test", "logdir": str(logdir)}
    assert "--use_lstm was False and is True" in fails(**tested, use_lstm=True)
    assert "catch5" in fails(**tested, level_name="pong")
    assert snapshot(logdir) == before


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_serves(
    finished_run: Path, tmp_path: Path
) -> None:
    newest = Path(tf.train.latest_checkpoint(str(finished_run / "checkpoints"))).name
    for kind, remains in (("index", 0.5), ("data", 0.5), ("data", 0)):
        logdir = shutil.copytree(finished_run, tmp_path / f"{kind}-{remains}")
        (victim,) = (logdir / "checkpoints").glob(f"{newest}.{kind}*")
        content = victim.read_bytes()
        victim.unlink()
        if remains:
            victim.write_bytes(content[: len(content) // 2])
        before = snapshot(logdir)
        message = refuses(logdir)
        assert "damaged" in message
        assert newest in message
        assert "damaged" in fails(mode="test", logdir=str(logdir))
        assert snapshot(logdir) == before
    # Doing what the line says helps.
    for path in (logdir / "checkpoints").glob(f"{newest}.*"):
        path.unlink()
    go_on(logdir)
    assert saved(logdir)[FRAMES] == 800


def test_a_run_without_checkpoints_begins_anew_only_if_no_logs_are_lost(logdir: Path) -> None:
    checkpoints = logdir / "checkpoints"
    for path in checkpoints.iterdir():  # The writing of the first was cut off.
        if not path.name.startswith("ckpt-1."):
            path.unlink()  # In particular the file that names the newest.
    before = snapshot(logdir)
    assert "logs but no checkpoints" in refuses(logdir)
    assert snapshot(logdir) == before
    metrics = (logdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (logdir / "metrics.jsonl").write_text(metrics[0])
    go_on(logdir, 400)
    assert saved(logdir)[FRAMES] == 400


def test_the_seed_decides_the_first_weights(tmp_path: Path) -> None:
    train(tmp_path, seed=7, total_environment_frames=40, learning_rate=1e-30)  # One batch.
    config = trainer.RunDirectory(str(tmp_path)).read_config()
    for seed in (7, 8):
        tf.random.set_seed(seed)
        learner = factory.make_learner(config, factory.make_rollout_spec(config))
        before = [variable.numpy() for variable in learner.agent.trainable_variables]
        assert trainer.Checkpoints(tmp_path / "checkpoints", learner=learner).restore()
        pairs = zip(learner.agent.trainable_variables, before, strict=True)
        moved = max(np.abs(variable - value).max() for variable, value in pairs)
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
        go_on(logdir)
    assert saved(logdir)[FRAMES] == 800
    assert len(handlers) >= 2
    assert before not in handlers
    assert signal.getsignal(signal.SIGTERM) == before


def test_divergence_and_a_full_disk_end_the_run_with_one_line(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopeless = {"learning_rate": 1e30, "log_seconds": 1e-9, "allow_changes": True}
    assert "diverged" in refuses(logdir, **hopeless)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trainer.RunLog, "record_batch", full)
    assert "no space left" in refuses(logdir, allow_changes=True)


def test_an_emulators_error_keeps_its_traceback(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("in the emulator")

    monkeypatch.setattr(factory, "make_environments", broken)
    with pytest.raises(ZeroDivisionError, match="in the emulator"):
        go_on(logdir)


def test_real_atari_trains_and_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 80)  # Games of 20 agent steps.
    tasks = ["pong", "skiing", "crazy_climber"]
    train(
        tmp_path,
        level_name=",".join(tasks),
        use_popart=True,
        num_actors=6,
        total_environment_frames=4 * 320,
    )
    assert lines(tmp_path / "metrics.jsonl")[-1]["frames"] == 1280
    assert saved(tmp_path)[SHIFT].shape == (3,)
    assert {line["episode_frames"] for line in lines(tmp_path / "episodes.jsonl")} == {80}
    assert list(test(tmp_path, test_num_episodes=1)["tasks"]) == tasks

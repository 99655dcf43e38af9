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


@pytest.mark.parametrize(
    "agent",
    [
        {},
        {"multi_head": True, "network": "deep", "reward_clipping": "abs_one"},
        {"use_popart": True, "use_lstm": True, "reward_clipping": "oar"},
        {"use_popart": True, "multi_head": True, "popart_order": "statistics_first"},
        {"use_popart": True, "popart_second_moment_of": "mean", "momentum": 0.5},
        {"use_lstm": True, "network": "deep", "reward_clipping": "soft_asymmetric"},
    ],
    ids=lambda agent: "-".join(f"{k}={v}" for k, v in agent.items()) or "impala",
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


def test_the_same_command_resumes(tmp_path: Path) -> None:
    train(tmp_path, use_popart=True)
    before = saved(tmp_path)
    episodes = (tmp_path / "episodes.jsonl").read_text()
    train(tmp_path, use_popart=True, total_environment_frames=800)
    assert (before[FRAMES], saved(tmp_path)[FRAMES]) == (400, 800)
    assert (tmp_path / "episodes.jsonl").read_text().startswith(episodes)
    frames = [line["frames"] for line in lines(tmp_path / "metrics.jsonl")]
    assert frames == sorted(set(frames))
    # A finished run has nothing left to do, and loses nothing by being asked to: not even what
    # program it was that trained it.
    record = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**record, "git_revision": "older"}))
    train(tmp_path, use_popart=True, total_environment_frames=800)
    after = saved(tmp_path)
    assert after[FRAMES] == 800
    np.testing.assert_array_equal(after[SHIFT], saved(tmp_path)[SHIFT])
    assert json.loads((tmp_path / "config.json").read_text())["git_revision"] == "older"


def measures(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes the measurement of types come out like this."""
    monkeypatch.setattr(factory, "_faster_type", lambda network, shape: tf.as_dtype(name))


def recorded(logdir: Path) -> dict[str, Any]:
    return json.loads((logdir / "config.json").read_text())


def test_the_type_that_was_measured_is_recorded_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measures(monkeypatch, "bfloat16")
    train(tmp_path, precision="auto")
    record = recorded(tmp_path)
    assert record["flags"]["precision"] == "bfloat16"
    assert record["device"] == hardware.device()
    assert {line["precision"] for line in lines(tmp_path / "metrics.jsonl")} == {"bfloat16"}
    measures(monkeypatch, "float32")  # As another machine would.
    assert test(tmp_path, test_num_episodes=1)["precision"] == "bfloat16"
    assert test(tmp_path, test_num_episodes=1, precision="float32")["precision"] == "float32"
    for frames, given in ((800, {"precision": "auto"}), (1200, {}), (1600, {})):
        train(tmp_path, total_environment_frames=frames, **given)
    assert {line["precision"] for line in lines(tmp_path / "metrics.jsonl")} == {"bfloat16"}
    assert recorded(tmp_path)["flags"]["precision"] == "bfloat16"
    again = {**TINY, "logdir": str(tmp_path), "total_environment_frames": 2000}
    message = fails(capsys, **again, precision="float32")
    assert "--precision was bfloat16 and is float32" in message


def test_a_run_that_was_recorded_as_auto_goes_on_in_what_is_measured_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path)
    record = recorded(tmp_path)
    record["flags"]["precision"] = "auto"
    (tmp_path / "config.json").write_text(json.dumps(record))
    measures(monkeypatch, "bfloat16")
    train(tmp_path, total_environment_frames=800)
    assert recorded(tmp_path)["flags"]["precision"] == "bfloat16"
    assert lines(tmp_path / "metrics.jsonl")[-1]["precision"] == "bfloat16"


def test_a_run_goes_on_with_other_flags_only_if_that_is_allowed_and_then_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path)
    before = snapshot(tmp_path)
    again = {**TINY, "logdir": str(tmp_path), "total_environment_frames": 800}
    for name, then, now in (("discounting", 0.99, 0.5), ("batch_size", 4, 8), ("seed", 1, 2)):
        message = fails(capsys, **{**again, name: now})
        assert f"--{name} was {then} and is {now}" in message
        assert "--allow_changes" in message
    assert snapshot(tmp_path) == before
    train(tmp_path, total_environment_frames=800, discounting=0.5, allow_changes=True)
    train(tmp_path, total_environment_frames=1200, discounting=0.5)
    first, second = recorded(tmp_path)["history"]
    assert first["frames"] == 400
    assert first["changed"] == {
        "discounting": [0.99, 0.5],
        "total_environment_frames": [400, 800],
    }
    assert second["changed"] == {"total_environment_frames": [800, 1200]}
    assert recorded(tmp_path)["flags"]["discounting"] == 0.5


def test_logs_beyond_the_checkpoint_are_cut_on_resume(tmp_path: Path) -> None:
    train(tmp_path)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        with open(tmp_path / name, "a") as log:
            log.write('{"frames": 999999, "task": "catch_1", "episode_return": 1.0}\n{"cut o')
    train(tmp_path, total_environment_frames=800)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert max(line["frames"] for line in lines(tmp_path / name)) == 800


def test_a_run_can_be_tested_on_some_of_its_levels(tmp_path: Path) -> None:
    train(tmp_path, use_popart=True)
    result = test(tmp_path, level_name="catch_100,catch_1", test_num_episodes=2)
    assert list(result["tasks"]) == ["catch_100", "catch_1"]


def fails(capsys: pytest.CaptureFixture[str], **given: Any) -> str:
    """Runs the main program, which must refuse, and returns its one line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        run(**given)
    message = str(exit_info.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def snapshot(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


def test_another_architecture_or_suite_is_refused_with_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path)
    before = snapshot(tmp_path)
    same = {**TINY, "logdir": str(tmp_path)}
    message = fails(capsys, **{**same, "network": "deep", "use_popart": True})
    assert "--network was shallow and is deep" in message
    assert "--use_popart was False and is True" in message
    message = fails(capsys, **{**same, "level_name": "pong"})
    assert "--level_name was catch5 and is pong" in message
    message = fails(capsys, mode="test", logdir=str(tmp_path), use_lstm=True)
    assert "--use_lstm was False and is True" in message
    message = fails(capsys, mode="test", logdir=str(tmp_path), level_name="pong")
    assert "catch5" in message
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", ["data", "index", "data-missing"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    train(tmp_path, use_popart=True)
    checkpoints = tmp_path / "checkpoints"
    newest = Path(tf.train.latest_checkpoint(str(checkpoints))).name
    victim = next(checkpoints.glob(f"{newest}.{kind.split('-')[0]}*"))
    if kind == "data-missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    before = snapshot(tmp_path)
    again = {**TINY, "logdir": str(tmp_path), "use_popart": True}
    message = fails(capsys, **{**again, "total_environment_frames": 800})
    assert "damaged" in message
    assert newest in message
    assert "damaged" in fails(capsys, mode="test", logdir=str(tmp_path))
    assert snapshot(tmp_path) == before

    # Doing what the line says helps.
    for path in checkpoints.glob(f"{newest}.*"):
        path.unlink()
    train(tmp_path, use_popart=True, total_environment_frames=800)
    assert saved(tmp_path)[FRAMES] == 800


def test_a_first_checkpoint_that_was_cut_off_does_not_stop_the_run(tmp_path: Path) -> None:
    train(tmp_path, total_environment_frames=40)
    checkpoints = tmp_path / "checkpoints"
    for path in checkpoints.iterdir():
        if not path.name.startswith("ckpt-1."):
            path.unlink()  # In particular the file that names the newest.
    train(tmp_path)
    assert saved(tmp_path)[FRAMES] == 400


def test_a_run_whose_checkpoints_are_gone_keeps_its_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where an archive of logs was unpacked."""
    train(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    before = snapshot(tmp_path)
    assert "logs but no checkpoints" in fails(capsys, **TINY, logdir=str(tmp_path))
    assert snapshot(tmp_path) == before


def test_the_seed_decides_the_first_weights(tmp_path: Path) -> None:
    one_batch = {"total_environment_frames": 40, "learning_rate": 1e-30}
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        train(tmp_path / name, seed=seed, **one_batch)
    weights = {
        name: [v for key, v in sorted(saved(tmp_path / name).items()) if "_parameters/" in key]
        for name in "abc"
    }
    assert weights["a"]
    for a, b in zip(weights["a"], weights["b"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-20)  # A bias of 0 moves by about 1e-30.
    pairs = zip(weights["a"], weights["c"], strict=True)
    assert max(np.abs(a - c).max() for a, c in pairs) > 1e-3


def test_the_last_checkpoint_is_written_while_signals_are_still_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = []
    save = trainer.Checkpoints.save

    def note(self: trainer.Checkpoints) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        save(self)

    monkeypatch.setattr(trainer.Checkpoints, "save", note)
    before = signal.getsignal(signal.SIGTERM)
    train(tmp_path)
    assert len(handlers) >= 2
    assert before not in handlers
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_error_while_closing_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: catch.CatchEnvironments) -> None:
        raise ZeroDivisionError("while closing")

    monkeypatch.setattr(catch.CatchEnvironments, "close", broken)
    with pytest.raises(ZeroDivisionError, match="while closing"):
        train(tmp_path)
    assert saved(tmp_path)[FRAMES] == 400  # Saved all the same.


def test_divergence_ends_the_run_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = fails(
        capsys, **{**TINY, "logdir": str(tmp_path), "learning_rate": 1e30, "log_seconds": 1e-9}
    )
    assert "diverged" in message


def test_a_full_disk_ends_the_run_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trainer.RunLog, "record_batch", full)
    assert "no space left" in fails(capsys, **{**TINY, "logdir": str(tmp_path)})


def test_an_emulators_error_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("in the emulator")

    monkeypatch.setattr(trainer.factory, "make_environments", broken)
    with pytest.raises(ZeroDivisionError, match="in the emulator"):
        train(tmp_path)


@pytest.mark.parametrize("level_name", ["pong", "pong,skiing,crazy_climber"])
def test_real_atari_trains_and_is_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level_name: str
) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 80)  # Games of 20 agent steps.
    tasks = level_name.split(",")
    train(
        tmp_path,
        level_name=level_name,
        use_popart=True,
        num_actors=2 * len(tasks),
        total_environment_frames=4 * 320,
    )
    assert lines(tmp_path / "metrics.jsonl")[-1]["frames"] == 1280
    assert saved(tmp_path)[SHIFT].shape == (len(tasks),)
    assert {line["episode_frames"] for line in lines(tmp_path / "episodes.jsonl")} == {80}
    result = test(tmp_path, test_num_episodes=1)
    assert list(result["tasks"]) == tasks

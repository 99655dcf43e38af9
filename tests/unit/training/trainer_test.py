"""Training is handed its actors: what it saves and logs, whatever these do."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import rollouts
from scalable_agent_popart.errors import FAILS_AGAIN, DivergenceError, UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.checkpoints import Checkpoints, saved_frames
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system.program import exit_code
from scalable_agent_popart.training import trainer
from scalable_agent_popart.training.actors import Actors
from tests.fakes.programs import metrics
from tests.fakes.small_learner import with_rewards

_FRAMES_PER_BATCH = 2 * 5
_SMALL = {"level_name": "catch_1,catch_10", "network": "shallow", "batch_size": 2}
_SMALL |= {"unroll_length": 5, "num_actors": 2, "log_seconds": 1e-9}


class _Actors(Actors):
    """Hands on batches of noise, whose rewards `change` may replace; `None` is no batch yet."""

    def __init__(self, config: Config, spec: Rollout, learner: Learner, change: Callable):
        super().__init__(config, spec, learner)
        self._change, self._random = change, np.random.default_rng(0)
        self._spec = rollouts.batch_spec(spec, config.batch_size)
        self.num_batches, self.published = 0, [int(learner.num_updates)]

    def next_batch(self) -> Rollout | None:
        batch = tf.nest.map_structure(self._noise, self._spec)
        self.num_batches += 1
        return self._change(self.num_batches, batch)

    def _noise(self, leaf: tf.TensorSpec) -> tf.Tensor:
        values = self._random.integers(2, size=leaf.shape)
        return tf.constant(values.astype(leaf.dtype.as_numpy_dtype))

    def describe_start(self) -> str:
        return "waiting"

    def publish(self, version: int) -> None:
        self.published.append(version)


class _Parts(trainer.Parts):
    def __init__(self, change: Callable):
        super().__init__()
        self._change = change

    def make_actors(self, config: Config, spec: Rollout, learner: Learner) -> Actors:
        self.actors = _Actors(config, spec, learner, self._change)
        return self.actors


def _train(logdir: Path, change: Callable = lambda number, batch: batch, **flags: Any) -> _Actors:
    """Trains, by default on four batches of noise, and returns the actors."""
    frames = {"total_environment_frames": 4 * _FRAMES_PER_BATCH}
    config = Config.from_flags({**_SMALL, **frames, "logdir": str(logdir), **flags})
    parts = _Parts(change)
    assert trainer.train(config, parts=parts, show_progress=False) is None
    return parts.actors


def _frames(logdir: Path) -> tuple[int, int | None]:
    """Returns the frames of the log's last line and of the newest checkpoint."""
    return metrics(logdir)[-1]["frames"], saved_frames(logdir / "checkpoints")


def test_each_batch_is_learned_from_once_and_weights_reach_the_actors_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    constant = {"learning_rate_schedule": "constant"}
    actors = _train(tmp_path, lambda number, batch: batch if number % 2 else None, **constant)
    assert actors.published == [0, 1, 2, 3, 4]
    assert actors.num_batches == 2 * 4 - 1
    assert _frames(tmp_path) == (40, 40)
    actors = _train(tmp_path, total_environment_frames=6 * _FRAMES_PER_BATCH, **constant)
    assert "learning rate" not in caplog.text, "more frames change a linear one alone"
    assert actors.published == [4, 5, 6]
    assert _frames(tmp_path) == (60, 60)


def test_what_was_learned_is_saved_before_an_actors_error_is_raised(tmp_path: Path) -> None:
    def fail(number: int, batch: Rollout) -> Rollout:
        if number == 3:
            raise OSError("the emulator is gone")
        return batch

    with pytest.raises(OSError, match="the emulator is gone"):
        _train(tmp_path, fail)
    assert _frames(tmp_path) == (20, 20)


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_an_update_that_is_not_finite_is_never_saved(tmp_path: Path, seconds: float) -> None:
    """It is noticed when a record is due, or else while actors wait for finite weights."""

    def diverge(number: int, batch: Rollout) -> Rollout | None:
        assert number < 9, "It would wait for ever."
        reward = batch.env_outputs.reward * (np.inf if number == 2 else 1.0)
        return with_rewards(batch, reward) if number <= 2 else None

    with pytest.raises(DivergenceError, match=r"20 .*total_loss .*nan") as error:
        _train(tmp_path, diverge, log_seconds=seconds, checkpoint_seconds=seconds)
    assert exit_code(error.value) == FAILS_AGAIN
    assert _frames(tmp_path) == (10, 10)


def test_parts_that_cannot_be_prepared_end_the_run_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Parts, "prepare", mock.Mock(side_effect=UserError("bad keys")))
    with pytest.raises(UserError, match="bad keys"):
        _train(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_norms_are_of_the_weights_after_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def norms(learner: Learner, batch: Rollout, tasks: Any) -> dict[str, dict[str, float]]:
        return {"policy_gradient_norm": {tasks[0]: float(learner.num_updates)}}

    monkeypatch.setattr(Learner, "gradient_norms", norms)
    # Records are made for checkpoints as well, and are no less complete for that.
    _train(tmp_path, log_seconds=1e9, checkpoint_seconds=1e-9, log_task_gradients=True)
    lines = metrics(tmp_path)
    assert [line["policy_gradient_norm"]["catch_1"] for line in lines] == [1, 2, 3, 4]


def test_a_record_averages_updates_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Learner.update

    def updated(learner: Learner, batch: Rollout) -> dict[str, tf.Tensor]:
        number = tf.constant(float(learner.num_updates))
        return {**update(learner, batch), "value_loss": number}

    monkeypatch.setattr(Learner, "update", updated)
    _train(tmp_path, log_seconds=1e9)
    assert [line["value_loss"] for line in metrics(tmp_path)] == [0, 2]  # The mean of 1, 2 and 3.


def test_seed_and_batches_decide_the_updates(tmp_path: Path) -> None:
    losses = []
    for i, seed in enumerate((7, 7, 8)):
        _train(tmp_path / str(i), use_popart=True, reward_clipping="none", seed=seed)
        losses.append([line["total_loss"] for line in metrics(tmp_path / str(i))])
    first, same, other = losses
    assert first == same
    assert len({*first, *other}) == 2 * 4


def test_all_is_saved_while_signals_are_held_back_and_before_actors_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, handlers = signal.getsignal(signal.SIGTERM), []
    save = Checkpoints.save

    def spy(checkpoints: Checkpoints) -> str:
        handlers.append(signal.getsignal(signal.SIGTERM))
        return save(checkpoints)

    monkeypatch.setattr(Checkpoints, "save", spy)
    monkeypatch.setattr(_Actors, "raise_error", mock.Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):  # Closing raises what a thread has raised.
        _train(tmp_path)
    assert _frames(tmp_path) == (40, 40)
    assert len(handlers) >= 2
    assert before not in handlers
    assert signal.getsignal(signal.SIGTERM) == before

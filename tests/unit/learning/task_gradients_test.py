"""What each task adds to a batch's gradients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.config import Config
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.learning.task_gradients import norms_by_task
from scalable_agent_popart.rollouts import Rollout, select
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.training import trainer
from tests.fakes.small_learner import (
    PIXEL_CONTROL_SHAPE,
    SHAPE,
    expected_losses,
    make_batch,
    make_learner,
    snapshot,
)

_TASKS = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    "agent",
    [
        {"num_tasks": 1, "normalise": False},
        {"popart_order": "statistics_first"},
        {"controls_pixels": True},
    ],
    ids=["impala", "statistics_first", "pixel_control"],
)
def test_norms_are_those_of_the_tasks_own_gradients(agent: dict[str, Any]) -> None:
    learner = make_learner(**agent)
    batch = make_batch(shape=PIXEL_CONTROL_SHAPE if learner.q_head else SHAPE)
    before = snapshot(learner.variables)
    found = norms_by_task(learner, _TASKS, batch)
    assert list(found) == ["policy_gradient_norm", "total_gradient_norm"]
    assert all(list(by_task) == ["a", "c", "e"] for by_task in found.values())
    weights = learner.agent.trainable_variables
    for name, ids in (("a", [0]), ("c", [1, 2]), ("e", [3])):
        with tf.GradientTape(persistent=True) as tape:
            losses, _ = expected_losses(learner, select(batch, np.array(ids)))
            total = tf.add_n(list(losses.values()))
        for norm, loss in zip(found.values(), (losses["policy_gradient_loss"], total), strict=True):
            expected = tf.linalg.global_norm(tape.gradient(loss, weights))
            np.testing.assert_allclose(norm[name], expected, rtol=1e-4)
    for variable, value in zip(learner.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_run_measures_with_the_weights_that_the_update_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"level_name": "catch_1,catch_10", "log_task_gradients": True, "logdir": str(tmp_path)}
    sizes = {"total_environment_frames": 400, "num_actors": 4, "batch_size": 4, "unroll_length": 5}
    # Records are made for checkpoints as well, and are no less complete for that.
    often = {"log_seconds": 1000.0, "checkpoint_seconds": 1e-6, "network": "shallow"}

    def tell_updates(learner: Learner, tasks: Any, batch: Rollout) -> dict[str, dict[str, float]]:
        assert set(batch.task_id.numpy()) <= set(range(len(tasks)))
        return {"policy_gradient_norm": {tasks[0]: float(learner.num_updates)}}

    monkeypatch.setattr(trainer, "norms_by_task", tell_updates)
    config = Config.from_flags({**flags, **sizes, **often})
    trainer.train(config, show_progress=False)
    lines = [json.loads(line) for line in RunDirectory(str(tmp_path)).metrics.open()]
    measured = [line["policy_gradient_norm"][config.suite.tasks[0]] for line in lines]
    assert measured == list(range(len(lines))) == list(range(20))

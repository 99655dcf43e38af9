"""What each task adds to a batch's gradients."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.config import Config
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.learning.task_gradients import TaskGradients
from scalable_agent_popart.rollouts import Rollout, select
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.training import trainer
from tests.fakes.small_learner import (
    NUM_ACTIONS,
    UNROLL_LENGTH,
    bellman_returns,
    make_batch,
    make_learner,
    on_policy,
    snapshot,
    unroll,
    values,
    with_rewards,
)

_TASKS = ("a", "b", "c", "d", "e")


def _measure(learner: Learner, batch: Rollout) -> Mapping[str, Mapping[str, float]]:
    return TaskGradients(learner, _TASKS).measure(batch)


def _expected(learner: Learner, batch: Rollout, task: int) -> dict[str, float]:
    """Lengths of the gradients over a task's rollouts, of an on-policy batch.

    Of sum -A log pi, and of that with 0.5 sum 1/2 ((v_s - mu) / sigma - n)^2 and
    0.01 sum pi log pi.
    """
    one_head = learner.head.num_tasks == 1
    heads = batch._replace(task_id=tf.zeros_like(batch.task_id)) if one_head else batch
    value = np.float64(values(learner, heads).unnormalised)
    targets = bellman_returns(learner, batch, value)
    shift, scale = (v.numpy()[heads.task_id] for v in (learner.head.shift, learner.head.scale))
    own = np.float32(batch.task_id.numpy() == task)  # [B]
    advantages = np.float32(own * (targets - value[:-1]) / scale)
    normalised_targets = np.float32((targets - shift) / scale)
    taken = tf.one_hot(batch.agent_outputs.action[1:], NUM_ACTIONS)
    with tf.GradientTape(persistent=True) as tape:
        log_probs = tf.nn.log_softmax(unroll(learner, batch).policy_logits[:-1])
        policy = -tf.reduce_sum(advantages[..., np.newaxis] * taken * log_probs)
        errors = normalised_targets - values(learner, heads).normalised[:-1]
        squares = tf.reduce_sum(own * errors**2)
        negative_entropy = tf.reduce_sum(own * tf.reduce_sum(tf.exp(log_probs) * log_probs, -1))
        total = policy + 0.25 * squares + 0.01 * negative_entropy
    lengths = {}
    for name, loss in (("policy_gradient_norm", policy), ("total_gradient_norm", total)):
        gradients = tape.gradient(loss, learner.agent.trainable_variables)
        lengths[name] = float(np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in gradients)))
    return lengths


@pytest.mark.parametrize(
    "agent",
    [
        {"num_tasks": 1, "normalise": False},
        {"normalise": False},
        {},
        {"popart_order": "statistics_first"},
    ],
    ids=["impala", "multihead", "popart", "statistics_first"],
)
def test_norms_are_those_of_the_tasks_own_gradients(agent: dict[str, Any]) -> None:
    learner = make_learner(**agent)
    batch = on_policy(learner, make_batch())
    expected = {_TASKS[task]: _expected(learner, batch, task) for task in (0, 2, 4)}
    found = _measure(learner, batch)
    for loss in ("policy_gradient_norm", "total_gradient_norm"):
        assert list(found[loss]) == ["a", "c", "e"]
        for name, norms in expected.items():
            np.testing.assert_allclose(found[loss][name], norms[loss], rtol=1e-4)


def test_measuring_changes_nothing() -> None:
    learner = make_learner()
    before = snapshot(learner.variables)
    _measure(learner, make_batch())
    for variable, value in zip(learner.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_where_nothing_is_to_be_learned_there_is_no_gradient() -> None:
    learner = make_learner(normalise=False)
    learner.head.weights.assign(tf.zeros_like(learner.head.weights))
    learner.head.bias.assign(tf.zeros_like(learner.head.bias))
    zeros = np.zeros((UNROLL_LENGTH + 1, 4), np.float32)
    found = _measure(learner, with_rewards(make_batch(), zeros))
    assert found["policy_gradient_norm"] == {"a": 0.0, "c": 0.0, "e": 0.0}


def test_only_with_popart_is_a_task_no_louder_for_larger_rewards() -> None:
    """Values, rewards and statistics of a task times 100: with them its advantages."""
    for normalise, factor in ((True, 1.0), (False, 100.0)):
        learner = make_learner(normalise=normalise)
        batch = make_batch((0, 2, 2, 4))
        quiet = _measure(learner, batch)
        _times_100(learner, task=2, normalise=normalise)
        rewards = batch.env_outputs.reward.numpy()  # At least one in size, so seen alike clipped.
        rewards[:, 1:3] *= 100
        loud = _measure(learner, with_rewards(batch, rewards))
        for loss in ("policy_gradient_norm", "total_gradient_norm"):
            assert loud[loss]["a"] == pytest.approx(quiet[loss]["a"], rel=1e-3)
        policy, total = (
            loud[loss]["c"] / quiet[loss]["c"]
            for loss in ("policy_gradient_norm", "total_gradient_norm")
        )
        assert policy == pytest.approx(factor, rel=1e-3)
        # Without it errors of values count by their squares.
        assert total == pytest.approx(1.0, rel=1e-3) if normalise else total > 10 * factor


def _times_100(learner: Learner, task: int, normalise: bool) -> None:
    """Makes the values of a task a hundred times as large."""
    head = learner.head
    if normalise:
        for variable, factor in ((head.shift, 100), (head.second_moment, 100**2)):
            value = variable.numpy()
            value[task] *= factor
            variable.assign(value)
        return
    weights, bias = head.weights.numpy(), head.bias.numpy()
    place = list(weights.shape).index(len(_TASKS))
    weights[(slice(None),) * place + (task,)] *= 100
    bias[task] *= 100
    head.weights.assign(weights)
    head.bias.assign(bias)


def test_a_run_measures_with_the_weights_that_the_update_meets(tmp_path: Path) -> None:
    flags = {"level_name": "catch_1,catch_10", "log_task_gradients": True, "logdir": str(tmp_path)}
    sizes = {"total_environment_frames": 3000, "num_actors": 4, "batch_size": 4}
    # Records are made for checkpoints as well, and are no less complete for that.
    often = {"log_seconds": 1000.0, "checkpoint_seconds": 1e-6}
    expected: list[Mapping[str, Mapping[str, float]]] = []

    class Watched(trainer.LocalActors):
        """Measures each batch before the learner has it."""

        def __init__(self, config: Config, spec: Rollout, learner: Learner):
            super().__init__(config, spec, learner)
            self._measure = TaskGradients(learner, config.suite.tasks).measure

        def next_batch(self) -> Rollout | None:
            batch = super().next_batch()
            if batch is not None:
                expected.append(self._measure(batch))
            return batch

    config = Config.from_flags({**flags, **sizes, **often})
    parts = trainer.Parts()
    parts.make_actors = Watched  # type: ignore[method-assign]
    trainer.train(config, parts=parts, show_progress=False)
    lines = [json.loads(line) for line in RunDirectory(str(tmp_path)).metrics.open()]
    assert len(lines) == len(expected) > 5
    for line, measured in zip(lines, expected, strict=True):
        for name, by_task in measured.items():
            assert line[name] == pytest.approx(by_task, rel=1e-5, abs=1e-7)


def test_rollouts_are_selected_whole() -> None:
    batch = make_batch(use_lstm=True)
    some = select(batch, np.array([2, 0]))
    np.testing.assert_array_equal(some.task_id, [2, 0])
    np.testing.assert_array_equal(some.policy_version, [0, 0])
    for leaf, chosen in zip(
        tf.nest.flatten((batch.env_outputs, batch.agent_outputs)),
        tf.nest.flatten((some.env_outputs, some.agent_outputs)),
        strict=True,
    ):
        np.testing.assert_array_equal(chosen, leaf.numpy()[:, [2, 0]])
    for leaf, chosen in zip(batch.agent_state, some.agent_state, strict=True):
        np.testing.assert_array_equal(chosen, leaf.numpy()[[2, 0]])

"""The learner's update: time alignment, losses, order of its steps, and what it leaves alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from environments import ArraySpec
from scalable_agent_popart import rollouts
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.learning.learner import Learner
from tests.fakes.small_learner import (
    BATCH_SIZE,
    EPS,
    NUM_ACTIONS,
    SETTINGS,
    SHAPE,
    UNROLL_LENGTH,
    bellman_returns,
    build_learner,
    float64_softmax,
    make_batch,
    make_learner,
    on_policy,
    restore,
    snapshot,
    unroll,
    values,
    with_rewards,
)


def test_an_update_advances_frames_and_version() -> None:
    learner = make_learner()
    for i in range(3):
        assert (learner.frames.numpy(), learner.num_updates.numpy()) == (i * 5 * 4 * 4, i)
        learner.update(make_batch(seed=i))
    assert learner.frames.dtype == learner.num_updates.dtype == tf.int64


def test_the_update_is_traced_once_and_creates_no_variable() -> None:
    learner = make_learner()
    references = [variable.ref() for variable in learner.variables]
    for i, task_ids in enumerate([(0, 1, 2, 3), (4, 4, 4, 4), (0, 2, 2, 4)]):
        learner.update(make_batch(task_ids, seed=i))
    assert [variable.ref() for variable in learner.variables] == references
    assert learner.num_traces == 1


def test_the_learning_rate_falls_linearly_to_zero() -> None:
    learner = make_learner()
    for frames, expected in [(0, 0.01), (250, 0.0075), (990, 0.0001), (1000, 0.0), (1500, 0.0)]:
        learner.frames.assign(frames)
        np.testing.assert_allclose(learner.learning_rate(), expected, rtol=4 * EPS, atol=1e-9)


def test_an_update_uses_the_annealed_learning_rate() -> None:
    learner = make_learner(normalise=False)
    batch = make_batch()
    before, bias = snapshot(learner.variables), learner.head.bias.numpy()
    changes = []
    for frames in (0, 750, 1000):
        restore(learner.variables, before)
        learner.frames.assign(frames)
        metrics = learner.update(batch)
        rate = 0.01 * (1 - frames / 1000)
        np.testing.assert_allclose(metrics["learning_rate"], rate, rtol=4 * EPS)
        changes.append(learner.head.bias.numpy() - bias)
    np.testing.assert_allclose(changes[1], changes[0] / 4, rtol=0, atol=4 * EPS)
    assert np.abs(changes[0]).max() > 1e-3
    assert not changes[2].any()


def test_policy_lag_counts_updates_since_the_policy_acted() -> None:
    learner = make_learner()
    learner.num_updates.assign(7)
    versions = tf.constant([7, 6, 4, 1], tf.int64)
    metrics = learner.update(make_batch()._replace(policy_version=versions))
    assert metrics["policy_lag"] == (0 + 1 + 3 + 6) / 4


def test_targets_are_bellman_returns_of_the_rewards_that_followed() -> None:
    learner = make_learner()
    batch = on_policy(learner, make_batch())
    unnormalised = values(learner, batch).unnormalised
    returns = learner._vtrace(batch, unroll(learner, batch).policy_logits, unnormalised)
    np.testing.assert_allclose(returns.log_rhos, np.zeros((5, 4)), rtol=0, atol=4 * EPS)
    expected = bellman_returns(learner, batch, unnormalised.numpy())
    np.testing.assert_allclose(returns.vs, expected, rtol=0, atol=64 * EPS)
    next_targets = np.concatenate([expected[1:], unnormalised[-1:]])
    discounts = 0.9 * ~batch.env_outputs.done.numpy()[1:]
    advantages = batch.env_outputs.reward.numpy()[1:] + discounts * next_targets
    advantages -= unnormalised[:-1].numpy()
    np.testing.assert_allclose(returns.pg_advantages, advantages, rtol=0, atol=64 * EPS)


def test_behaviour_and_target_policies_meet_at_the_same_step() -> None:
    learner = make_learner()
    batch = make_batch()
    logits = unroll(learner, batch).policy_logits
    returns = learner._vtrace(batch, logits, values(learner, batch).unnormalised)
    taken = np.eye(NUM_ACTIONS)[batch.agent_outputs.action.numpy()[1:]]
    target = np.log((float64_softmax(logits[:-1]) * taken).sum(axis=-1))
    acted = np.log((float64_softmax(batch.agent_outputs.policy_logits[1:]) * taken).sum(axis=-1))
    np.testing.assert_allclose(returns.log_rhos, target - acted, rtol=0, atol=64 * EPS)


def test_nothing_after_an_episode_end_changes_the_targets_before_it() -> None:
    learner = make_learner()
    batch = make_batch()  # Environment 1 ends an episode on the way to step 3.
    logits = unroll(learner, batch).policy_logits
    unnormalised = values(learner, batch).unnormalised.numpy()
    rewards = batch.env_outputs.reward.numpy()
    rewards[4:] += 10.0
    changed_values = unnormalised.copy()
    changed_values[3:] -= 20.0
    before = learner._vtrace(batch, logits, tf.constant(unnormalised))
    after = learner._vtrace(with_rewards(batch, rewards), logits, tf.constant(changed_values))
    for old, new in ((before.vs, after.vs), (before.pg_advantages, after.pg_advantages)):
        np.testing.assert_array_equal(old[:3, 1], new[:3, 1])
        assert (old[3:, 1].numpy() != new[3:, 1].numpy()).all()
        others = [0, 2, 3]
        assert (old.numpy()[:, others] != new.numpy()[:, others]).all()


def test_the_reward_of_the_last_step_of_an_episode_counts() -> None:
    learner = make_learner()
    batch = make_batch()
    logits, value = unroll(learner, batch).policy_logits, values(learner, batch).unnormalised
    rewards = batch.env_outputs.reward.numpy()
    rewards[3, 1] += 10.0
    before = learner._vtrace(batch, logits, value).vs.numpy()
    after = learner._vtrace(with_rewards(batch, rewards), logits, value).vs.numpy()
    assert (after[:3, 1] > before[:3, 1]).all()
    np.testing.assert_array_equal(after[3:, 1], before[3:, 1])


def test_rewards_are_clipped_as_the_settings_say() -> None:
    learner = make_learner(reward_clipping="abs_one")
    batch = make_batch()  # Every reward is at least one in size.
    logits, value = unroll(learner, batch).policy_logits, values(learner, batch).unnormalised
    signs = np.sign(batch.env_outputs.reward)
    np.testing.assert_array_equal(
        learner._vtrace(batch, logits, value).vs,
        learner._vtrace(with_rewards(batch, signs), logits, value).vs,
    )


def test_the_total_loss_is_the_sum_of_its_parts() -> None:
    learner = make_learner()
    metrics = {name: value.numpy() for name, value in learner.update(make_batch()).items()}
    parts = [metrics[f"{name}_loss"] for name in ("policy_gradient", "value", "entropy")]
    np.testing.assert_allclose(metrics["total_loss"], sum(parts), rtol=4 * EPS)
    assert all(abs(part) > 1e-3 for part in parts)


def test_a_single_head_serves_every_task() -> None:
    learner = make_learner(num_tasks=1, normalise=False)
    before = snapshot(learner.variables)
    metrics = learner.update(make_batch((0, 2, 2, 4)))
    after = snapshot(learner.variables)
    restore(learner.variables, before)
    other_metrics = learner.update(make_batch((3, 1, 0, 0)))
    for name, value in metrics.items():
        np.testing.assert_allclose(value, other_metrics[name], rtol=16 * EPS, err_msg=name)
    for value, variable in zip(after, learner.variables, strict=True):
        np.testing.assert_allclose(variable, value, rtol=0, atol=4 * EPS)


def applied_change(max_grad_norm: float) -> tuple[np.ndarray, float]:
    """The change of all parameters in one update, and the norm that was logged.

    With decay 1 the mean square stays at one: the change is -gradient / sqrt(1 + epsilon).
    """
    learner = make_learner(
        normalise=False,
        decay=1.0,
        epsilon=3.0,
        learning_rate=2.0,
        max_grad_norm=max_grad_norm,
    )
    parameters = (*learner.agent.trainable_variables, *learner.head.trainable_variables)
    before = snapshot(parameters)
    metrics = learner.update(make_batch())
    changes = [
        (np.float64(variable.numpy()) - old).ravel()
        for variable, old in zip(parameters, before, strict=True)
    ]
    return np.concatenate(changes), float(metrics["gradient_norm"])


def test_gradients_are_clipped_by_their_global_norm() -> None:
    free, norm = applied_change(max_grad_norm=1000.0)
    # A rate of 2 over the root of 1 + 3: the change is the gradient, unclipped below the limit.
    np.testing.assert_allclose(np.linalg.norm(free), norm, rtol=1e-5)
    assert 2.0 < norm < 1000.0
    clipped, logged = applied_change(max_grad_norm=0.5)
    np.testing.assert_allclose(logged, norm, rtol=1e-6)  # The norm before clipping is logged.
    np.testing.assert_allclose(np.linalg.norm(clipped), 0.5, rtol=1e-5)
    # Each of them is rounded to the last place of its variable.
    np.testing.assert_allclose(clipped, 0.5 / norm * free, rtol=0, atol=4 * EPS)


def test_every_parameter_learns_with_an_lstm() -> None:
    learner = make_learner(normalise=False, use_lstm=True)
    parameters = (*learner.agent.trainable_variables, *learner.head.trainable_variables)
    before = snapshot(parameters)
    learner.update(make_batch(use_lstm=True))
    for variable, old in zip(parameters, before, strict=True):
        assert (variable.numpy() != old).any(), variable.name


def parameters(learner: Learner) -> Sequence[tf.Variable]:
    """What an update learns."""
    return (*learner.agent.trainable_variables, *learner.head.trainable_variables)


def test_nothing_is_lost_by_not_learning_through_the_bootstrap_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The change of a parameter is its gradient, as in `applied_change`.
    settings = {"normalise": False, "decay": 1.0, "epsilon": 3.0, "learning_rate": 2.0}
    batch = make_batch()
    asked: list[bool] = []
    unroll_agent = Agent.unroll
    changes = []
    for through_it in (False, True):
        learner = build_learner(**settings)

        def unroll_as_told(
            agent: Agent, *inputs: object, bootstrap: bool = False, through: bool = through_it
        ) -> object:
            asked.append(bootstrap)
            return unroll_agent(agent, *inputs, bootstrap=bootstrap and not through)

        monkeypatch.setattr(Agent, "unroll", unroll_as_told)
        before = snapshot(parameters(learner))
        learner.update(batch)
        monkeypatch.undo()
        changes.append([v.numpy() - b for v, b in zip(parameters(learner), before, strict=True)])
    assert asked == [True, True], "the learner asks for it"
    for without, through in zip(*changes, strict=True):
        assert without.any()
        np.testing.assert_allclose(without, through, rtol=0, atol=16 * EPS)


def test_an_update_that_xla_compiled_is_the_same_update() -> None:
    learner = build_learner()
    spec = rollouts.rollout_spec(ArraySpec(SHAPE, np.uint8), (), NUM_ACTIONS, UNROLL_LENGTH)
    compiled = Learner(learner.agent, learner.head, SETTINGS, spec, BATCH_SIZE, xla=True)
    first = snapshot(learner.agent.variables + learner.head.variables)
    results = []
    for either in (learner, compiled):  # They share agent and head.
        restore(learner.agent.variables + learner.head.variables, first)
        metrics = [either.update(make_batch(seed=seed)) for seed in range(3)]
        results.append((snapshot(either.variables), metrics[-1]))
        assert either.num_traces == 1
    (plain, plain_metrics), (by_xla, xla_metrics) = results
    assert plain_metrics.keys() == xla_metrics.keys()
    for name, value in plain_metrics.items():
        np.testing.assert_allclose(xla_metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for variable, one, other in zip(learner.variables, plain, by_xla, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5, err_msg=variable.name)
    assert compiled.frames.numpy() == 3 * 5 * 4 * 4

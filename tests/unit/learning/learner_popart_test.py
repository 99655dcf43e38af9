"""The learner with PopArt: order of the updates, reward scale, and absent tasks."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fakes.small_learner import (
    EPS,
    bellman_returns,
    bits,
    expected_parts,
    make_batch,
    make_learner,
    on_policy,
    restore,
    snapshot,
    unroll,
    values,
    with_rewards,
)


def test_the_losses_use_the_statistics_from_before_the_step() -> None:
    learner = make_learner()
    batch = on_policy(learner, make_batch())
    shift, scale = learner.head.shift.numpy(), learner.head.scale.numpy()
    expected = expected_parts(learner, batch, shift, scale)
    metrics = learner.update(batch)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=64 * EPS, err_msg=name)


def test_with_statistics_first_the_losses_use_the_new_statistics() -> None:
    learner = make_learner(popart_order="statistics_first")
    batch = on_policy(learner, make_batch())
    value = values(learner, batch).unnormalised
    targets = tf.constant(bellman_returns(learner, batch, value.numpy()), tf.float32)
    before = snapshot(learner.head.variables)
    old_scale = learner.head.scale.numpy()
    learner.head.update(targets, batch.task_id)
    shift, scale = learner.head.shift.numpy(), learner.head.scale.numpy()
    assert (np.abs(scale / old_scale - 1)[[0, 2]] > 0.1).all()
    restore(learner.head.variables, before)
    expected = expected_parts(learner, batch, shift, scale)
    metrics = learner.update(batch)
    for name, part in expected.items():
        np.testing.assert_allclose(metrics[name], part, rtol=64 * EPS, err_msg=name)
    np.testing.assert_allclose(learner.head.shift, shift, rtol=64 * EPS)
    np.testing.assert_allclose(learner.head.scale, scale, rtol=64 * EPS)


@pytest.mark.parametrize("order", ["gradient_first", "statistics_first"])
def test_gradient_step_and_rescaling_come_in_the_chosen_order(order: str) -> None:
    learner = make_learner(popart_order=order)
    head = learner.head
    batch = on_policy(learner, make_batch())
    features = np.float64(unroll(learner, batch).features[:-1])  # [T, B, D]
    value = np.float64(values(learner, batch).unnormalised)
    targets = bellman_returns(learner, batch, value)
    weights, bias = np.float64(head.weights), np.float64(head.bias)
    shift, scale = np.float64(head.shift), np.float64(head.scale)
    learner.update(batch)
    new_shift, new_scale = np.float64(head.shift), np.float64(head.scale)
    ratio = scale / new_scale

    def rescale() -> None:
        nonlocal weights, bias
        weights = ratio[:, np.newaxis] * weights
        bias = ratio * bias + (shift - new_shift) / new_scale

    def descend(mu: np.ndarray, sigma: np.ndarray) -> None:
        # 0.5 sum 1/2 (n - (v_s - mu) / sigma)^2, and one step of RMSProp from ms = 1.
        nonlocal weights, bias
        errors = 0.5 * (value[:-1] - targets) / sigma[batch.task_id]  # [T, B]
        own_task = np.eye(5)[batch.task_id]  # [B, num_tasks]
        for_weights = np.einsum("tb,bi,tbd->id", errors, own_task, features)
        for_bias = np.einsum("tb,bi->i", errors, own_task)
        weights = weights - 0.01 * for_weights / np.sqrt(0.99 + 0.01 * for_weights**2 + 0.1)
        bias = bias - 0.01 * for_bias / np.sqrt(0.99 + 0.01 * for_bias**2 + 0.1)

    if order == "gradient_first":
        descend(shift, scale)
        rescale()
    else:
        rescale()
        descend(new_shift, new_scale)
    np.testing.assert_allclose(head.weights, weights, rtol=0, atol=8 * EPS)
    np.testing.assert_allclose(head.bias, bias, rtol=0, atol=64 * EPS)
    assert (np.abs(ratio - 1)[[0, 2]] > 0.1).all()


def test_statistics_move_towards_the_targets_of_the_rollouts() -> None:
    learner = make_learner()
    batch = on_policy(learner, make_batch())
    targets = bellman_returns(learner, batch, values(learner, batch).unnormalised.numpy())
    shift = np.float64(learner.head.shift)
    second_moment = np.float64(learner.head.second_moment)
    for rollout, task in zip(targets.T, batch.task_id.numpy(), strict=True):
        shift[task] = 0.9 * shift[task] + 0.1 * rollout.mean()
        second_moment[task] = 0.9 * second_moment[task] + 0.1 * (rollout**2).mean()
    learner.update(batch)
    np.testing.assert_allclose(learner.head.shift, shift, rtol=0, atol=8 * EPS)
    np.testing.assert_allclose(learner.head.second_moment, second_moment, rtol=64 * EPS)


def scaled_losses(normalise: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of a batch, and of the same one with the rewards of task 2 times 100."""
    learner = make_learner(normalise=normalise)
    head, batch = learner.head, make_batch((0, 2, 2, 4))
    before = snapshot(learner.variables)
    original = learner.update(batch)
    restore(learner.variables, before)
    factor = np.float32([1, 1, 100, 1, 1])
    if normalise:
        # sigma n + mu grows a hundredfold with sigma and mu.
        head.shift.assign(factor * head.shift)
        head.second_moment.assign(factor**2 * head.second_moment)
    else:
        head.weights.assign(factor[:, np.newaxis] * head.weights)
        head.bias.assign(factor * head.bias)
    # The agent sees rewards clipped to [-1, 1], where nothing has changed.
    rewards = batch.env_outputs.reward.numpy() * factor[batch.task_id]
    scaled = learner.update(with_rewards(batch, rewards))
    return (
        {name: float(value) for name, value in original.items()},
        {name: float(value) for name, value in scaled.items()},
    )


def test_with_popart_the_scale_of_a_tasks_rewards_changes_no_loss() -> None:
    original, scaled = scaled_losses(normalise=True)
    for name in ("policy_gradient_loss", "value_loss", "entropy_loss", "gradient_norm"):
        np.testing.assert_allclose(scaled[name], original[name], rtol=64 * EPS, err_msg=name)


def test_without_popart_the_scale_of_a_tasks_rewards_changes_the_losses() -> None:
    original, scaled = scaled_losses(normalise=False)
    assert abs(scaled["policy_gradient_loss"]) > 10 * abs(original["policy_gradient_loss"])
    assert scaled["value_loss"] > 1000 * original["value_loss"]


@pytest.mark.parametrize("order", ["gradient_first", "statistics_first"])
def test_an_absent_task_is_unchanged_bit_for_bit(order: str) -> None:
    learner = make_learner(popart_order=order)
    head = learner.head
    # Statistics that a round trip through sigma would not survive.
    head.shift.assign([0.3, 1 / 3, -0.2, 1e5, 0.1])
    head.second_moment.assign([1.3, 1 / 9, 2.0, 1.0000001e10, 3.0])
    learned = (head.weights, head.bias, head.shift, head.second_moment)
    before = snapshot(learned)
    for seed, task_ids in enumerate([(0, 2, 2, 4), (4, 2, 0, 4), (0, 0, 2, 4)]):
        learner.update(make_batch(task_ids, seed=seed))
    for variable, old in zip(learned, before, strict=True):
        for absent in (1, 3):
            assert bits(variable[absent]) == bits(old[absent]), variable.name
        for present in (0, 2, 4):
            assert bits(variable[present]) != bits(old[present]), variable.name


def test_without_popart_the_heads_of_absent_tasks_are_unchanged() -> None:
    learner = make_learner(normalise=False)
    head = learner.head
    weights, bias = head.weights.numpy().copy(), head.bias.numpy().copy()
    learner.update(make_batch((0, 2, 2, 4)))
    changed = (head.weights.numpy() != weights).any(axis=1)
    np.testing.assert_array_equal(changed, [True, False, True, False, True])
    np.testing.assert_array_equal(head.bias.numpy() != bias, changed)
    np.testing.assert_array_equal(head.scale, np.ones(5))


@pytest.mark.parametrize("use_lstm", [False, True])
def test_task_ids_change_values_but_no_logit(use_lstm: bool) -> None:
    learner = make_learner(normalise=False, use_lstm=use_lstm)
    batch = make_batch((0, 2, 2, 4), use_lstm)
    other = batch._replace(task_id=tf.constant([1, 3, 0, 0]))
    np.testing.assert_array_equal(
        learner._unroll(batch).policy_logits, learner._unroll(other).policy_logits
    )
    own, others = values(learner, batch).unnormalised, values(learner, other).unnormalised
    assert (own.numpy() != others.numpy()).all()


def test_task_ids_change_the_value_loss_of_an_update_but_not_its_entropy() -> None:
    learner = make_learner()
    metrics = learner.update(make_batch((0, 2, 2, 4)))
    other_metrics = make_learner().update(make_batch((1, 3, 0, 0)))
    np.testing.assert_allclose(metrics["entropy_loss"], other_metrics["entropy_loss"], rtol=4 * EPS)
    assert abs(metrics["value_loss"] - other_metrics["value_loss"]) > 0.1

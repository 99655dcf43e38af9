"""The learner's update against the papers' losses, what it counts, and what it leaves alone."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fakes.oracles import EPS
from tests.fakes.small_learner import (
    PIXEL_CONTROL_SHAPE,
    PLAIN_GRADIENT,
    SHAPE,
    build_learner,
    expected_losses,
    make_batch,
    make_learner,
    restore,
    snapshot,
    with_rewards,
)


@pytest.mark.parametrize(
    "kind",
    [
        {"num_tasks": 1, "normalise": False},
        {"normalise": False, "use_lstm": True},
        {},
        {"popart_order": "statistics_first"},
        {"controls_pixels": True},
    ],
    ids=["impala", "multi_head", "popart", "statistics_first", "pixel_control"],
)
def test_an_update_descends_the_papers_losses_and_preserves_outputs(kind: dict) -> None:
    """Ties together alignment in time, V-trace, all losses, and the order of gradient and PopArt.

    The expected gradient goes through the whole unroll, so nothing is lost either by not learning
    through the bootstrap step.
    """
    learner = make_learner(**PLAIN_GRADIENT, **kind)
    head, statistics_first = learner.head, kind.get("popart_order") == "statistics_first"
    shape = PIXEL_CONTROL_SHAPE if learner.q_head else SHAPE
    batch = make_batch(use_lstm=kind.get("use_lstm", False), shape=shape)
    before, old_scale = snapshot(learner.variables), head.scale.numpy()
    if statistics_first:
        head.update(tf.constant(expected_losses(learner, batch)[1], tf.float32), batch.task_id)
    with tf.GradientTape() as tape:
        losses, targets = expected_losses(learner, batch)
        total = tf.add_n(list(losses.values()))
    gradients = tape.gradient(total, learner._parameters)
    for variable, gradient in zip(learner._parameters, gradients, strict=True):
        assert np.any(gradient), f"{variable.name} must learn"
        variable.assign_sub(gradient)
    if not statistics_first:
        head.update(tf.constant(targets, tf.float32), batch.task_id)
    learned = (*learner._parameters, head.shift, head.second_moment)
    expected, new_scale = snapshot(learned), head.scale.numpy()
    assert not head.normalise or (np.abs(new_scale / old_scale - 1)[[0, 2]] > 0.1).all()

    restore(learner.variables, before)
    metrics = learner.update(batch)
    for name, value in {**losses, "total_loss": total}.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(
        metrics["gradient_norm"], tf.linalg.global_norm(gradients), rtol=1e-5
    )
    for variable, value in zip(learned, expected, strict=True):
        scale = 1e-5 * max(1.0, np.abs(value).max())
        np.testing.assert_allclose(variable, value, rtol=0, atol=scale, err_msg=variable.name)


def test_an_update_counts_frames_versions_and_lag_and_is_traced_once() -> None:
    learner = make_learner()
    references = [variable.ref() for variable in learner.variables]
    for i, task_ids in enumerate([(0, 1, 2, 3), (4, 4, 4, 4), (0, 2, 2, 4)]):
        assert (learner.frames.numpy(), learner.num_updates.numpy()) == (i * 5 * 4 * 4, i)
        learner.update(make_batch(task_ids, seed=i))
    learner.num_updates.assign(7)
    versions = tf.constant([7, 6, 4, 1], tf.int64)
    metrics = learner.update(make_batch()._replace(policy_version=versions))
    assert metrics["policy_lag"] == (0 + 1 + 3 + 6) / 4
    assert [variable.ref() for variable in learner.variables] == references
    assert learner.num_traces == 1
    assert learner.frames.dtype == learner.num_updates.dtype == tf.int64


def test_the_learning_rate_falls_linearly_to_zero_or_is_constant() -> None:
    learner, constant = make_learner(), make_learner(learning_rate_schedule="constant")
    before, changes = snapshot(learner.variables), []
    for frames, left in ((0, 1.0), (750, 0.25), (1000, 0.0), (1500, 0.0)):
        restore(learner.variables, before)
        learner.frames.assign(frames)
        constant.frames.assign(frames)
        weights = snapshot(learner.agent.trainable_variables)
        rate = learner.update(make_batch())["learning_rate"]
        np.testing.assert_allclose(rate, 0.01 * left, rtol=4 * EPS)
        np.testing.assert_allclose(constant.learning_rate(), 0.01, rtol=EPS)
        changes.append(learner.agent.trainable_variables[0].numpy() - weights[0])
    np.testing.assert_allclose(changes[1], changes[0] / 4, rtol=0, atol=4 * EPS)
    assert np.abs(changes[0]).max() > 1e-3
    assert not np.any(changes[2:])


def test_rewards_are_clipped_as_the_settings_say() -> None:
    learner, batch = make_learner(reward_clipping="abs_one"), make_batch()
    signs = with_rewards(batch, np.sign(batch.env_outputs.reward))  # All are at least one in size.
    assert learner.gradient_norms(batch) == learner.gradient_norms(signs)


def test_gradients_are_clipped_by_their_global_norm() -> None:
    changes, norms = [], []
    for limit in (1000.0, 0.5):
        learner = make_learner(normalise=False, **PLAIN_GRADIENT, max_grad_norm=limit)
        before = snapshot(learner._parameters)
        norms.append(float(learner.update(make_batch())["gradient_norm"]))
        after = snapshot(learner._parameters)
        changes.append(
            np.concatenate([np.ravel(b - a) for a, b in zip(before, after, strict=True)])
        )
    assert norms[0] == pytest.approx(norms[1], rel=1e-6), "the norm before clipping is logged"
    assert 2.0 < norms[0] < 1000.0
    np.testing.assert_allclose(np.linalg.norm(changes[0]), norms[0], rtol=1e-5)
    np.testing.assert_allclose(changes[1], 0.5 / norms[0] * changes[0], rtol=0, atol=4 * EPS)


def losses_of_scaled_rewards(normalise: bool) -> list[dict[str, float]]:
    """Metrics of a batch, and of the same one with the rewards of task 2 times 100."""
    learner = make_learner(normalise=normalise)
    head, batch, factor = learner.head, make_batch(), np.float32([1, 1, 100, 1, 1])
    before = snapshot(learner.variables)
    original = learner.update(batch)
    restore(learner.variables, before)
    if normalise:  # sigma n + mu grows a hundredfold with sigma and mu.
        head.shift.assign(factor * head.shift)
        head.second_moment.assign(factor**2 * head.second_moment)
    else:
        head.weights.assign(factor[:, np.newaxis] * head.weights)
        head.bias.assign(factor * head.bias)
    # The agent sees rewards clipped to [-1, 1], where nothing has changed.
    rewards = batch.env_outputs.reward.numpy() * factor[batch.task_id]
    scaled = learner.update(with_rewards(batch, rewards))
    return [{name: float(value) for name, value in each.items()} for each in (original, scaled)]


def test_only_with_popart_the_scale_of_a_tasks_rewards_changes_no_loss() -> None:
    original, scaled = losses_of_scaled_rewards(normalise=True)
    for name in ("policy_gradient_loss", "value_loss", "entropy_loss", "gradient_norm"):
        np.testing.assert_allclose(scaled[name], original[name], rtol=64 * EPS, err_msg=name)
    original, scaled = losses_of_scaled_rewards(normalise=False)
    assert abs(scaled["policy_gradient_loss"]) > 10 * abs(original["policy_gradient_loss"])
    assert scaled["value_loss"] > 1000 * original["value_loss"]


@pytest.mark.parametrize("kind", [{}, {"popart_order": "statistics_first"}, {"normalise": False}])
def test_an_absent_task_is_unchanged_bit_for_bit(kind: dict) -> None:
    learner = make_learner(**kind)
    head = learner.head
    # Statistics that a round trip through sigma would not survive.
    head.shift.assign([0.3, 1 / 3, -0.2, 1e5, 0.1])
    head.second_moment.assign([1.3, 1 / 9, 2.0, 1.0000001e10, 3.0])
    statistics = (head.shift, head.second_moment) if head.normalise else ()
    learned = (head.weights, head.bias, *statistics)
    before = snapshot(learned)
    for seed, task_ids in enumerate([(0, 2, 2, 4), (4, 2, 0, 4), (0, 0, 2, 4)]):
        learner.update(make_batch(task_ids, seed=seed))
    for variable, old in zip(learned, before, strict=True):
        same = [
            new.tobytes() == was.tobytes() for new, was in zip(variable.numpy(), old, strict=True)
        ]
        assert same == [False, True, False, True, False], variable.name


def test_task_ids_change_values_but_not_the_policy() -> None:
    metrics = make_learner().update(make_batch((0, 2, 2, 4)))
    others = make_learner().update(make_batch((1, 3, 0, 0)))
    assert metrics["entropy_loss"] == others["entropy_loss"]
    assert abs(metrics["value_loss"] - others["value_loss"]) > 0.1


def test_updates_teach_the_action_values() -> None:
    learner = make_learner(controls_pixels=True, learning_rate=1e-3, baseline_cost=0.0)
    batch = make_batch(shape=PIXEL_CONTROL_SHAPE)
    lost = [float(learner.update(batch)["pixel_control_loss"]) for _ in range(11)]
    assert lost[10] < 0.97 * lost[0]  # Of images of noise, which are learned slowly.
    of_head = {variable.ref() for variable in learner.q_head.variables}
    assert not of_head & {variable.ref() for variable in learner.agent.variables}


def test_an_update_that_xla_compiled_is_the_same_update() -> None:
    plain, by_xla = (
        make_learner(controls_pixels=True),
        build_learner(controls_pixels=True, xla=True),
    )
    metrics = [each.update(make_batch(shape=PIXEL_CONTROL_SHAPE)) for each in (plain, by_xla)]
    assert metrics[0].keys() == metrics[1].keys()
    for name, value in metrics[0].items():
        np.testing.assert_allclose(metrics[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for one, other in zip(plain.variables, by_xla.variables, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5, err_msg=one.name)

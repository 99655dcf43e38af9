"""The learner's update against the papers' losses, what it counts, and what it leaves alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.rollouts import select
from scalable_agent_popart.runs.checkpoints import Checkpoints
from tests.fakes.agent_inputs import SMALL
from tests.fakes.oracles import EPS
from tests.fakes.small_learner import (
    PIXEL_CONTROL_SHAPE,
    expected_losses,
    make_batch,
    make_learner,
    restore,
    snapshot,
    with_rewards,
)

_TASKS = ("a", "b", "c", "d", "e")
_IMPALA = {"num_tasks": 1, "normalise": False}
_MULTI_HEAD = {"normalise": False, "use_lstm": True}
_AVERAGE = {"start": "average"}
_PIXEL_CONTROL = {"controls_pixels": True}
_IN_TURN = {"num_microbatches": 3}  # They have two, one and one rollouts.
_CLIPPED = {"max_grad_norm": 1000.0, "reward_clipping": "abs_one"}
_CLIPPED |= {"learning_rate_schedule": "constant"}
_TUNED = {"learning_rate": 0.003, "entropy_cost": 0.2, "epsilon": 0.7, "max_grad_norm": 0.5}


_KINDS = [_IMPALA, _MULTI_HEAD, {}, _AVERAGE, _PIXEL_CONTROL, _IN_TURN]
_KINDS += [_MULTI_HEAD | _PIXEL_CONTROL | _IN_TURN]


@pytest.mark.parametrize("kind", _KINDS, ids=str)
def test_an_update_descends_the_papers_losses_and_preserves_outputs(kind: dict) -> None:
    """Ties together alignment in time, V-trace, losses, and the order of gradient and PopArt."""
    learner = make_learner(**kind)
    head = learner.head
    shape = PIXEL_CONTROL_SHAPE if learner.q_head else SMALL
    batch = make_batch(use_lstm="use_lstm" in kind, shape=shape)
    before, old_scale = snapshot(learner.variables), head.scale.numpy()
    head_ids = batch.task_id.numpy() if head.num_tasks > 1 else np.zeros(4, int)
    goes_first = np.zeros(4, bool)
    if head.count is not None:  # Tasks 2 and 4 begin their averages, and so go first.
        head.count.assign([5, 0, 0, 0, 0])
        before = snapshot(learner.variables)
        goes_first = head_ids != 0
        targets = tf.constant(expected_losses(learner, batch)[1], tf.float32)
        head.update(targets, batch.task_id, included=goes_first)
    with tf.GradientTape() as tape:
        losses, targets = expected_losses(learner, batch)
        total = tf.add_n(list(losses.values()))
    gradients = tape.gradient(total, learner._parameters)
    for variable, gradient in zip(learner._parameters, gradients, strict=True):
        assert np.any(gradient), f"{variable.name} must learn"
        variable.assign_sub(gradient)
    errors = np.abs(targets - head.shift.numpy()[head_ids])
    largest_target = errors.max(axis=0) / head.scale.numpy()[head_ids]
    head.update(tf.constant(targets, tf.float32), batch.task_id, included=~goes_first)
    learned = (*learner._parameters, head.shift, head.second_moment)
    expected, new_scale = snapshot(learned), head.scale.numpy()
    assert not head.normalise or (np.abs(new_scale / old_scale - 1)[[0, 2]] > 0.1).all()

    restore(learner.variables, before)
    metrics = learner.update(batch)
    losses |= {"total_loss": total, "gradient_norm": tf.linalg.global_norm(gradients)}
    for name, value in losses.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(metrics["largest_target"], largest_target, rtol=1e-4)
    for variable, value in zip(learned, expected, strict=True):
        scale = 1e-5 * max(1.0, np.abs(value).max())
        np.testing.assert_allclose(variable, value, rtol=0, atol=scale, err_msg=variable.name)


def ancestors(operation: tf.Operation) -> set[tf.Operation]:
    """Returns all that is computed before an operation of a graph."""
    operations, waiting = set(), [operation]
    while waiting:
        op = waiting.pop()
        before = {tensor.op for tensor in op.inputs} | set(op.control_inputs)
        waiting += before - operations
        operations |= before
    return operations


def test_microbatches_are_differentiated_one_after_the_other() -> None:
    learner = make_learner(**_IN_TURN)
    learner.update(make_batch())
    operations = learner._compiled_update.get_concrete_function().graph.get_operations()
    gradients = {op for op in operations if op.type == "Conv2DBackpropFilter"}
    inputs = [op for op in operations if op.type == "Placeholder"]
    cuts = [op for op in operations if op.type == "GatherV2" and op.inputs[0].op in inputs]
    num_leaves = len(tf.nest.flatten(make_batch()))
    assert [cut.inputs[1].shape[0] for cut in cuts] == np.repeat([2, 1, 1], num_leaves).tolist()
    before = [len(gradients & ancestors(cut)) for cut in cuts]
    assert before == np.repeat([0, 2, 4], num_leaves).tolist()
    assert len(gradients) == 6


def test_an_update_counts_frames_versions_and_lag_and_is_traced_once() -> None:
    learner = make_learner()
    for i, task_ids in enumerate([(0, 1, 2, 3), (4, 4, 4, 4), (0, 2, 2, 4)]):
        assert (learner.frames.numpy(), learner.num_updates.numpy()) == (i * 5 * 4 * 4, i)
        learner.update(make_batch(task_ids, seed=i))
    learner.num_updates.assign(7)
    versions = tf.constant([7, 6, 4, 1], tf.int64)
    metrics = learner.update(make_batch()._replace(policy_version=versions))
    assert metrics["policy_lag"] == (0 + 1 + 3 + 6) / 4
    assert learner._compiled_update.experimental_get_tracing_count() == 1
    assert learner.frames.dtype == learner.num_updates.dtype == tf.int64


def test_the_learning_rate_falls_linearly_to_zero_or_is_constant() -> None:
    learner, changes = make_learner(), []
    before, weights = snapshot(learner.variables), learner.agent.trainable_variables[0]
    for frames, left in ((0, 1.0), (750, 0.25), (1000, 0.0), (1500, 0.0)):
        restore(learner.variables, before)
        learner.frames.assign(frames)
        old = weights.numpy()
        rate = learner.update(make_batch())["learning_rate"]
        np.testing.assert_allclose(rate, 2.0 * left, rtol=4 * EPS)
        changes.append(weights.numpy() - old)
    np.testing.assert_allclose(changes[1], changes[0] / 4, rtol=0, atol=4 * EPS)
    assert np.abs(changes[0]).max() > 1e-3
    assert not np.any(changes[2:])
    constant = make_learner(**_CLIPPED)
    constant.frames.assign(750)
    assert constant.update(make_batch())["learning_rate"] == 2.0


@pytest.mark.parametrize(
    ("settings", "change"),
    [({"reward_clipping": "abs_one"}, tf.sign), ({"reward_scale": 3.0}, lambda r: 3.0 * r)],
)
def test_rewards_are_changed_as_the_settings_say(settings: dict, change: Callable) -> None:
    batch = make_batch()  # All rewards are at least one in size, so that the agent sees ±1.
    changed = with_rewards(batch, change(batch.env_outputs.reward))
    loss = make_learner(**settings).update(batch)["total_loss"]
    assert make_learner().update(changed)["total_loss"] == loss


def test_gradients_are_clipped_by_their_global_norm() -> None:
    learner, changes = make_learner(**_CLIPPED), []
    before = snapshot(learner.variables)
    for limit in (1000.0, 0.5):
        restore(learner.variables, before)
        learner.hyperparameters.assign({"max_grad_norm": limit})
        # The value head is left out, since PopArt rescales it.
        old = snapshot(learner.agent.trainable_variables)
        norm = float(learner.update(make_batch())["gradient_norm"])
        new = snapshot(learner.agent.trainable_variables)
        changes.append(np.concatenate([np.ravel(b - a) for a, b in zip(old, new, strict=True)]))
    assert 2.0 < norm < 1000.0, "the norm before clipping is logged"
    np.testing.assert_allclose(changes[1], 0.5 / norm * changes[0], rtol=0, atol=4 * EPS)


def test_hyperparameters_changed_later_act_as_if_there_from_the_start() -> None:
    learners = [make_learner(**kind) for kind in (_CLIPPED, _CLIPPED | _TUNED)]
    learners[0].hyperparameters.assign(_TUNED)
    for learner in learners:
        learner.update(make_batch())
        assert learner._compiled_update.experimental_get_tracing_count() == 1
        assert learner.hyperparameters.values() == pytest.approx(_TUNED)
    for one, other in zip(*(learner.agent.variables for learner in learners), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_checkpoint_leaves_hyperparameters_to_the_flags(tmp_path: Path) -> None:
    learner = make_learner()
    checkpoints = Checkpoints(tmp_path, learner=learner)
    checkpoints.save()
    learner.hyperparameters.assign(_TUNED)
    assert checkpoints.restore()
    assert learner.hyperparameters.values() == pytest.approx(_TUNED)


def test_with_popart_the_scale_of_a_tasks_rewards_changes_no_loss() -> None:
    learner, batch, factor = make_learner(), make_batch(), np.float32([1, 1, 100, 1, 1])
    before = snapshot(learner.variables)
    original = learner.update(batch)
    restore(learner.variables, before)
    # sigma n + mu grows a hundredfold with sigma and mu.
    learner.head.shift.assign(factor * learner.head.shift)
    learner.head.second_moment.assign(factor**2 * learner.head.second_moment)
    # The agent sees rewards clipped to [-1, 1], where nothing has changed.
    rewards = batch.env_outputs.reward.numpy() * factor[batch.task_id]
    scaled = learner.update(with_rewards(batch, rewards))
    for name in ("policy_gradient_loss", "value_loss", "entropy_loss", "gradient_norm"):
        np.testing.assert_allclose(scaled[name], original[name], rtol=64 * EPS, err_msg=name)


@pytest.mark.parametrize("kind", [{}, _MULTI_HEAD])
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
        learner.update(make_batch(task_ids, kind == _MULTI_HEAD, seed))
    for variable, old in zip(learned, before, strict=True):
        pairs = zip(variable.numpy(), old, strict=True)
        same = [new.tobytes() == was.tobytes() for new, was in pairs]
        assert same == [False, True, False, True, False], variable.name


@pytest.mark.parametrize("kind", [_AVERAGE, _AVERAGE | _IN_TURN])
def test_statistics_wait_for_a_tasks_first_reward(kind: dict) -> None:
    learner, batch = make_learner(**kind), make_batch((0, 2, 2, 4))
    head, rewards = learner.head, batch.env_outputs.reward.numpy()
    rewards[1:, [0, 3]] = 0.0  # Tasks 0 and 4 have none; step 0 is of the rollouts before.
    shift = head.shift.numpy()
    learner.update(with_rewards(batch, rewards))
    assert head.count.numpy().tolist() == [0, 0, 2, 0, 0]
    assert (head.shift.numpy() == shift).tolist() == [True, True, False, True, True]


def test_task_ids_change_values_but_not_the_policy() -> None:
    metrics = make_learner().update(make_batch((0, 2, 2, 4)))
    others = make_learner().update(make_batch((1, 3, 0, 0)))
    assert metrics["entropy_loss"] == others["entropy_loss"]
    assert abs(metrics["value_loss"] - others["value_loss"]) > 0.1


def test_an_update_that_xla_compiled_is_the_same_update() -> None:
    plain, by_xla = (make_learner(**_PIXEL_CONTROL, **how) for how in ({}, {"xla": True}))
    attributes = by_xla._compiled_update.get_concrete_function().function_def.attr
    assert attributes["_XlaMustCompile"].b
    metrics = [each.update(make_batch(shape=PIXEL_CONTROL_SHAPE)) for each in (plain, by_xla)]
    assert metrics[0].keys() == metrics[1].keys()
    for name, value in metrics[0].items():
        np.testing.assert_allclose(metrics[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for one, other in zip(plain.variables, by_xla.variables, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5, err_msg=one.name)


@pytest.mark.parametrize("kind", [{}, _AVERAGE, _PIXEL_CONTROL])
def test_norms_are_those_of_the_tasks_own_gradients(kind: dict) -> None:
    learner = make_learner(**kind)
    batch = make_batch(shape=PIXEL_CONTROL_SHAPE if learner.q_head else SMALL)
    before = snapshot(learner.variables)
    norms = learner.gradient_norms(batch, _TASKS)
    assert list(norms) == ["policy_gradient_norm", "total_gradient_norm"]
    assert all(list(by_task) == ["a", "c", "e"] for by_task in norms.values())
    for variable, value in zip(learner.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    weights = learner.agent.trainable_variables
    for name, ids in (("a", [0]), ("c", [1, 2]), ("e", [3])):
        with tf.GradientTape(persistent=True) as tape:
            losses, _ = expected_losses(learner, select(batch, np.array(ids)))
            total = tf.add_n(list(losses.values()))
        for norm, loss in zip(norms.values(), (losses["policy_gradient_loss"], total), strict=True):
            expected = tf.linalg.global_norm(tape.gradient(loss, weights))
            np.testing.assert_allclose(norm[name], expected, rtol=1e-4)

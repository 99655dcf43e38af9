"""PopArt's statistics against the loop of the paper, and what an update must leave alone."""

from typing import Any

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import popart


def make_head(num_tasks: int, num_features: int, seed: int = 0, **options: Any) -> popart.ValueHead:
    """Makes a head with random weights, bias and statistics, sigma between 0.3 and 30."""
    head = popart.ValueHead(num_tasks, **options)
    head(tf.zeros([num_features]), tf.constant(0))
    rng = np.random.default_rng(seed)
    head.weights.assign(rng.normal(size=(num_tasks, num_features)))
    head.bias.assign(rng.normal(size=num_tasks))
    if head.normalise:
        shift = rng.normal(scale=5.0, size=num_tasks)
        scale = 10.0 ** rng.uniform(-0.5, 1.5, num_tasks)
        head.shift.assign(shift)
        head.second_moment.assign(shift**2 + scale**2)
    return head


def assert_bits_equal(actual: Any, expected: Any) -> None:
    """Checks equality bit for bit, which tells -0 from 0 and accepts NaN."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.tobytes()) == (expected.dtype, expected.tobytes())


def state(head: popart.ValueHead) -> dict[str, np.ndarray]:
    """Copies everything that an update may change; the task is the first dimension."""
    names = ["shift", "second_moment", "weights", "bias"]
    names += ["count"] if head.count is not None else []
    return {name: getattr(head, name).numpy().copy() for name in names}


def outputs(head: popart.ValueHead, features: np.ndarray) -> np.ndarray:
    """Computes the unnormalised values `[num_tasks, N]` of every task at every state."""
    ids = [tf.fill(features.shape[:-1], task) for task in range(head.num_tasks)]
    return np.stack([head(tf.constant(features), task).unnormalised for task in ids])


def magnitude(head: popart.ValueHead, values: np.ndarray) -> np.ndarray:
    """Computes max(|v|, |mu|, sigma) `[num_tasks, 1]`, by which errors of v can be measured.

    v = sigma n + mu is a float32 sum, and not better known than its largest term.
    """
    parts = np.concatenate([np.abs(values), np.abs([head.shift]).T, np.array([head.scale]).T], 1)
    return parts.max(axis=1, keepdims=True)


@pytest.mark.parametrize("start", ["average", "fixed"])
@pytest.mark.parametrize("second_moment_of", ["squares", "mean"])
@pytest.mark.parametrize("task_ids", [[0], [3, 0, 3, 3, 1, 0, 3, 1], [4] * 9 + [0] * 7])
@pytest.mark.parametrize("step_size", [3e-4, 0.2, 1.0])
def test_statistics_are_those_of_one_update_per_rollout_in_order(
    start: str, second_moment_of: str, task_ids: list[int], step_size: float
) -> None:
    head = make_head(5, 3, step_size=step_size, second_moment_of=second_moment_of, start=start)
    rng = np.random.default_rng(1)
    count = np.zeros(5)
    for _ in range(3):
        centres = rng.normal(scale=20.0, size=len(task_ids))
        targets = (centres + rng.normal(size=(6, len(task_ids)))).astype(np.float32)
        rewarded = rng.random(len(task_ids)) < 0.4
        shift, second_moment = head.shift.numpy(), head.second_moment.numpy()
        rollouts = zip(np.float64(targets).T, task_ids, rewarded, strict=True)
        for rollout, task, has_reward in rollouts:
            if start == "average" and not count[task] and not has_reward:
                continue
            count[task] += 1
            square = np.mean(rollout**2) if second_moment_of == "squares" else np.mean(rollout) ** 2
            moments = ((shift, np.mean(rollout), 1), (second_moment, square, 0))
            for moment, observed, zeros in moments:
                weight = max(step_size, 1 / (count[task] + zeros) if start == "average" else 0)
                moment[task] = (1 - weight) * moment[task] + weight * observed
        head.update(tf.constant(targets), tf.constant(task_ids), tf.constant(rewarded))
        if start == "average":
            np.testing.assert_array_equal(head.count, count)
        np.testing.assert_allclose(head.shift, shift, rtol=1e-13)
        np.testing.assert_allclose(head.second_moment, second_moment, rtol=1e-13)
        variance = np.clip(second_moment - shift**2, 1e-4**2, 1e6**2)
        np.testing.assert_allclose(head.scale, np.sqrt(variance), rtol=1e-6)


def test_statistics_begin_as_the_plain_average_of_all_rollouts_from_the_first_reward_on() -> None:
    head = popart.ValueHead(1, step_size=0.02, start="average")
    targets = np.random.default_rng(0).normal(7.0, 3.0, size=(5, 58)).astype(np.float32)
    update = tf.function(head.update)
    for i, column in enumerate(targets.T):
        update(tf.constant(column[:, np.newaxis]), tf.constant([0]), tf.constant([i == 9]))
        if i >= 9:
            counted = np.float64(targets[:, 9 : i + 1])
            size = counted.shape[1]
            np.testing.assert_allclose(head.shift[0], counted.mean() * size / (size + 1), 1e-12)
            np.testing.assert_allclose(head.second_moment[0], (counted**2).mean(), rtol=1e-12)


@pytest.mark.parametrize("second_moment_of", ["squares", "mean"])
def test_outputs_survive_targets_that_move_over_orders_of_magnitude(second_moment_of: str) -> None:
    head = make_head(2, 8, step_size=0.4, second_moment_of=second_moment_of)
    update = tf.function(head.update)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(16, 8)).astype(np.float32)
    first, weights = outputs(head, features), head.weights.numpy()
    largest, scales = magnitude(head, first), []
    for i in range(50):
        # Up from 1e-2 to 1e5 and down again; the second task half a period behind.
        exponents = 1.5 - 3.5 * np.cos(2 * np.pi * (i / 50 + np.array([0.0, 0.5])))
        targets = 10.0**exponents * rng.normal(1.0, 0.5, size=(5, 2))
        update(tf.constant(targets, tf.float32), tf.constant([0, 1]))
        after = outputs(head, features)
        largest = np.maximum(largest, magnitude(head, after))
        # What is lost at the largest scale is lost: the whole way is measured by that scale.
        assert (np.abs(after - first) <= 1e-5 * largest).all(), f"update {i}"
        assert not np.allclose(head.weights, weights, rtol=1e-3), "had to follow the statistics"
        weights = head.weights.numpy()
        scales.append(head.scale.numpy())
    if second_moment_of == "squares":
        assert (np.max(scales, axis=0) > 1e4).all()
        assert (np.min(scales, axis=0) < 20).all()


def test_an_absent_task_keeps_statistics_weights_and_bias_bit_for_bit() -> None:
    head = make_head(6, 5, step_size=0.1)
    # Statistics that neither a round trip through sigma nor a rescaling by one would survive:
    # thirds, a variance below the lower bound, one below zero, and sizes far apart.
    head.shift.assign([1 / 3, 0.1, 1e5, 7e-7, -4 / 3, 2.0])
    head.second_moment.assign([1.0, 0.01, 1.0000001e10, 1e-13, 16 / 9, 1e9])
    # Weights that even a product with one or a sum with zero would change.
    head.bias.assign(np.float32([-0.0, 1.0, 1e-40, 0.0, -2.0, 3.0]))
    head.weights[2].assign(np.float32([1e-40, -1e-40, -0.0, 0.0, 1e38]))
    update = tf.function(head.update)
    rng = np.random.default_rng(0)
    before = state(head)
    for task_ids in ([1, 5, 1], [5, 5, 1], [1, 5, 5]):
        targets = rng.normal(100.0, 30.0, size=(4, 3)).astype(np.float32)
        update(tf.constant(targets), tf.constant(task_ids))
    for name, after in state(head).items():
        assert_bits_equal(after[[0, 2, 3, 4]], before[name][[0, 2, 3, 4]])
        assert (after[[1, 5]] != before[name][[1, 5]]).all()


def test_sigma_is_clipped_before_the_root() -> None:
    head = popart.ValueHead(4)
    shift = np.array([0.0, 0.1, 3.3, 0.0])
    head.shift.assign(shift)
    head.second_moment.assign([1e13, 0.0, shift[2] ** 2 - 1e-15, 1e-9])
    assert_bits_equal(head.scale, np.float32([1e6, 1e-4, 1e-4, 1e-4]))
    narrow = popart.ValueHead(2, scale_lower_bound=0.5, scale_upper_bound=2.0)
    narrow.second_moment.assign([0.01, 100.0])
    assert_bits_equal(narrow.scale, np.float32([0.5, 2.0]))


def test_statistics_start_at_zero_and_one_and_are_saved_but_not_trained() -> None:
    head = popart.ValueHead(3)
    value = head(tf.ones([5, 3]), tf.zeros([5], tf.int32))
    for tensor, start in ((head.shift, 0.0), (head.second_moment, 1.0), (head.scale, 1.0)):
        np.testing.assert_array_equal(tensor, np.full(3, start))
    assert {v.ref() for v in head.trainable_variables} == {head.weights.ref(), head.bias.ref()}
    assert {head.shift.ref(), head.second_moment.ref()} <= {v.ref() for v in head.variables}
    for older in ({"start": "fixed"}, {"normalise": False}):
        assert popart.ValueHead(3, **older).count is None, "their checkpoints have none"
    tensors = [head.weights, head.bias, *value, *head.statistics(tf.constant([0]))]
    assert {tensor.dtype for tensor in tensors} == {tf.float32}


def test_weights_start_a_hundred_times_smaller_than_a_linear_layers() -> None:
    head, layer = popart.ValueHead(100), snt.Linear(100)
    head(tf.zeros([400]), tf.constant(0))
    layer(tf.zeros([1, 400]))
    assert 100 * np.std(head.weights) == pytest.approx(np.std(layer.w), rel=0.05)
    assert not np.any(head.bias)


def test_values_are_those_of_each_states_own_task() -> None:
    head, rng = make_head(3, 6), np.random.default_rng(0)
    features = rng.normal(size=(4, 5, 6)).astype(np.float32)
    task_ids = rng.integers(3, size=(4, 5))  # NumPy arrays will do.
    value = head(features, task_ids)
    weights, bias = np.float64(head.weights), np.float64(head.bias)
    normalised = (weights[task_ids] * features).sum(axis=-1) + bias[task_ids]
    unnormalised = head.scale.numpy()[task_ids] * normalised + head.shift.numpy()[task_ids]
    for actual, expected in zip(value, (normalised, unnormalised), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_without_normalisation_both_values_are_one_and_an_update_changes_nothing() -> None:
    head = make_head(3, 4, normalise=False, step_size=0.5)
    before = state(head)
    head.update(tf.fill([5, 3], 1000.0), tf.constant([0, 1, 2]))
    for name, value in state(head).items():
        assert_bits_equal(value, before[name])
    value = head(tf.ones([3, 4]), tf.constant([0, 1, 2]))
    assert_bits_equal(value.normalised, value.unnormalised)
    assert_bits_equal(head.scale, np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_tasks", 0),
        ("step_size", 0.0),
        ("step_size", 1.1),
        ("scale_lower_bound", 0.0),
        ("scale_lower_bound", 1e7),  # It is above the upper bound.
        ("start", "slow"),
        ("second_moment_of", "targets"),
    ],
)
def test_arguments_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} .*{value}"):
        popart.ValueHead(**{"num_tasks": 2, name: value})


def test_one_tasks_broken_targets_stay_with_that_task() -> None:
    head = make_head(3, 4)
    head.update(tf.constant([[np.nan, 1.0]], tf.float32), tf.constant([0, 1]))
    assert not np.isfinite(head.shift[0])
    assert all(np.isfinite(value[1:]).all() for value in state(head).values())

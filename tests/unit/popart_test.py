"""PopArt's statistics against the loop of the paper, and what an update must leave alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import popart

_EPS = float(np.finfo(np.float32).eps)


def make_head(num_tasks: int, num_features: int, seed: int = 0, **options: Any) -> popart.ValueHead:
    """A head with random weights, bias and statistics, sigma between 0.3 and 30."""
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
    """Equality of arrays bit for bit, which tells -0 from 0 and accepts NaN."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    bits = f"u{actual.itemsize}"
    np.testing.assert_array_equal(actual.view(bits), expected.view(bits))


def state(head: popart.ValueHead) -> dict[str, np.ndarray]:
    """Copies of everything that an update may change; the task is the first dimension."""
    names = ("shift", "second_moment", "weights", "bias")
    return {name: getattr(head, name).numpy().copy() for name in names}


def online_statistics(
    head: popart.ValueHead,
    targets: np.ndarray,
    task_ids: list[int],
    step_size: float,
    second_moment_of: str = "squares",
) -> tuple[np.ndarray, np.ndarray]:
    """(mu, nu) after one update a rollout, one after the other, in float64."""
    shift = np.float64(head.shift.numpy())
    second_moment = np.float64(head.second_moment.numpy())
    for targets_of_rollout, task in zip(np.float64(targets).T, task_ids, strict=True):
        mean = targets_of_rollout.mean()
        squares = (targets_of_rollout**2).mean() if second_moment_of == "squares" else mean**2
        shift[task] = (1 - step_size) * shift[task] + step_size * mean
        second_moment[task] = (1 - step_size) * second_moment[task] + step_size * squares
    return shift, second_moment


def assert_statistics(head: popart.ValueHead, expected: tuple[np.ndarray, np.ndarray]) -> None:
    """Equality with float64 statistics up to the rounding of an update."""
    np.testing.assert_allclose(head.shift, expected[0], rtol=1e-13)
    np.testing.assert_allclose(head.second_moment, expected[1], rtol=1e-13)


def outputs(head: popart.ValueHead, features: np.ndarray) -> np.ndarray:
    """Unnormalised values `[num_tasks, ...]` of every task at every state."""
    ids = [tf.fill(features.shape[:-1], task) for task in range(head.num_tasks)]
    return np.stack([head(tf.constant(features), task).unnormalised for task in ids])


def magnitude(head: popart.ValueHead, values: np.ndarray) -> np.ndarray:
    """max(|v|, |mu|, sigma) of each task, `[num_tasks, 1]`, for values `[num_tasks, N]`.

    v = sigma n + mu is a float32 sum: v is not better known than its largest term, so this, and
    not |v| alone, is what a relative error of an output can be measured by.
    """
    parts = np.concatenate([np.abs(values), np.abs([head.shift]).T, np.array([head.scale]).T], 1)
    return parts.max(axis=1, keepdims=True)


@pytest.mark.parametrize("second_moment_of", ["squares", "mean"])
@pytest.mark.parametrize(
    "task_ids", [[0], [2, 0, 1], [1, 1, 1, 1], [3, 0, 3, 3, 1, 0, 3, 1], [4] * 9 + [0] * 7]
)
@pytest.mark.parametrize("step_size", [3e-4, 0.2, 1.0])
def test_statistics_are_those_of_one_update_a_rollout_in_order(
    second_moment_of: str, task_ids: list[int], step_size: float
) -> None:
    head = make_head(5, 3, step_size=step_size, second_moment_of=second_moment_of)
    rng = np.random.default_rng(1)
    centres = rng.normal(scale=20.0, size=len(task_ids))
    targets = (centres + rng.normal(size=(6, len(task_ids)))).astype(np.float32)
    expected = online_statistics(head, targets, task_ids, step_size, second_moment_of)
    head.update(tf.constant(targets), tf.constant(task_ids))
    assert_statistics(head, expected)
    variance = np.clip(
        np.float64(head.second_moment) - np.float64(head.shift) ** 2, 1e-4**2, 1e6**2
    )
    np.testing.assert_allclose(head.scale, np.sqrt(variance), rtol=_EPS)


def test_statistics_follow_the_loop_over_many_batches() -> None:
    head = make_head(3, 2, step_size=0.05)
    rng = np.random.default_rng(0)
    for _ in range(20):
        task_ids = rng.integers(3, size=6).tolist()
        targets = rng.normal(loc=task_ids, scale=4.0, size=(5, 6)).astype(np.float32)
        expected = online_statistics(head, targets, task_ids, 0.05)
        head.update(tf.constant(targets), tf.constant(task_ids))
        assert_statistics(head, expected)


@pytest.mark.parametrize("step_size", [3e-4, 0.01])
def test_a_spread_far_below_the_mean_is_told_exactly(step_size: float) -> None:
    head = popart.ValueHead(1, step_size=step_size)
    head.shift.assign([100.0])
    head.second_moment.assign([100.0**2 + 0.07**2])
    update = tf.function(head.update)
    rng = np.random.default_rng(0)
    shift, second_moment = 100.0, 100.0**2 + 0.07**2
    for _ in range(3000):
        targets = rng.normal(100.0, 0.07, size=(5, 1)).astype(np.float32)
        update(tf.constant(targets), tf.constant([0]))
        shift += step_size * (np.float64(targets).mean() - shift)
        second_moment += step_size * ((np.float64(targets) ** 2).mean() - second_moment)
    scale = np.sqrt(second_moment - shift**2)
    np.testing.assert_allclose(scale, 0.07, rtol=0.05)
    np.testing.assert_allclose(head.shift, shift, rtol=1e-12)
    np.testing.assert_allclose(head.scale, scale, rtol=1e-6)


def test_rollouts_of_one_task_count_in_the_order_of_the_batch() -> None:
    rng = np.random.default_rng(2)
    targets = (10.0 * np.arange(4) + rng.normal(size=(5, 4))).astype(np.float32)
    task_ids = [1, 1, 0, 1]
    shifts = []
    for order in ([0, 1, 2, 3], [3, 1, 2, 0], [1, 0, 2, 3]):
        head = make_head(2, 3, step_size=0.4)
        expected = online_statistics(head, targets[:, order], task_ids, 0.4)
        head.update(tf.constant(targets[:, order]), tf.constant(task_ids))
        assert_statistics(head, expected)
        shifts.append(head.shift.numpy())
    assert len({shift[1] for shift in shifts}) == 3
    assert len({shift[0] for shift in shifts}) == 1


def test_rollouts_of_different_tasks_may_come_in_any_order() -> None:
    rng = np.random.default_rng(3)
    targets = rng.normal(size=(5, 3)).astype(np.float32)
    states = []
    for order in ([0, 1, 2], [2, 0, 1]):
        head = make_head(3, 4, step_size=0.4)
        head.update(tf.constant(targets[:, order]), tf.constant(order))
        states.append(state(head))
    for name, value in states[0].items():
        assert_bits_equal(states[1][name], value)


@pytest.mark.parametrize("second_moment_of", ["squares", "mean"])
@pytest.mark.parametrize("seed", range(4))
def test_an_update_preserves_every_unnormalised_output(second_moment_of: str, seed: int) -> None:
    head = make_head(4, 8, seed, step_size=0.3, second_moment_of=second_moment_of)
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(32, 8)).astype(np.float32)
    task_ids = [2, 0, 1, 2]
    centres = 10.0 ** rng.uniform(-2, 5, 4) * rng.choice([-1.0, 1.0], 4)
    targets = (centres * rng.normal(1.0, 0.3, size=(5, 4))).astype(np.float32)
    before, size_before = outputs(head, features), magnitude(head, outputs(head, features))
    old = state(head)
    head.update(tf.constant(targets), tf.constant(task_ids))
    after = outputs(head, features)
    size = np.maximum(size_before, magnitude(head, after))
    assert (np.abs(after - before) <= 1e-5 * size).all()
    for task in task_ids:  # The statistics moved far, so that weights and bias had to follow.
        assert abs(head.shift.numpy()[task] - old["shift"][task]) > 1e-3 * size[task]
        assert not np.allclose(head.weights[task], old["weights"][task], rtol=1e-3)


def test_outputs_survive_targets_that_move_over_orders_of_magnitude() -> None:
    head = make_head(2, 8, step_size=0.4)
    update = tf.function(head.update)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(16, 8)).astype(np.float32)
    first = before = outputs(head, features)
    largest = magnitude(head, first)
    scales, drifts = [], []
    for i in range(200):
        # Up from 1e-2 to 1e5 and down again, twice; the second task half a period behind.
        exponents = 1.5 - 3.5 * np.cos(2 * np.pi * (i / 100 + np.array([0.0, 0.5])))
        targets = 10.0**exponents * rng.normal(1.0, 0.5, size=(5, 2))
        size = magnitude(head, before)
        update(tf.constant(targets, tf.float32), tf.constant([0, 1]))
        after = outputs(head, features)
        size = np.maximum(size, magnitude(head, after))
        assert (np.abs(after - before) <= 1e-5 * size).all(), f"update {i}"
        largest = np.maximum(largest, size)
        scales.append(head.scale.numpy())
        drifts.append(np.abs(after - first) / largest)
        before = after
    # What is lost at the largest scale is lost: the whole way is measured by that scale.
    assert np.max(drifts) <= 1e-5
    assert (np.max(scales[:100], axis=0) > 1e4).all()
    assert (np.min(scales[100:], axis=0) < 1e-1).all()
    assert (np.max(scales[100:], axis=0) > 1e4).all()


def _eagerly(head: popart.ValueHead) -> Callable[..., None]:
    return head.update


def _compiled(head: popart.ValueHead) -> Callable[..., None]:
    return tf.function(head.update)


@pytest.mark.parametrize("how", [_eagerly, _compiled])
@pytest.mark.parametrize("second_moment_of", ["squares", "mean"])
def test_an_absent_task_keeps_statistics_weights_and_bias_bit_for_bit(
    how: Callable[[popart.ValueHead], Callable[..., None]], second_moment_of: str
) -> None:
    head = make_head(6, 5, step_size=0.1, second_moment_of=second_moment_of)
    # Statistics that neither a round trip through sigma nor a rescaling by one would survive:
    # thirds, a variance below the lower bound, one below zero, and sizes far apart.
    head.shift.assign([1 / 3, 0.1, 1e5, 7e-7, -4 / 3, 2.0])
    head.second_moment.assign([1.0, 0.01, 1.0000001e10, 1e-13, 16 / 9, 1e9])
    # Weights that even a product with one or a sum with zero would change.
    head.bias.assign(np.float32([-0.0, 1.0, 1e-40, 0.0, -2.0, 3.0]))
    head.weights[2].assign(np.float32([1e-40, -1e-40, -0.0, 0.0, 1e38]))
    update = how(head)
    rng = np.random.default_rng(0)
    before = state(head)
    for task_ids in ([1, 5, 1], [5, 5, 1], [1, 5, 5]):
        targets = rng.normal(100.0, 30.0, size=(4, 3)).astype(np.float32)
        update(tf.constant(targets), tf.constant(task_ids))
    after = state(head)
    for name in before:
        for task in (0, 2, 3, 4):
            assert_bits_equal(after[name][task], before[name][task])
        for task in (1, 5):
            assert (after[name][task] != before[name][task]).all()


@pytest.mark.parametrize(
    ("size", "spread"),
    [(1e8, 0.0), (1e8, 1e-8), (-1e8, 0.0), (1e-7, 0.0), (1e-7, 1.0), (3.1, 0.0), (0.0, 0.0)],
)
@pytest.mark.parametrize("second_moment_of", ["squares", "mean"])
def test_sigma_and_values_stay_finite_and_within_bounds(
    size: float, spread: float, second_moment_of: str
) -> None:
    head = make_head(2, 4, step_size=0.3, second_moment_of=second_moment_of)
    update = tf.function(head.update)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(8, 4)).astype(np.float32)
    for _ in range(100):
        targets = size * (1.0 + spread * rng.normal(size=(5, 2)))
        update(tf.constant(targets, tf.float32), tf.constant([0, 1]))
        scale = head.scale.numpy()
        assert ((scale >= np.float32(1e-4)) & (scale <= np.float32(1e6))).all()
    assert np.isfinite(outputs(head, features)).all()
    assert all(np.isfinite(value).all() for value in state(head).values())


def test_sigma_ends_at_its_bounds() -> None:
    head = make_head(2, 4, step_size=0.9)
    huge = np.float32([[1e8], [-1e8]])  # of mean 0
    targets = np.concatenate([np.zeros((2, 1), np.float32), huge], axis=1)
    for _ in range(30):
        head.update(tf.constant(targets), tf.constant([0, 1]))
    assert_bits_equal(head.scale, np.float32([1e-4, 1e6]))


def test_bounds_of_sigma_can_be_chosen() -> None:
    head = popart.ValueHead(3, scale_lower_bound=0.5, scale_upper_bound=2.0)
    head.second_moment.assign([0.01, 1.0, 100.0])
    assert_bits_equal(head.scale, np.float32([0.5, 1.0, 2.0]))


def test_a_variance_rounded_below_zero_gives_the_lower_bound() -> None:
    head = make_head(3, 2)
    shift = np.float32([0.1, 3.3, 1e8 / 3])
    below = np.nextafter(np.float32(np.float64(shift) ** 2), np.float32(0))
    assert (np.float64(below) < np.float64(shift) ** 2).all()
    head.shift.assign(shift)
    head.second_moment.assign(below)
    assert_bits_equal(head.scale, np.full(3, 1e-4, np.float32))


def test_statistics_start_at_zero_and_one() -> None:
    head = popart.ValueHead(3)
    assert_bits_equal(head.shift, np.zeros(3))
    assert_bits_equal(head.second_moment, np.ones(3))
    assert_bits_equal(head.scale, np.ones(3, np.float32))


def test_statistics_are_not_trainable() -> None:
    head = make_head(2, 3)
    trainable = {variable.ref() for variable in head.trainable_variables}
    assert trainable == {head.weights.ref(), head.bias.ref()}
    # They are saved with the module nevertheless.
    assert {head.shift.ref(), head.second_moment.ref()} <= {v.ref() for v in head.variables}


def test_no_gradient_flows_into_the_statistics() -> None:
    head = make_head(2, 3)
    statistics = [head.shift, head.second_moment]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(statistics)
        value = head(tf.ones([4, 3]), tf.constant([0, 1, 1, 0]))
        shift, scale = head.statistics(tf.constant([0, 1]))
    assert tape.gradient(value.unnormalised, statistics) == [None, None]
    assert tape.gradient(value.normalised, statistics) == [None, None]
    assert tape.gradient([shift, scale], statistics) == [None, None]
    assert tape.gradient(value.unnormalised, head.weights) is not None


def test_the_gradient_of_a_value_touches_its_own_task_only() -> None:
    head = make_head(4, 3)
    features = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    with tf.GradientTape(persistent=True) as tape:
        value = head(tf.constant(features), tf.constant([2, 0]))
        normalised, unnormalised = value.normalised[0], value.unnormalised[0]
    scale = head.scale.numpy()[2]
    for output, slope in ((normalised, 1.0), (unnormalised, scale)):
        weights, bias = tape.gradient(output, [head.weights, head.bias])
        expected = np.zeros((4, 3), np.float32)
        expected[2] = slope * features[0]
        np.testing.assert_allclose(weights, expected, rtol=4 * _EPS)
        np.testing.assert_allclose(bias, np.eye(4)[2] * slope, rtol=4 * _EPS)


@pytest.mark.parametrize("leading", [(), (5,), (4, 3)])
def test_values_are_those_of_each_states_own_task(leading: tuple[int, ...]) -> None:
    head = make_head(3, 6)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(*leading, 6)).astype(np.float32)
    task_ids = rng.integers(3, size=leading)
    value = head(tf.constant(features), tf.constant(task_ids, tf.int32))
    weights, bias = np.float64(head.weights), np.float64(head.bias)
    normalised = (weights[task_ids] * features).sum(axis=-1) + bias[task_ids]
    shift, scale = head.shift.numpy()[task_ids], head.scale.numpy()[task_ids]
    assert value.normalised.shape == value.unnormalised.shape == leading
    np.testing.assert_allclose(value.normalised, normalised, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        value.unnormalised, scale * normalised + shift, rtol=0, atol=1e-5 * np.max(scale)
    )
    np.testing.assert_array_equal(
        value.unnormalised, head.unnormalise(value.normalised, tf.constant(task_ids))
    )


def test_without_normalisation_an_update_changes_nothing() -> None:
    head = make_head(3, 4, normalise=False, step_size=0.5)
    before = state(head)
    for update in (head.update, tf.function(head.update)):
        update(tf.fill([5, 3], 1000.0), tf.constant([0, 1, 2]))
    for name, value in state(head).items():
        assert_bits_equal(value, before[name])
    assert_bits_equal(head.scale, np.ones(3, np.float32))


def test_without_normalisation_both_values_are_one() -> None:
    head = make_head(3, 4, normalise=False)
    features = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    value = head(tf.constant(features), tf.constant([0, 1, 2, 2, 1, 0, 0]))
    assert_bits_equal(value.normalised, value.unnormalised)
    assert np.ptp(value.normalised) > 0.1


def test_all_but_the_statistics_is_float32() -> None:
    head = make_head(2, 3)
    head.update(tf.ones([4, 2]), tf.constant([0, 1]))
    value = head(tf.ones([5, 3]), tf.zeros([5], tf.int32))
    parameters = head.trainable_variables
    tensors = [*parameters, head.scale, *value, *head.statistics(tf.constant([0]))]
    assert len(parameters) == 2
    assert {tensor.dtype for tensor in tensors} == {tf.float32}
    assert head.shift.dtype == head.second_moment.dtype == tf.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_tasks": 0}, "num_tasks"),
        ({"step_size": 0.0}, "step_size"),
        ({"step_size": 1.1}, "step_size"),
        ({"scale_lower_bound": 0.0}, "bounds"),
        ({"scale_lower_bound": 2.0, "scale_upper_bound": 1.0}, "bounds"),
        ({"second_moment_of": "targets"}, "second_moment_of"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        popart.ValueHead(**{"num_tasks": 2, **arguments})


def test_update_before_the_first_call_moves_the_statistics() -> None:
    head = popart.ValueHead(2, step_size=0.5)
    head.update(tf.constant([[4.0]]), tf.constant([1]))
    np.testing.assert_array_equal(head.shift, [0.0, 2.0])
    np.testing.assert_array_equal(head.second_moment, [1.0, 8.5])


@pytest.mark.parametrize("target", [np.nan, np.inf])
def test_one_tasks_broken_targets_stay_with_that_task(target: float) -> None:
    head = popart.ValueHead(3)
    head(tf.ones([1, 4]), tf.constant([0]))
    head.update(tf.constant([[target, 1.0]], tf.float32), tf.constant([0, 1]))
    assert not np.isfinite(head.shift[0])
    assert np.all(np.isfinite(head.shift[1:]))
    assert np.all(np.isfinite(head.weights[1:]))


def test_task_ids_may_be_numpy_arrays() -> None:
    head = popart.ValueHead(2)
    value = head(np.ones([3, 4], np.float32), np.array([0, 1, 1]))
    head.update(np.ones([5, 2], np.float32), np.array([0, 1]))
    assert value.normalised.shape == value.unnormalised.shape == [3]

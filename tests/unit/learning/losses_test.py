"""The losses by their gradients, against expressions derived by hand, and their sums."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import vtrace
from scalable_agent_popart.learning import losses

_EPS = float(np.finfo(np.float32).eps)
_REWARDS = [-10.0, -1.0, -0.5, 0.0, 0.5, 1.0, 10.0]


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> tf.Tensor:
    """Float32 noise."""
    rng = np.random.default_rng([seed, *shape])
    return tf.constant(rng.normal(scale=scale, size=shape), tf.float32)


def random_actions(num_steps: int, batch_size: int, num_actions: int) -> tf.Tensor:
    """Int32 actions `[num_steps, batch_size]`."""
    rng = np.random.default_rng(0)
    return tf.constant(rng.integers(num_actions, size=(num_steps, batch_size)), tf.int32)


def softmax(logits: tf.Tensor) -> np.ndarray:
    """In float64, over the last axis."""
    exponentials = np.exp(np.float64(logits))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def gradient(loss: Callable[[tf.Tensor], tf.Tensor], at: tf.Tensor) -> np.ndarray:
    """The gradient of a scalar function of one tensor."""
    with tf.GradientTape() as tape:
        tape.watch(at)
        result = loss(at)
    assert result.shape == ()
    return tape.gradient(result, at).numpy()


def policy_gradient_loss(logits: tf.Tensor, actions: tf.Tensor, advantages: tf.Tensor) -> tf.Tensor:
    """The loss of these logits, by V-trace's own log-probabilities as in the learner."""
    log_probs = vtrace.log_probs_from_logits_and_actions(logits, actions)
    return losses.policy_gradient_loss(log_probs, advantages)


def test_the_policy_gradient_is_advantage_times_softmax_minus_one_hot() -> None:
    logits, actions = normal(5, 3, 4), random_actions(5, 3, 4)
    advantages = normal(5, 3, scale=2.0)
    actual = gradient(lambda x: policy_gradient_loss(x, actions, advantages), logits)
    expected = (softmax(logits) - np.eye(4)[actions]) * advantages.numpy()[..., np.newaxis]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=16 * _EPS)


def test_the_policy_gradient_loss_is_minus_advantage_times_log_probability() -> None:
    logits = tf.constant([[[0.0, np.log(3.0)], [np.log(4.0), 0.0]]], tf.float32)
    advantages = tf.constant([[2.0, -1.0]])
    loss = policy_gradient_loss(logits, tf.constant([[1, 0]]), advantages)
    np.testing.assert_allclose(loss, -2 * np.log(3 / 4) + np.log(4 / 5), rtol=4 * _EPS)


def test_the_value_gradient_is_value_minus_normalised_target() -> None:
    targets, values = normal(5, 3, scale=20.0), normal(5, 3)
    shift, scale = normal(3, scale=10.0), tf.constant([0.5, 1.0, 30.0])
    actual = gradient(lambda n: losses.value_loss(targets, n, shift, scale), values)
    expected = np.float64(values) - (np.float64(targets) - shift.numpy()) / scale.numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4 * _EPS * np.abs(expected).max())


def test_the_value_loss_is_half_the_squared_distance() -> None:
    targets, values = tf.constant([[13.0, 1.0]]), tf.constant([[0.5, 3.0]])
    loss = losses.value_loss(targets, values, tf.constant([5.0, 0.0]), tf.constant([4.0, 1.0]))
    assert loss == 0.5 * (1.5**2 + 2.0**2)


def test_the_entropy_gradient_is_probability_times_log_probability_plus_entropy() -> None:
    logits = normal(5, 3, 4, scale=2.0)
    actual = gradient(losses.entropy_loss, logits)
    probabilities = softmax(logits)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=-1, keepdims=True)
    expected = probabilities * (np.log(probabilities) + entropy)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=16 * _EPS)


def test_the_entropy_loss_of_a_uniform_policy_is_the_lowest() -> None:
    uniform = losses.entropy_loss(tf.fill([5, 3, 4], 0.7))
    np.testing.assert_allclose(uniform, -15 * np.log(4), rtol=4 * _EPS)
    assert losses.entropy_loss(normal(5, 3, 4)) > uniform


@pytest.mark.parametrize("axis", [0, 1])
def test_losses_are_sums_over_time_and_batch(axis: int) -> None:
    logits, actions, advantages = normal(5, 3, 4), random_actions(5, 3, 4), normal(5, 3)
    targets, values, shift = normal(5, 3), normal(5, 3, seed=1), normal(5, 3, seed=2)
    scale = tf.exp(normal(5, 3, seed=3))

    def twice(tensor: tf.Tensor) -> tf.Tensor:
        return tf.concat([tensor, tensor], axis=axis)

    for loss, arguments in (
        (policy_gradient_loss, (logits, actions, advantages)),
        (losses.value_loss, (targets, values, shift, scale)),
        (losses.entropy_loss, (logits,)),
    ):
        once = loss(*arguments)
        assert abs(once) > 1.0
        np.testing.assert_allclose(
            loss(*(twice(argument) for argument in arguments)), 2 * once, rtol=8 * _EPS
        )


def test_no_gradient_flows_into_advantages_targets_and_statistics() -> None:
    advantages, targets, shift, scale = normal(5, 3), normal(5, 3), normal(3), tf.ones([3])
    constants = [advantages, targets, shift, scale]
    logits, values = normal(5, 3, 4), normal(5, 3, seed=1)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([*constants, logits, values])
        policy_loss = policy_gradient_loss(logits, random_actions(5, 3, 4), advantages)
        value_loss = losses.value_loss(targets, values, shift, scale)
    assert tape.gradient([policy_loss, value_loss], constants) == [None] * 4
    assert tape.gradient(policy_loss, logits) is not None
    assert tape.gradient(value_loss, values) is not None


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        ("abs_one", [-1.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.0]),
        ("none", _REWARDS),
        # 5 tanh(r / 5), times 0.3 where negative.
        (
            "soft_asymmetric",
            [-1.44604137, -0.29606298, -0.14950199, 0.0, 0.49833997, 0.98687660, 4.82013790],
        ),
        # 0.3 min(tanh r, 0) + 5 max(tanh r, 0).
        (
            "oar",
            [-0.3, -0.22847825, -0.13863515, 0.0, 2.31058579, 3.80797078, 4.99999998],
        ),
    ],
)
def test_reward_clipping_has_its_golden_values(clipping: str, expected: list[float]) -> None:
    clipped = losses.clip_rewards(tf.constant(_REWARDS), clipping)
    np.testing.assert_allclose(clipped, expected, rtol=4 * _EPS)
    assert clipped.dtype == tf.float32


def test_reward_clipping_keeps_the_shape() -> None:
    rewards = normal(4, 2, scale=3.0)
    for clipping in ("abs_one", "none", "soft_asymmetric", "oar"):
        clipped = losses.clip_rewards(rewards, clipping)
        assert clipped.shape == (4, 2)
        np.testing.assert_array_equal(np.sign(clipped), np.sign(rewards))


@pytest.mark.parametrize("clipping", ["", "abs_two", "None"])
def test_an_unknown_reward_clipping_is_refused(clipping: str) -> None:
    with pytest.raises(ValueError, match=repr(clipping)):
        losses.clip_rewards(tf.zeros([2]), clipping)

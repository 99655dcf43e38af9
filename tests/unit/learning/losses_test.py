"""The losses by their gradients, against expressions derived by hand, and their sums."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import vtrace
from scalable_agent_popart.learning import losses
from tests.fakes.oracles import EPS, log_softmax

_REWARDS = [-10.0, -1.0, -0.5, 0.0, 0.5, 1.0, 10.0]
_ACTIONS = tf.constant(np.random.default_rng(0).integers(4, size=(5, 3)), tf.int32)


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> tf.Tensor:
    """Makes float32 noise."""
    rng = np.random.default_rng([seed, *shape])
    return tf.constant(rng.normal(scale=scale, size=shape), tf.float32)


def gradient(loss: Callable[[tf.Tensor], tf.Tensor], at: tf.Tensor) -> np.ndarray:
    """Returns the gradient of a scalar function of one tensor."""
    with tf.GradientTape() as tape:
        tape.watch(at)
        result = loss(at)
    assert result.shape == ()
    return tape.gradient(result, at).numpy()


def policy_gradient_loss(logits: tf.Tensor, actions: tf.Tensor, advantages: tf.Tensor) -> tf.Tensor:
    """Computes the loss of these logits by V-trace's own log-probabilities, as the learner does."""
    log_probs = vtrace.log_probs_from_logits_and_actions(logits, actions)
    return losses.policy_gradient_loss(log_probs, advantages)


def test_the_policy_gradient_is_advantage_times_softmax_minus_one_hot() -> None:
    logits, advantages = normal(5, 3, 4), normal(5, 3, scale=2.0)
    actual = gradient(lambda x: policy_gradient_loss(x, _ACTIONS, advantages), logits)
    softmax = np.exp(log_softmax(logits))
    expected = (softmax - np.eye(4)[_ACTIONS]) * advantages.numpy()[..., np.newaxis]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=16 * EPS)


def test_the_value_gradient_is_value_minus_normalised_target() -> None:
    targets, values = normal(5, 3, scale=20.0), normal(5, 3)
    shift, scale = normal(3, scale=10.0), tf.constant([0.5, 1.0, 30.0])
    actual = gradient(lambda n: losses.value_loss(targets, n, shift, scale), values)
    expected = np.float64(values) - (np.float64(targets) - shift.numpy()) / scale.numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4 * EPS * np.abs(expected).max())


def test_the_entropy_gradient_is_probability_times_log_probability_plus_entropy() -> None:
    logits = normal(5, 3, 4, scale=2.0)
    actual = gradient(losses.entropy_loss, logits)
    log_probs = log_softmax(logits)
    entropy = -(np.exp(log_probs) * log_probs).sum(axis=-1, keepdims=True)
    expected = np.exp(log_probs) * (log_probs + entropy)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=16 * EPS)


def test_losses_are_sums_of_what_each_step_loses() -> None:
    logits = tf.constant([[[0.0, np.log(3.0)], [np.log(4.0), 0.0]]], tf.float32)
    policy = policy_gradient_loss(logits, tf.constant([[1, 0]]), tf.constant([[2.0, -1.0]]))
    np.testing.assert_allclose(policy, -2 * np.log(3 / 4) + np.log(4 / 5), rtol=4 * EPS)
    targets, values = tf.constant([[13.0], [1.0]]), tf.constant([[0.5], [-1.0]])
    value = losses.value_loss(targets, values, tf.constant([5.0]), tf.constant([4.0]))
    assert value == 0.5 * (1.5**2 + 0.0**2)
    uniform = losses.entropy_loss(tf.fill([5, 3, 4], 0.7))
    np.testing.assert_allclose(uniform, -15 * np.log(4), rtol=4 * EPS)


def test_no_gradient_flows_into_advantages_targets_and_statistics() -> None:
    advantages, targets, shift, scale = normal(5, 3), normal(5, 3), normal(3), tf.ones([3])
    constants = [advantages, targets, shift, scale]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(constants)
        policy_loss = policy_gradient_loss(normal(5, 3, 4), _ACTIONS, advantages)
        value_loss = losses.value_loss(targets, normal(5, 3, seed=1), shift, scale)
    assert tape.gradient([policy_loss, value_loss], constants) == [None] * 4


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
    clipped = losses.clip_rewards(tf.constant([_REWARDS]), clipping)
    np.testing.assert_allclose(clipped, [expected], rtol=4 * EPS)
    assert clipped.dtype == tf.float32


def test_an_unknown_reward_clipping_is_refused() -> None:
    with pytest.raises(ValueError, match="'abs_two'"):
        losses.clip_rewards(tf.zeros([2]), "abs_two")

"""Clipped rewards and what has no gradient; `learner_test.py` holds the losses to slow ones."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.learning import losses
from tests.fakes.oracles import EPS, log_softmax

_REWARDS = [-10.0, -1.0, 0.0, 0.5, 1.0, 10.0]


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        ("abs_one", [-1.0, -1.0, 0.0, 0.5, 1.0, 1.0]),
        ("none", _REWARDS),
        ("soft_asymmetric", [-1.44604137, -0.29606298, 0.0, 0.49833997, 0.9868766, 4.8201379]),
        ("oar", [-0.3, -0.22847825, 0.0, 2.31058579, 3.80797078, 4.99999998]),
    ],
)
def test_reward_clipping_has_its_golden_values(clipping: str, expected: list[float]) -> None:
    clipped = losses.clip_rewards(tf.constant([_REWARDS]), clipping)
    np.testing.assert_allclose(clipped, [expected], rtol=4 * EPS)
    scaled = losses.clip_rewards(tf.constant([_REWARDS]) / 4, clipping, scale=4.0)
    np.testing.assert_array_equal(scaled, clipped)


def test_no_gradient_flows_into_advantages_targets_and_statistics() -> None:
    noise = tf.random.stateless_normal([5, 5, 3], [0, 0])
    log_probs, values, *constants = (*noise[:4], noise[4, 0], tf.exp(noise[4, 1]))
    advantages, targets, shift, scale = constants
    with tf.GradientTape() as tape:
        tape.watch(constants)
        lost = losses.policy_gradient_loss(log_probs, advantages)
        lost += losses.value_loss(targets, values, shift, scale)
    assert tape.gradient(lost, constants) == [None] * 4


def test_diagnostics_are_means_over_each_rollouts_steps() -> None:
    noise = np.random.default_rng(0).normal(size=(8, 5, 2))  # [T, B]
    behaviour_logits, logits = noise[:3].transpose(1, 2, 0), noise[3:6].transpose(1, 2, 0)
    log_mu, log_pi = log_softmax(behaviour_logits), log_softmax(logits)
    log_rhos = (log_pi - log_mu)[..., 0]
    targets, values = noise[6:]
    expected = {
        "entropy": -(np.exp(log_pi) * log_pi).sum(axis=-1),
        "behaviour_kl": (np.exp(log_mu) * (log_mu - log_pi)).sum(axis=-1),
        "clipped_rho": np.exp(np.minimum(log_rhos, 0.0)),
        "target": targets,
        "squared_target": targets**2,
        "error": targets - values,
        "squared_error": (targets - values) ** 2,
    }
    inputs = (behaviour_logits, logits, log_rhos, targets, values)
    computed = losses.diagnostics(*(tf.constant(each, tf.float32) for each in inputs))
    assert computed.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(computed[name], value.mean(axis=0), rtol=1e-5, err_msg=name)

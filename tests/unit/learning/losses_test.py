"""Clipped rewards and what has no gradient; `learner_test.py` holds the losses to slow ones."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.learning import losses
from tests.fakes.oracles import EPS

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
    with pytest.raises(ValueError, match="'abs_two'"):
        losses.clip_rewards(tf.zeros([2]), "abs_two")


def test_no_gradient_flows_into_advantages_targets_and_statistics() -> None:
    noise = tf.random.stateless_normal([5, 5, 3], [0, 0])
    log_probs, values, *constants = (*noise[:4], noise[4, 0], tf.exp(noise[4, 1]))
    advantages, targets, shift, scale = constants
    with tf.GradientTape() as tape:
        tape.watch(constants)
        lost = losses.policy_gradient_loss(log_probs, advantages)
        lost += losses.value_loss(targets, values, shift, scale)
    assert tape.gradient(lost, constants) == [None] * 4

"""Pixel control against slow NumPy, cell by cell; its loss is held to one in `learner_test.py`."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.learning import pixel_control
from tests.fakes import oracles
from tests.fakes.oracles import EPS

T, B, NUM_ACTIONS = 6, 3, 5
# Ends within rollouts, two in one of them, and one at the last step; `[T + 1, B]`.
ENDS = np.zeros((T + 1, B), bool)
ENDS[[2, 4, 3, T], [0, 0, 1, 1]] = True


def make_head(height: int, width: int, num_features: int) -> pixel_control.QHead:
    """Makes a head with random weights; biases would start at zero."""
    head = pixel_control.QHead(NUM_ACTIONS, height, width)
    head(tf.zeros([1, 1, num_features]))
    rng = np.random.default_rng(3)
    for variable in head.trainable_variables:
        variable.assign(rng.normal(scale=0.1, size=variable.shape))
    return head


@pytest.mark.parametrize(
    ("height", "width", "channels", "grid", "margins"),
    [(36, 96, 3, (8, 24), (2, 0)), (84, 84, 1, (20, 20), (2, 2)), (46, 37, 2, (10, 8), (3, 2))],
)
def test_rewards_are_the_mean_change_of_each_cell(
    height: int, width: int, channels: int, grid: tuple, margins: tuple
) -> None:
    images = np.random.default_rng(0).integers(256, size=(T + 1, B, height, width, channels))
    images = images.astype(np.uint8)
    rewards = pixel_control.cell_rewards(tf.constant(images), tf.constant(ENDS))
    assert pixel_control.grid_shape(height, width) == rewards.shape[2:] == grid
    expected = oracles.cell_rewards(images, ENDS, *margins)
    np.testing.assert_allclose(rewards, expected, rtol=16 * EPS)


@pytest.mark.parametrize(("height", "width"), [(72, 96), (46, 37)])
def test_the_head_is_a_layer_deconvolutions_and_a_dueling_pair(height: int, width: int) -> None:
    head = make_head(height, width, num_features=40)
    rng = np.random.default_rng(3)
    features = rng.normal(size=(2, B, 40)).astype(np.float32)
    dueling = head(tf.constant(features))
    expected = oracles.q_values(head, features)
    assert expected.shape[2:4] == pixel_control.grid_shape(height, width)
    tolerance = 32 * EPS * np.abs(expected).max()
    actions = rng.integers(NUM_ACTIONS, size=(2, B))
    taken = np.stack([[expected[t, b, ..., actions[t, b]] for b in range(B)] for t in range(2)])
    values = pixel_control.action_values(dueling, tf.constant(actions))
    np.testing.assert_allclose(values, taken, rtol=0, atol=tolerance)
    maximum = pixel_control.max_values(dueling)
    np.testing.assert_allclose(maximum, expected.max(-1), rtol=0, atol=tolerance)


def test_the_head_has_the_papers_shapes() -> None:
    head = make_head(72, 96, num_features=256)
    shapes = {tuple(v.shape) for v in head.trainable_variables if v.shape.rank > 1}
    # 6x9x32 by a linear layer, 3x3 kernels, 4x4 kernels to one value and the advantages.
    assert shapes == {(256, 6 * 9 * 32), (3, 3, 32, 32), (4, 4, 1 + NUM_ACTIONS, 32)}

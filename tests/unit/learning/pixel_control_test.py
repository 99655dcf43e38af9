"""Pixel control against NumPy written as the paper's appendix puts it, cell by cell."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning import pixel_control
from tests.fakes import oracles
from tests.fakes.oracles import EPS

T, B, NUM_ACTIONS = 6, 3, 5


def random_images(height: int, width: int, channels: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(256, size=(T + 1, B, height, width, channels)).astype(np.uint8)


def random_ends() -> np.ndarray:
    """Ends within rollouts, two in one of them, and one at the last step; `[T + 1, B]`."""
    ends = np.zeros((T + 1, B), bool)
    ends[[2, 4], [0, 0]] = ends[3, 1] = ends[T, 1] = True
    return ends


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
    images, ends = random_images(height, width, channels), random_ends()
    rewards = pixel_control.cell_rewards(tf.constant(images), tf.constant(ends))
    assert pixel_control.grid_shape(height, width) == rewards.shape[2:] == grid
    expected = oracles.cell_rewards(images, ends, *margins)
    np.testing.assert_allclose(rewards, expected, rtol=16 * EPS)


def test_targets_accumulate_to_the_end_of_the_rollout_and_are_cut_at_episode_ends() -> None:
    rng = np.random.default_rng(1)
    rewards = rng.uniform(size=(T, B, 4, 6)).astype(np.float32)
    discounts = np.where(random_ends()[1:], 0, 0.9).astype(np.float32)
    q_last = rng.normal(size=(B, 4, 6, NUM_ACTIONS)).astype(np.float32)
    inputs = [tf.constant(array) for array in (rewards, discounts, q_last.max(axis=-1))]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        targets = pixel_control.q_targets(*inputs)
    expected = oracles.q_targets(np.float64(rewards), np.float64(discounts), np.float64(q_last))
    np.testing.assert_allclose(targets, expected, rtol=0, atol=16 * EPS)
    # Rollout 0 ends at its second and fourth transitions, rollout 1 at its third and its last.
    np.testing.assert_array_equal(targets[1, 0], rewards[1, 0])
    np.testing.assert_array_equal(targets[T - 1, 1], rewards[T - 1, 1])
    assert tape.gradient(targets, inputs) == [None] * 3


@pytest.mark.parametrize(("height", "width"), [(72, 96), (84, 84), (32, 32), (46, 37)])
def test_the_head_is_a_linear_layer_deconvolutions_and_a_dueling_pair(
    height: int, width: int
) -> None:
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
    assert head._first_shape == (6, 9, 32)
    assert pixel_control.QHead(NUM_ACTIONS, 84, 84)._first_shape == (7, 7, 32)


def test_the_loss_is_half_the_squared_error_and_only_predictions_learn() -> None:
    rng = np.random.default_rng(2)
    head, images, ends = make_head(32, 35, num_features=8), random_images(32, 35, 1), random_ends()
    features = tf.constant(rng.normal(size=(T + 1, B, 8)), tf.float32)
    actions = rng.integers(NUM_ACTIONS, size=(T, B))
    discounts = np.where(ends[1:], 0, 0.9).astype(np.float32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(features)
        loss = pixel_control.loss(
            head, features, tf.constant(images), tf.constant(ends), actions, discounts
        )
        predictions = pixel_control.action_values(head(features[:-1]), actions)
    q_values = oracles.q_values(head, features.numpy())
    rewards = oracles.cell_rewards(images[:, :, :, 1:33], ends, 0, 0)
    errors = predictions - oracles.q_targets(rewards, discounts, q_values[-1])
    np.testing.assert_allclose(loss, 0.5 * np.sum(np.float64(errors) ** 2), rtol=1e-5)
    sources = [features, *head.trainable_variables]
    gradients = tape.gradient(loss, sources)
    expected = tape.gradient(predictions, sources, output_gradients=errors)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())
    assert not np.any(gradients[0][-1]), "what is bootstrapped from has no gradient"


@pytest.mark.parametrize(("height", "width"), [(31, 84), (84, 31)])
def test_images_of_less_than_32_pixels_are_refused(height: int, width: int) -> None:
    given = {"level_name": "dmlab30", "pixel_control": True}
    with pytest.raises(ValueError, match=f"{height}x{width}"):
        pixel_control.QHead(NUM_ACTIONS, height, width)
    with pytest.raises(UserError, match=f"32x32.*{height}x{width}"):
        Config.from_flags({**given, "height": height, "width": width})
    pixel_control.QHead(NUM_ACTIONS, 32, 33)
    assert Config.from_flags({**given, "height": 32, "width": 33}).width == 33

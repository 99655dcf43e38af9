"""Pixel control against NumPy written as the paper's appendix puts it, cell by cell."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning import pixel_control
from tests.fakes.pixel_control_oracles import oracle_q_values, oracle_rewards, oracle_targets

EPS = float(np.finfo(np.float32).eps)
T, B, NUM_ACTIONS = 6, 3, 5


def random_images(height: int, width: int, channels: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(256, size=(T + 1, B, height, width, channels)).astype(np.uint8)


def random_ends() -> np.ndarray:
    """Ends within rollouts, two in one of them, and one at the last step; `[T + 1, B]`."""
    ends = np.zeros((T + 1, B), bool)
    ends[[2, 4], [0, 0]] = ends[3, 1] = ends[T, 1] = True
    return ends


@pytest.mark.parametrize(
    ("height", "width", "channels", "grid", "margins"),
    [
        (72, 96, 3, (18, 24), (0, 0)),
        (84, 84, 1, (20, 20), (2, 2)),
        (32, 32, 3, (8, 8), (0, 0)),
        (46, 37, 2, (10, 8), (3, 2)),
    ],
)
def test_rewards_are_the_mean_change_of_each_cell(
    height: int, width: int, channels: int, grid: tuple, margins: tuple
) -> None:
    images, ends = random_images(height, width, channels), random_ends()
    rewards = pixel_control.cell_rewards(tf.constant(images), tf.constant(ends))
    assert pixel_control.grid_shape(height, width) == rewards.shape[2:] == grid
    expected = oracle_rewards(images, ends, *margins)
    np.testing.assert_allclose(rewards, expected, rtol=16 * EPS)


def test_a_cells_reward_is_of_its_own_pixels_and_of_either_direction() -> None:
    images = np.zeros((3, 1, 72, 96, 3), np.uint8)
    images[1, 0, 8:12, 20:24] = 255  # All of cell (2, 5) brightens, and darkens again.
    images[1, 0, 71, 95, 0] = 48  # And one of the last cell's 48 bytes, by 48.
    rewards = pixel_control.cell_rewards(tf.constant(images), tf.zeros([3, 1], tf.bool)).numpy()
    expected = np.zeros((2, 1, 18, 24))
    expected[:, 0, 2, 5] = 1
    expected[:, 0, 17, 23] = 1 / 255
    np.testing.assert_allclose(rewards, expected, rtol=4 * EPS)


def test_targets_accumulate_to_the_end_of_the_rollout_and_are_cut_at_episode_ends() -> None:
    rng = np.random.default_rng(1)
    rewards = rng.uniform(size=(T, B, 4, 6)).astype(np.float32)
    discounts = np.where(random_ends()[1:], 0, 0.9).astype(np.float32)
    q_last = rng.normal(size=(B, 4, 6, NUM_ACTIONS)).astype(np.float32)
    targets = pixel_control.q_targets(rewards, tf.constant(discounts), q_last.max(axis=-1))
    expected = oracle_targets(np.float64(rewards), np.float64(discounts), np.float64(q_last))
    np.testing.assert_allclose(targets, expected, rtol=0, atol=16 * EPS)
    # Rollout 0 ends at its second and fourth transitions, rollout 1 at its third and its last.
    np.testing.assert_array_equal(targets[1, 0], rewards[1, 0])
    np.testing.assert_array_equal(targets[T - 1, 1], rewards[T - 1, 1])


def test_no_gradient_flows_through_targets() -> None:
    rewards, bootstrap = tf.ones([T, B, 4, 6]), tf.ones([B, 4, 6])
    discounts = tf.fill([T, B], 0.9)
    with tf.GradientTape() as tape:
        tape.watch([rewards, discounts, bootstrap])
        targets = pixel_control.q_targets(rewards, discounts, bootstrap)
    assert tape.gradient(targets, [rewards, discounts, bootstrap]) == [None] * 3


def test_the_loss_and_its_gradient_are_those_of_half_the_squared_error() -> None:
    rng = np.random.default_rng(2)
    predictions, targets = (tf.constant(rng.normal(size=(T, B, 4, 6)), tf.float32) for _ in "12")
    with tf.GradientTape() as tape:
        tape.watch([predictions, targets])
        loss = pixel_control.loss(predictions, targets)
    errors = np.float64(predictions) - np.float64(targets)
    np.testing.assert_allclose(loss, 0.5 * (errors**2).sum(), rtol=16 * EPS)
    for_predictions, for_targets = tape.gradient(loss, [predictions, targets])
    np.testing.assert_allclose(for_predictions, errors, rtol=0, atol=4 * EPS)
    assert for_targets is None


@pytest.mark.parametrize(("height", "width"), [(72, 96), (84, 84), (32, 32), (46, 37)])
def test_the_head_is_a_linear_layer_deconvolutions_and_a_dueling_pair(
    height: int, width: int
) -> None:
    tf.random.set_seed(0)
    head = pixel_control.QHead(NUM_ACTIONS, height, width)
    rng = np.random.default_rng(3)
    features = rng.normal(size=(2, B, 40)).astype(np.float32)
    values = head(tf.constant(features))
    for variable in head.trainable_variables:  # Biases start at zero.
        variable.assign(rng.normal(scale=0.1, size=variable.shape))
    values = head(tf.constant(features))
    expected = oracle_q_values(head, features.reshape(2 * B, -1))
    expected = expected.reshape(2, B, *expected.shape[1:])
    scale = np.abs(expected).max()
    actions = rng.integers(NUM_ACTIONS, size=(2, B))
    taken = np.stack([[expected[t, b, ..., actions[t, b]] for b in range(B)] for t in range(2)])
    assert expected.shape[2:4] == pixel_control.grid_shape(height, width)
    np.testing.assert_allclose(values.of(tf.constant(actions)), taken, atol=32 * EPS * scale)
    np.testing.assert_allclose(values.greatest(), expected.max(-1), atol=32 * EPS * scale)


def test_the_head_has_the_papers_shapes() -> None:
    head = pixel_control.QHead(NUM_ACTIONS, 72, 96)
    assert head(tf.zeros([1, 1, 256])).dueling.shape == (1, 1, 18, 24, 1 + NUM_ACTIONS)
    shapes = {tuple(v.shape) for v in head.trainable_variables if v.shape.rank > 1}
    # 6x9x32 by a linear layer, 3x3 kernels, 4x4 kernels to one value and the advantages.
    assert shapes == {(256, 6 * 9 * 32), (3, 3, 32, 32), (4, 4, 1 + NUM_ACTIONS, 32)}
    assert head._first_shape == (6, 9, 32)
    assert pixel_control.QHead(NUM_ACTIONS, 84, 84)._first_shape == (7, 7, 32)


@pytest.mark.parametrize(("height", "width"), [(31, 84), (84, 31), (10, 5)])
def test_too_small_images_are_refused(height: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"{height}x{width}"):
        pixel_control.QHead(NUM_ACTIONS, height, width)
    with pytest.raises(UserError, match=f"32x32.*{height}x{width}"):
        Config.from_flags(
            {"level_name": "dmlab30", "pixel_control": True, "height": height, "width": width}
        )


def test_from_32_pixels_on_both_head_and_configuration_take_an_image() -> None:
    pixel_control.QHead(NUM_ACTIONS, 32, 33)
    size = {"height": 32, "width": 33}
    assert Config.from_flags({"level_name": "dmlab30", "pixel_control": True, **size}).width == 33

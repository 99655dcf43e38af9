"""Pixel control: learning on the side how to change what is seen.

An auxiliary task of Jaderberg et al. (2017, UNREAL), as Hessel et al. (2019) use it (appendix,
"Pixel Control"). The image is split into cells of 4x4 pixels. Each cell (i, j) has a
pseudo-reward, how much its pixels change from one step to the next, and action values of its own,
learned by multi-step Q-learning from what the actors experience anyway:

  r_ij(t) = mean over the cell of |x_{t+1} - x_t|
  G_ij(t) = r_ij(t) + gamma G_ij(t + 1)           G_ij(T) = max_a Q_ij(x_T, a)
  loss    = sum over t, i, j of 1/2 (G_ij(t) - Q_ij(x_t, a_t))^2

Nothing acts on these values; what they are for is the features that learning them makes.

Choices that the paper leaves open:

* Intensities are in [0, 1], as the torso sees them, and of a colour image a cell's reward is the
  mean over its channels too.
* The loss is a sum over cells, as it is over time and batch. The paper does not give its weight.
  The default of `--pixel_control_cost`, 0.01, is ours; UNREAL drew its own from 0.01 to 0.1 for
  Labyrinth, and from 0.0001 to 0.01 for Atari.
* Where an episode ends, also by a lost life, gamma = 0. Where the next image belongs to another
  game, its change is not the action's doing, and r = 0; after a lost life it is kept.
* The grid is the largest with an even number of cells a side, at least 8. What is left over is cut
  off at the margins, as in UNREAL: of 84x84 pixels the central 80x80 count.
* The head's hidden layers are rectified, and its outputs are not.
"""

import math
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

_CELL = 4
_NUM_CHANNELS = 32
# The deconvolutions make 2 (n + 2) + 2 cells of n.
_FEWEST_CELLS = 8


def grid_shape(height: int, width: int) -> tuple[int, int]:
    """Rows and columns of cells in an image of so many pixels.

    Raises:
      ValueError: if it is smaller than 32x32, too small for the head.
    """
    rows, columns = height // _CELL // 2 * 2, width // _CELL // 2 * 2
    if min(rows, columns) < _FEWEST_CELLS:
        least = _CELL * _FEWEST_CELLS
        raise ValueError(f"{height}x{width} pixels are fewer than {least}x{least}")
    return rows, columns


def cell_rewards(images: tf.Tensor, episode_ends: tf.Tensor) -> tf.Tensor:
    """The pseudo-rewards r_ij.

    Args:
      images: `[T + 1, B, height, width, channels]` uint8, what was seen at each step.
      episode_ends: `[T + 1, B]` bool, whether the image is the first of another episode.

    Returns:
      `[T, B, rows, columns]` float32 in [0, 1], no gradient: entry t is what the action taken at
      step t has changed.
    """
    steps, _, height, width, channels = images.shape
    rows, columns = grid_shape(height, width)
    top, left = (height - _CELL * rows) // 2, (width - _CELL * columns) // 2
    images = images[:, :, top : top + _CELL * rows, left : left + _CELL * columns]
    # A difference of bytes, without their wrapping around below zero.
    changes = tf.maximum(images[1:], images[:-1]) - tf.minimum(images[1:], images[:-1])
    # [T, B, 4 rows, 4 columns, channels] -> [T, B, rows, 4, columns, 4 channels]
    cells = tf.reshape(changes, [steps - 1, -1, rows, _CELL, columns, _CELL * channels])
    # In two steps, which reduce over neighbours and then over rows, in half the time of one.
    by_row = tf.reduce_mean(tf.cast(cells, tf.float32), axis=5)  # [T, B, rows, 4, columns]
    rewards = tf.reduce_mean(by_row, axis=3) / 255.0
    return tf.where(episode_ends[1:, :, tf.newaxis, tf.newaxis], 0.0, rewards)


def q_targets(rewards: tf.Tensor, discounts: tf.Tensor, bootstrap: tf.Tensor) -> tf.Tensor:
    """The targets G_ij, accumulated to the end of the rollout.

    Args:
      rewards: `[T, B, rows, columns]`.
      discounts: `[T, B]`, 0 where the transition ended an episode.
      bootstrap: `[B, rows, columns]`, the greatest action value at time T.

    Returns:
      `[T, B, rows, columns]`, without gradient.
    """

    def step(following: tf.Tensor, elements: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        reward, discount = elements
        return reward + discount[:, tf.newaxis, tf.newaxis] * following

    return tf.stop_gradient(
        tf.scan(
            step,
            elems=(rewards, discounts),
            initializer=bootstrap,
            parallel_iterations=1,
            reverse=True,
        )
    )


def loss(predictions: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """sum 1/2 (G_ij - Q_ij(x_t, a_t))^2, a scalar.

    Args:
      predictions: `[T, B, rows, columns]`, values of the actions taken.
      targets: `[T, B, rows, columns]`; no gradient flows into them.
    """
    return 0.5 * tf.reduce_sum(tf.square(tf.stop_gradient(targets) - predictions))


class ActionValues(NamedTuple):
    """Q_ij(x, a) = V_ij(x) + A_ij(x, a) - mean over all b of A_ij(x, b), of every cell.

    Kept as V and A: no more is needed than the values of one action, and the greatest.
    """

    # [..., rows, columns, 1 + num_actions]: V, then A of each action.
    dueling: tf.Tensor

    def of(self, actions: tf.Tensor) -> tf.Tensor:
        """Those of the given actions `[...]` (int32): `[..., rows, columns]`."""
        *leading, rows, columns, size = self.dueling.shape
        leading = [-1 if length is None else length for length in leading]
        num_actions = size - 1
        taken = tf.one_hot(actions, num_actions) - 1.0 / num_actions  # [..., num_actions]
        weights = tf.concat([tf.ones_like(taken[..., :1]), taken], axis=-1)
        # [..., rows, columns, size] -> [..., rows * columns, size]
        flat = tf.reshape(self.dueling, [*leading, rows * columns, size])
        return tf.reshape(tf.linalg.matvec(flat, weights), [*leading, rows, columns])

    def greatest(self) -> tf.Tensor:
        """max_a Q_ij(x, a): `[..., rows, columns]`."""
        value, advantage = self.dueling[..., 0], self.dueling[..., 1:]
        return value + tf.reduce_max(advantage, axis=-1) - tf.reduce_mean(advantage, axis=-1)


class QHead(snt.Module):
    """Action values of every cell: a linear layer, then deconvolutions.

    Of 72x96 pixels: 6x9x32, after 3x3 kernels 8x11x32, after 4x4 kernels with stride 2 18x24
    values, and as many advantages of each action. In float32, whatever the torso's type.
    """

    def __init__(self, num_actions: int, height: int, width: int, name: str = "q_head"):
        """Builds the modules.

        Args:
          num_actions: size of the action set.
          height: of the image, in pixels.
          width: of the image, in pixels.
          name: of the module.

        Raises:
          ValueError: if the image is too small.
        """
        super().__init__(name=name)
        grid = grid_shape(height, width)
        self._first_shape = (*(n // 2 - 3 for n in grid), _NUM_CHANNELS)
        self._linear = snt.Linear(math.prod(self._first_shape))
        self._hidden = snt.Conv2DTranspose(_NUM_CHANNELS, 3, padding="VALID", name="hidden")
        # Value and advantages, two deconvolutions in the paper, are channels of one, which is
        # faster. The shape is given, because with stride 2 two sizes belong to the same input.
        self._dueling = snt.Conv2DTranspose(
            1 + num_actions, 4, output_shape=grid, stride=2, padding="VALID", name="dueling"
        )

    def __call__(self, features: tf.Tensor) -> ActionValues:
        """The action values for features `[T, B, D]`."""
        steps = features.shape[0]
        hidden = tf.nn.relu(snt.BatchApply(self._linear)(features))
        hidden = tf.reshape(hidden, [-1, *self._first_shape])  # [T * B, rows / 2 - 3, ...]
        dueling = self._dueling(tf.nn.relu(self._hidden(hidden)))
        # [T * B, rows, columns, 1 + num_actions] -> [T, B, rows, columns, 1 + num_actions]
        return ActionValues(tf.reshape(dueling, [steps, -1, *dueling.shape[1:]]))

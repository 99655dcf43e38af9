"""Pixel control: learning on the side how to change what is seen.

An auxiliary task of Jaderberg et al. (2017, UNREAL), as Hessel et al. (2019) use it (appendix,
"Pixel Control"). The image is split into cells of 4x4 pixels. The pseudo-reward of a cell (i, j) is
how much its pixels change from one step to the next. Each cell has its own action values, learned
by multi-step Q-learning from what the actors experience anyway:

  r_ij(t) = mean over the cell of |x_{t+1} - x_t|
  G_ij(t) = r_ij(t) + gamma G_ij(t + 1)           G_ij(T) = max_a Q_ij(x_T, a)
  loss    = sum over t, i, j of 1/2 (G_ij(t) - Q_ij(x_t, a_t))^2

Nothing acts on these values; they are learned for the sake of the features.

Choices that the paper leaves open:

* Intensities are in [0, 1], as the torso sees them, and of a colour image a cell's reward is the
  mean over its channels too.
* The loss is a sum over cells, as it is over time and batch. The paper does not give its weight.
  The default of `--pixel_control_cost`, 0.01, is ours; UNREAL sampled its own from 0.01 to 0.1 for
  Labyrinth, and from 0.0001 to 0.01 for Atari.
* If an episode ends, also by a lost life, gamma = 0. If the next image belongs to another game, its
  change is not the action's doing, and r = 0; after a lost life it is kept.
* The grid is the largest with an even number of cells per side, at least 8. The margins are cut
  off, as in UNREAL: the central 80x80 of 84x84 pixels count.
* The head's hidden layers are rectified, and its outputs are not.
"""

import math

import sonnet as snt
import tensorflow as tf

_CELL = 4
_NUM_CHANNELS = 32
_MIN_CELLS = 8  # The deconvolutions make 2 (n + 2) + 2 cells of n.


def grid_shape(height: int, width: int) -> tuple[int, int]:
    """Returns the rows and columns of cells in an image; refuses one smaller than 32x32 pixels."""
    rows, columns = height // _CELL // 2 * 2, width // _CELL // 2 * 2
    if min(rows, columns) < _MIN_CELLS:
        raise ValueError(f"{height}x{width} pixels are fewer than 32x32")
    return rows, columns


class QHead(snt.Module):
    """Action values of every cell: a linear layer, then deconvolutions (a dueling network).

      Q_ij(x, a) = V_ij(x) + A_ij(x, a) - mean over all b of A_ij(x, b)

    From 72x96 pixels it makes 6x9x32, after 3x3 kernels 8x11x32, and after 4x4 kernels with stride
    2 18x24 values, and as many advantages of each action. All is float32.
    """

    def __init__(self, num_actions: int, height: int, width: int):
        super().__init__()
        grid = grid_shape(height, width)
        self._first_shape = (*(n // 2 - 3 for n in grid), _NUM_CHANNELS)
        self._linear = snt.Linear(math.prod(self._first_shape))
        self._hidden = snt.Conv2DTranspose(_NUM_CHANNELS, 3, padding="VALID", name="hidden")
        # Value and advantages, two deconvolutions in the paper, are channels of one, which is
        # faster. The shape is given, because with stride 2 two sizes belong to the same input.
        self._dueling = snt.Conv2DTranspose(
            1 + num_actions, 4, output_shape=grid, stride=2, padding="VALID", name="dueling"
        )

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Maps features `[T, B, D]` to V, then A, `[T, B, rows, columns, 1 + num_actions]`.

        From these, `action_values` and `max_values` compute what is needed of Q.
        """
        steps = features.shape[0]
        hidden = tf.nn.relu(snt.BatchApply(self._linear)(features))
        # [T, B, F] -> [T * B, rows / 2 - 3, columns / 2 - 3, 32]
        hidden = tf.reshape(hidden, [-1, *self._first_shape])
        dueling = self._dueling(tf.nn.relu(self._hidden(hidden)))
        # [T * B, rows, columns, 1 + num_actions] -> [T, B, rows, columns, 1 + num_actions]
        return tf.reshape(dueling, [steps, -1, *dueling.shape[1:]])


def action_values(dueling: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Computes Q_ij(x, a) `[T, B, rows, columns]` of given actions `[T, B]`, from V and A."""
    steps, _, rows, columns, size = dueling.shape
    taken = tf.one_hot(actions, size - 1) - 1.0 / (size - 1)  # [T, B, num_actions]
    weights = tf.concat([tf.ones_like(taken[..., :1]), taken], axis=-1)
    # [T, B, rows, columns, size] -> [T, B, rows * columns, size]
    flat = tf.reshape(dueling, [steps, -1, rows * columns, size])
    return tf.reshape(tf.linalg.matvec(flat, weights), [steps, -1, rows, columns])


def max_values(dueling: tf.Tensor) -> tf.Tensor:
    """Computes max_a Q_ij(x, a) `[..., rows, columns]` from V and A."""
    value, advantage = dueling[..., 0], dueling[..., 1:]
    return value + tf.reduce_max(advantage, axis=-1) - tf.reduce_mean(advantage, axis=-1)


def cell_rewards(images: tf.Tensor, episode_ends: tf.Tensor) -> tf.Tensor:
    """Computes the pseudo-rewards r_ij `[T, B, rows, columns]` in [0, 1], without gradient.

    Entry t is what the action taken at step t has changed. Images are `[T + 1, B, height, width,
    channels]` uint8; ends `[T + 1, B]` mark images that are the first of another episode.
    """
    steps, _, height, width, channels = images.shape
    rows, columns = grid_shape(height, width)
    top, left = (height - _CELL * rows) // 2, (width - _CELL * columns) // 2
    images = images[:, :, top : top + _CELL * rows, left : left + _CELL * columns]
    # A plain difference of bytes would wrap around below zero.
    changes = tf.maximum(images[1:], images[:-1]) - tf.minimum(images[1:], images[:-1])
    # [T, B, 4 rows, 4 columns, channels] -> [T, B, rows, 4, columns, 4 channels]
    cells = tf.reshape(changes, [steps - 1, -1, rows, _CELL, columns, _CELL * channels])
    # Reducing over neighbours and then over rows takes half the time of one reduction.
    by_row = tf.reduce_mean(tf.cast(cells, tf.float32), axis=5)  # [T, B, rows, 4, columns]
    rewards = tf.reduce_mean(by_row, axis=3) / 255.0
    return tf.where(episode_ends[1:, :, tf.newaxis, tf.newaxis], 0.0, rewards)


def q_targets(rewards: tf.Tensor, discounts: tf.Tensor, bootstrap: tf.Tensor) -> tf.Tensor:
    """Accumulates the targets G_ij `[T, B, rows, columns]` to the rollout's end, without gradient.

    Rewards are r_ij, shaped alike; discounts are gamma `[T, B]`, 0 where the action ended an
    episode; the bootstrap is max_a Q_ij(x_T, a) `[B, rows, columns]`.
    """
    targets = tf.scan(
        lambda following, step: step[0] + step[1] * following,
        elems=(rewards, discounts[:, :, tf.newaxis, tf.newaxis]),
        initializer=bootstrap,
        parallel_iterations=1,
        reverse=True,
    )
    return tf.stop_gradient(targets)


def loss(
    q_head: QHead,
    features: tf.Tensor,
    images: tf.Tensor,
    episode_ends: tf.Tensor,
    actions: tf.Tensor,
    discounts: tf.Tensor,
) -> tf.Tensor:
    """Computes the loss of a batch of rollouts, a scalar.

    The head learns from it, and so do the features `[T + 1, B, D]` except the last step's. Actions
    a_t are `[T, B]`; the rest is as in `cell_rewards` and `q_targets`.
    """
    # The last step's values are separate because no gradient may flow through them.
    bootstrap = max_values(q_head(features[-1:]))[0]  # [B, rows, columns]
    targets = q_targets(cell_rewards(images, episode_ends), discounts, bootstrap)
    predictions = action_values(q_head(features[:-1]), actions)
    return 0.5 * tf.reduce_sum(tf.square(targets - predictions))

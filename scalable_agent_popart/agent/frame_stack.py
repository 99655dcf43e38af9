"""The last four frames of a game, packed into one word per pixel.

Environments, rollouts and the queue carry single frames; the agent keeps the stack as recurrent
state. A byte is a pixel of one frame, and the highest byte is the newest, so that a step is a
shift. In memory the oldest frame comes first.
"""

import numpy as np
import tensorflow as tf

_SHIFTS = np.array([24, 16, 8, 0], np.uint32)  # Places of frames in a word, the newest first.


def unroll(frames: tf.Tensor, starts: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Stacks frames over time.

    Args:
      frames: `[T, B, H, W, 1]` uint8.
      starts: `[T, B]` bool, whether a step is the first of its game; it is stacked on black.
      state: `[B, H, W]` uint32, the stacks before the first of these steps; zeros are black.

    Returns:
      The stacks `[T, B, H, W, 4]` uint8, oldest frame first, and the state after the last step.
    """
    stacks = []
    # TensorFlow unstacks bytes on a GPU, but words only on the processor.
    for newest in tf.unstack(tf.squeeze(frames, -1)):  # [B, H, W]
        word = tf.bitwise.left_shift(tf.cast(newest, tf.uint32), _SHIFTS[0])
        state = tf.bitwise.bitwise_or(tf.bitwise.right_shift(state, np.uint32(8)), word)
        stacks.append(state)
    stacked = tf.stack(stacks)
    # Games start rarely, so most calls save another pass over all pixels.
    stacked = tf.cond(tf.reduce_any(starts), lambda: _on_black(stacked, starts), lambda: stacked)
    return tf.bitcast(stacked, tf.uint8), stacked[-1]


def _on_black(stacks: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
    """Blackens, in stacks `[T, B, H, W]`, the frames that are older than their step's game."""
    steps = starts.shape[0]
    same_game = tf.ones_like(starts)  # [T, B], also `lag + 1` steps ago.
    mask = tf.where(same_game, np.uint32(0xFF) << _SHIFTS[0], 0)
    for lag, shift in enumerate(_SHIFTS[1:]):
        started = tf.pad(starts, [[lag, 0], [0, 0]])[:steps]  # `lag` steps ago.
        same_game = tf.logical_and(same_game, tf.logical_not(started))
        mask = tf.bitwise.bitwise_or(mask, tf.where(same_game, np.uint32(0xFF) << shift, 0))
    return tf.bitwise.bitwise_and(stacks, mask[:, :, tf.newaxis, tf.newaxis])

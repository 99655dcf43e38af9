"""The last four frames of a game, packed into one word a pixel.

Environments, rollouts and the queue carry single frames; whoever looks at them keeps the stack
as recurrent state. A byte is a pixel of one frame, the newest in the highest, so that a step
is a shift, and reading the bytes in memory order gives the stack with the oldest first.
"""

import numpy as np
import tensorflow as tf

NUM_FRAMES = 4  # Bytes of a uint32.
_BITS_PER_FRAME = np.uint32(8)


def initial_state(batch_size: int, height: int, width: int) -> tf.Tensor:
    """Empty stacks, uint32 `[batch_size, height, width]`: frames before the first are black."""
    return tf.zeros([batch_size, height, width], tf.uint32)


def unroll(frames: tf.Tensor, starts: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Stacks frames over time.

    Args:
      frames: `[T, B, H, W, 1]` uint8.
      starts: `[T, B]` bool, whether a step is the first of its game; it is stacked on black.
      state: `[B, H, W]` uint32, the stacks as they were before the first of these steps.

    Returns:
      The stacks `[T, B, H, W, 4]` uint8, oldest frame first, and the state after the last step.
    """
    stacks = []
    for frame, start in zip(tf.unstack(frames), tf.unstack(starts), strict=True):
        word = tf.cast(tf.squeeze(frame, -1), tf.uint32)  # [B, H, W]
        newest = tf.bitwise.left_shift(word, (NUM_FRAMES - 1) * _BITS_PER_FRAME)
        earlier = tf.where(start[:, tf.newaxis, tf.newaxis], tf.zeros_like(state), state)
        state = tf.bitwise.bitwise_or(tf.bitwise.right_shift(earlier, _BITS_PER_FRAME), newest)
        stacks.append(state)
    return tf.bitcast(tf.stack(stacks), tf.uint8), state

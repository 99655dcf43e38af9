"""The frame stack against a slow one: a deque of frames for each game."""

from collections import deque

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.agent import frame_stack

_SHAPE = (3, 5)


def slow_stacks(frames: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Stacks `[T, B, H, W, 4]` of frames `[T, B, H, W, 1]`, on black before the first."""
    stacks = np.zeros((*frames.shape[:-1], 4), np.uint8)
    black = [np.zeros(_SHAPE, np.uint8)] * 4
    for b in range(starts.shape[1]):
        last = deque(black, maxlen=4)
        for t in range(starts.shape[0]):
            if starts[t, b]:
                last.extend(black)
            last.append(frames[t, b, ..., 0])
            stacks[t, b] = np.stack(list(last), axis=-1)
    return stacks


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("unroll_length", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_rollouts_that_overlap_by_a_step_see_the_stacks_of_a_deque_of_frames(
    unroll_length: int, share: float, compiled: bool
) -> None:
    """The state of a rollout is that before its first step, which is the last of the one before.

    A game's start is stacked on black wherever in a rollout it is.
    """
    num_rollouts, rng = 5, np.random.default_rng(0)
    leading = (num_rollouts * unroll_length + 1, 3)
    # Never black; bytes with their top bit set must not be extended by the shift.
    frames = rng.integers(1, 256, (*leading, *_SHAPE, 1)).astype(np.uint8)
    starts = rng.random(leading) < share
    whole, state = slow_stacks(frames, starts), tf.zeros([3, *_SHAPE], tf.uint32)
    unroll = tf.function(frame_stack.unroll, autograph=False) if compiled else frame_stack.unroll
    for begin in range(0, num_rollouts * unroll_length, unroll_length):
        steps = slice(begin, begin + unroll_length + 1)
        learned, _ = unroll(tf.constant(frames[steps]), tf.constant(starts[steps]), state)
        np.testing.assert_array_equal(learned, whole[steps])
        # Actors act on every step but the last, on which the next rollout begins.
        steps = slice(begin, begin + unroll_length)
        seen, state = unroll(tf.constant(frames[steps]), tf.constant(starts[steps]), state)
        np.testing.assert_array_equal(seen, whole[steps])
    assert (seen.dtype, state.dtype, state.shape) == (tf.uint8, tf.uint32, (3, *_SHAPE))

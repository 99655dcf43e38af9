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


def random_games(
    num_steps: int, batch_size: int, share: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Frames `[T, B, H, W, 1]` without black pixels, and starts `[T, B]` at a share of them."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(1, 256, (num_steps, batch_size, *_SHAPE, 1)).astype(np.uint8)
    return frames, rng.random((num_steps, batch_size)) < share


def unroll(
    frames: np.ndarray, starts: np.ndarray, state: tf.Tensor | None = None
) -> tuple[np.ndarray, tf.Tensor]:
    """Unrolls from empty stacks unless a state is given."""
    if state is None:
        state = frame_stack.initial_state(frames.shape[1], *_SHAPE)
    stacks, state = frame_stack.unroll(tf.constant(frames), tf.constant(starts), state)
    return stacks.numpy(), state


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("num_steps", "batch_size", "share"),
    [(1, 3, 1.0), (3, 2, 0.5), (6, 2, 1.0), (9, 2, 0.0), (14, 7, 0.25)],
)
def test_stacks_are_those_of_a_deque_of_frames(
    num_steps: int, batch_size: int, share: float, compiled: bool
) -> None:
    frames, starts = random_games(num_steps, batch_size, share)
    frames[::3] |= 128  # Bytes with their top bit set must not be extended by the shift.
    function = tf.function(frame_stack.unroll, autograph=False) if compiled else frame_stack.unroll
    state = frame_stack.initial_state(batch_size, *_SHAPE)
    stacks, after = function(tf.constant(frames), tf.constant(starts), state)
    np.testing.assert_array_equal(stacks, slow_stacks(frames, starts))
    assert (stacks.dtype, after.dtype, after.shape) == (tf.uint8, tf.uint32, state.shape)


def test_a_start_is_stacked_on_black_whatever_was_before() -> None:
    frames, starts = random_games(12, 2, share=0.0)
    starts[0, 0] = True  # At the first of the steps that are looked at,
    starts[[4, 6, 7], 1] = True  # and several within four.
    _, state = unroll(*random_games(5, 2, share=0.0, seed=1))
    stacks, _ = unroll(frames, starts, state)
    for t, b in np.argwhere(starts):
        assert not stacks[t, b, ..., :3].any()
        np.testing.assert_array_equal(stacks[t, b, ..., 3:], frames[t, b])
    black = [int((~stack.any(axis=(0, 1))).sum()) for stack in stacks[:, 1]]
    assert black == [0, 0, 0, 0, 3, 2, 3, 3, 2, 1, 0, 0]
    assert stacks[0, 1, ..., :3].all(), "without a start the state is looked at"


@pytest.mark.parametrize("unroll_length", [1, 2, 3, 5, 20])
def test_rollouts_that_overlap_by_a_step_see_the_same_stacks(unroll_length: int) -> None:
    """The state of a rollout is that before its first step, which is the last of the one before."""
    num_rollouts = 5
    frames, starts = random_games(num_rollouts * unroll_length + 1, 3, share=0.2)
    whole = slow_stacks(frames, starts)
    acting = frame_stack.initial_state(3, *_SHAPE)
    for k in range(num_rollouts):
        begin, end = k * unroll_length, (k + 1) * unroll_length
        learning = acting
        for t in range(begin, end):  # Acts on every step but the last, on which the next begins.
            seen, acting = unroll(frames[t : t + 1], starts[t : t + 1], acting)
            np.testing.assert_array_equal(seen[0], whole[t])
        learned, _ = unroll(frames[begin : end + 1], starts[begin : end + 1], learning)
        np.testing.assert_array_equal(learned, whole[begin : end + 1])

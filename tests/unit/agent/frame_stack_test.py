"""The frame stack against a slow one: a deque of frames for each game."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.agent import frame_stack

_HEIGHT, _WIDTH = 3, 5
_SHAPE = (_HEIGHT, _WIDTH)

# How the update and the policy run it, and how everything else does.
_WAYS: dict[str, Callable[..., Any]] = {
    "eager": frame_stack.unroll,
    "graph": tf.function(frame_stack.unroll, autograph=False),
    "xla": tf.function(frame_stack.unroll, autograph=False, jit_compile=True),
}


def slow_stacks(frames: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Stacks `[T, B, H, W, 4]` of frames `[T, B, H, W, 1]`, on black before the first."""
    steps, batch_size = starts.shape
    stacks = np.zeros((*frames.shape[:-1], 4), np.uint8)
    black = np.zeros(frames.shape[2:4], np.uint8)
    for b in range(batch_size):
        last = deque([black] * 4, maxlen=4)
        for t in range(steps):
            if starts[t, b]:
                last.extend([black] * 4)
            last.append(frames[t, b, ..., 0])
            stacks[t, b] = np.stack(list(last), axis=-1)
    return stacks


def random_frames(num_steps: int, batch_size: int, seed: int = 0) -> np.ndarray:
    """Frames `[T, B, H, W, 1]`, none of whose pixels is black."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 256, (num_steps, batch_size, *_SHAPE, 1)).astype(np.uint8)


def random_starts(num_steps: int, batch_size: int, share: float, seed: int = 0) -> np.ndarray:
    """Starts `[T, B]` at this share of the steps."""
    return np.random.default_rng(seed + 100).random((num_steps, batch_size)) < share


def unroll(
    frames: np.ndarray, starts: np.ndarray, state: tf.Tensor | None = None, way: str = "eager"
) -> tuple[np.ndarray, tf.Tensor]:
    """As `frame_stack.unroll`, from empty stacks unless a state is given."""
    if state is None:
        state = frame_stack.initial_state(frames.shape[1], *_SHAPE)
    stacks, state = _WAYS[way](tf.constant(frames), tf.constant(starts), state)
    return stacks.numpy(), state


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize(
    ("num_steps", "batch_size", "share"),
    [(1, 1, 0.0), (1, 3, 1.0), (3, 2, 0.5), (6, 2, 1.0), (9, 2, 0.0), (14, 7, 0.25)],
)
def test_stacks_are_those_of_a_deque_of_frames(
    num_steps: int, batch_size: int, share: float, way: str
) -> None:
    frames = random_frames(num_steps, batch_size)
    starts = random_starts(num_steps, batch_size, share)
    stacks, _ = unroll(frames, starts, way=way)
    np.testing.assert_array_equal(stacks, slow_stacks(frames, starts))


def test_a_start_is_stacked_on_black_whatever_was_before() -> None:
    frames = random_frames(12, 2)
    starts = np.zeros((12, 2), bool)
    starts[0, 0] = True  # At the first of the steps that are looked at,
    starts[[4, 6, 7], 1] = True  # and several within four.
    _, state = unroll(random_frames(5, 2, seed=1), np.zeros((5, 2), bool))
    stacks, _ = unroll(frames, starts, state)
    for t, b in np.argwhere(starts):
        assert not stacks[t, b, ..., :3].any()
        np.testing.assert_array_equal(stacks[t, b, ..., 3:], frames[t, b])
    black = [int((~stack.any(axis=(0, 1))).sum()) for stack in stacks[:, 1]]
    assert black == [0, 0, 0, 0, 3, 2, 3, 3, 2, 1, 0, 0]
    assert stacks[0, 1, ..., :3].all(), "without a start the state is looked at"
    assert stacks[3:, 0].all()


def test_the_oldest_frame_comes_first() -> None:
    frames = random_frames(7, 2)
    stacks, _ = unroll(frames, np.zeros((7, 2), bool))
    for t in range(3, 7):
        for age in range(4):
            np.testing.assert_array_equal(stacks[t, ..., 3 - age], frames[t - age, ..., 0])


@pytest.mark.parametrize("way", _WAYS)
def test_white_pixels_leave_no_trace_in_other_frames(way: str) -> None:
    """A byte with its top bit set must not be extended by the shift."""
    values = [255, 0, 128, 0, 0, 255, 255, 1, 0, 0, 0, 0]
    frames = np.broadcast_to(
        np.array(values, np.uint8)[:, None, None, None, None], (len(values), 1, *_SHAPE, 1)
    )
    stacks, _ = unroll(frames, np.zeros((len(values), 1), bool), way=way)
    for t in range(len(values)):
        expected = ([0, 0, 0, *values])[t : t + 4]
        assert (stacks[t, 0] == expected).all()


def test_an_unroll_is_its_single_steps_with_the_state_carried() -> None:
    frames, starts = random_frames(15, 3), random_starts(15, 3, 0.2)
    whole, last = unroll(frames, starts)
    state = None
    for t in range(15):
        stack, state = unroll(frames[t : t + 1], starts[t : t + 1], state)
        np.testing.assert_array_equal(stack[0], whole[t])
    np.testing.assert_array_equal(state, last)


def test_a_sequence_may_be_cut_anywhere() -> None:
    frames, starts = random_frames(10, 3), random_starts(10, 3, 0.2)
    whole, last = unroll(frames, starts)
    for cut in range(1, 10):
        first, state = unroll(frames[:cut], starts[:cut])
        second, end = unroll(frames[cut:], starts[cut:], state)
        np.testing.assert_array_equal(np.concatenate([first, second]), whole)
        np.testing.assert_array_equal(end, last)


@pytest.mark.parametrize("unroll_length", [1, 2, 3, 5, 20])
def test_rollouts_that_overlap_by_a_step_see_the_same_stacks(unroll_length: int) -> None:
    """The state of a rollout is that before its first step, which is the last of the one before."""
    num_rollouts = 5
    num_steps = num_rollouts * unroll_length + 1
    frames, starts = random_frames(num_steps, 3), random_starts(num_steps, 3, 0.2)
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


def test_shapes_and_types_are_as_promised() -> None:
    state = frame_stack.initial_state(2, *_SHAPE)
    assert (state.shape, state.dtype) == ((2, *_SHAPE), tf.uint32)
    assert not state.numpy().any()
    stacks, after = frame_stack.unroll(
        tf.constant(random_frames(6, 2)), tf.zeros([6, 2], tf.bool), state
    )
    assert (stacks.shape, stacks.dtype) == ((6, 2, *_SHAPE, frame_stack.NUM_FRAMES), tf.uint8)
    assert (after.shape, after.dtype) == (state.shape, state.dtype)

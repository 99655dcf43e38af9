"""Inputs for the agent's tests, and how near two ways to the same output must be."""

from typing import Any

import numpy as np
import tensorflow as tf

from environments import ArraySpec, StepOutput, StepOutputInfo
from scalable_agent_popart.agent.agent import AgentState

NUM_ACTIONS = 3
SMALL = (10, 5, 3)
FRAME = ArraySpec((10, 5, 1), np.uint8)  # Of an agent that stacks them.

# Two ways to the same number through kernels for other batch sizes.
_TOLERANCE = 2e-6


def make_inputs(
    num_steps: int, batch_size: int, shape: tuple[int, ...] = SMALL, seed: int = 0
) -> tuple[tf.Tensor, StepOutput]:
    """Random last actions and environment outputs `[T, B, ...]`; no episode ends."""
    rng = np.random.default_rng(seed)
    leading = (num_steps, batch_size)
    env_outputs = StepOutput(
        reward=tf.constant(rng.normal(size=leading), tf.float32),
        info=StepOutputInfo(
            episode_return=tf.zeros(leading),
            episode_step=tf.zeros(leading, tf.int32),
            episode_end=tf.zeros(leading, tf.bool),
        ),
        done=tf.zeros(leading, tf.bool),
        observation=tf.constant(rng.integers(256, size=(*leading, *shape)), tf.uint8),
    )
    return tf.constant(rng.integers(NUM_ACTIONS, size=leading), tf.int32), env_outputs


def with_done(env_outputs: StepOutput, *at: tuple[int, int]) -> StepOutput:
    """The same outputs with episodes that end at these (time, environment)."""
    done = env_outputs.done.numpy()
    for index in at:
        done[index] = True
    return env_outputs._replace(done=tf.constant(done))


def with_game_over(env_outputs: StepOutput, *at: tuple[int, int]) -> StepOutput:
    """The same outputs with games, and so episodes, that end at these (time, environment)."""
    episode_end = env_outputs.info.episode_end.numpy()
    for index in at:
        episode_end[index] = True
    info = env_outputs.info._replace(episode_end=tf.constant(episode_end))
    return with_done(env_outputs._replace(info=info), *at)


def part(inputs: Any, index: Any) -> Any:
    """The same slice of every tensor."""
    return tf.nest.map_structure(lambda tensor: tensor[index], inputs)


def random_state(
    batch_size: int, use_lstm: bool = True, stacks: bool = False, seed: int = 0
) -> AgentState:
    """A state in the middle of an episode: an LSTM's, a stack of `FRAME`s, both or neither."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(2, batch_size, 256))
    state = tuple(tf.constant(draw, tf.float32) for draw in draws) if use_lstm else ()
    stack = rng.integers(2**32, size=(batch_size, *FRAME.shape[:2]), dtype=np.uint32)
    return (*state, tf.constant(stack)) if stacks else state


def assert_close(actual: Any, expected: Any) -> None:
    """Equality up to the rounding of float32."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=_TOLERANCE)

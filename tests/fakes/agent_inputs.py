"""Inputs for the agent's tests, and a check that two ways lead to the same output."""

from typing import Any

import numpy as np
import tensorflow as tf

from environments import ArraySpec, StepOutput, StepOutputInfo
from scalable_agent_popart.agent.agent import AgentState

NUM_ACTIONS = 3
SMALL = (10, 5, 3)
FRAME = ArraySpec((10, 5, 1), np.uint8)  # It is that of an agent which stacks frames.


def make_inputs(
    num_steps: int, batch_size: int, shape: tuple[int, ...] = SMALL, seed: int = 0
) -> tuple[tf.Tensor, StepOutput]:
    """Samples last actions and environment outputs `[T, B, ...]`; no episode ends."""
    rng = np.random.default_rng(seed)
    leading = (num_steps, batch_size)
    never = tf.zeros(leading, tf.bool)
    env_outputs = StepOutput(
        reward=tf.constant(rng.normal(size=leading), tf.float32),
        info=StepOutputInfo(tf.zeros(leading, tf.float64), tf.zeros(leading, tf.int32), never),
        done=never,
        observation=tf.constant(rng.integers(256, size=(*leading, *shape)), tf.uint8),
    )
    return tf.constant(rng.integers(NUM_ACTIONS, size=leading), tf.int32), env_outputs


def with_done(env_outputs: StepOutput, *at: tuple[int, int]) -> StepOutput:
    """Ends episodes at these (time, environment)."""
    done = tf.tensor_scatter_nd_update(env_outputs.done, at, [True] * len(at))
    return env_outputs._replace(done=done)


def with_game_over(env_outputs: StepOutput, *at: tuple[int, int]) -> StepOutput:
    """Ends games, and so episodes, at these (time, environment)."""
    ends = tf.tensor_scatter_nd_update(env_outputs.info.episode_end, at, [True] * len(at))
    info = env_outputs.info._replace(episode_end=ends)
    return with_done(env_outputs._replace(info=info), *at)


def part(inputs: Any, index: Any) -> Any:
    """Takes the same slice of every tensor."""
    return tf.nest.map_structure(lambda tensor: tensor[index], inputs)


def random_state(batch_size: int, use_lstm: bool = True, stacks: bool = False) -> AgentState:
    """Samples a state amid an episode: an LSTM's, a stack of `FRAME`s, both or neither."""
    rng = np.random.default_rng(0)
    lstm = tuple(tf.constant(rng.normal(size=(2, batch_size, 256)), tf.float32)) if use_lstm else ()
    stack = rng.integers(2**32, size=(batch_size, *FRAME.shape[:2]), dtype=np.uint32)
    return (*lstm, tf.constant(stack)) if stacks else lstm


def assert_close(actual: Any, expected: Any) -> None:
    """Checks equality up to float32's rounding, in kernels for other batch sizes."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)

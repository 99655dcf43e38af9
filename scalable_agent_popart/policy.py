"""The policy that acts: a copy of the agent's weights that changes only when told to."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from environments import StepOutput
from scalable_agent_popart.agent import Agent, AgentState
from scalable_agent_popart.rollouts import AgentOutput
from scalable_agent_popart.weights import WeightSource


class Memory(NamedTuple):
    """What an environment's last step has left behind; NumPy arrays `[M, ...]`."""

    agent_output: AgentOutput
    state: AgentState  # recurrent, as it is before the next step


class Policy:
    """Chooses actions for N environments, one call of the network for all that are ready."""

    def __init__(self, agent: Agent, source: WeightSource, seed: int, num_environments: int):
        """Wraps an agent of its own.

        Args:
          agent: no one else's; its variables are overwritten by `refresh`.
          source: of weights.
          seed: of the actions' randomness.
          num_environments: N.
        """
        self._agent = agent
        self._source = source
        self._seed = np.array([seed % 2**31, 0], np.int32)
        # One graph for any number of environments that are ready.
        self._step = tf.function(agent.step, autograph=False, reduce_retracing=True)
        self._version = -1
        actions = np.zeros(num_environments, np.int32)
        logits = np.zeros((num_environments, agent.num_actions), np.float32)
        state = agent.initial_state(num_environments)
        self._beginning = Memory(
            AgentOutput(actions, logits), tf.nest.map_structure(lambda t: t.numpy(), state)
        )
        self._memory = tf.nest.map_structure(np.copy, self._beginning)

    @property
    def num_traces(self) -> int:
        """How often the step was traced: at most twice, for one number of environments and any."""
        return self._step.experimental_get_tracing_count()

    def forget(self, ids: np.ndarray) -> None:
        """Puts the environments `ids` back to action 0 and the state at an episode's start."""
        _assign(self._memory, ids, _take(self._beginning, ids))

    def recall(self, ids: np.ndarray) -> Memory:
        """What the last step of the environments `ids` `[M]` has left behind."""
        return _take(self._memory, ids)

    def act(self, ids: np.ndarray, env_output: StepOutput, memory: Memory) -> AgentOutput:
        """Actions and logits as NumPy arrays `[M, ...]`.

        Args:
          ids: `[M]`, which environments.
          env_output: `[M, ...]`.
          memory: what `recall` said of them; what is left behind now takes its place.
        """
        self._seed[1] += 1
        inputs = (memory.agent_output.action, env_output, memory.state, self._seed)
        output = self._step(*tf.nest.map_structure(tf.convert_to_tensor, inputs))
        new = Memory(*tf.nest.map_structure(lambda tensor: tensor.numpy(), output))
        _assign(self._memory, ids, new)
        return new.agent_output

    def refresh(self) -> int:
        """Takes the newest weights, if they are newer than its own; returns their version."""
        weights = self._source.latest()
        if weights.version != self._version:
            variables = self._agent.trainable_variables
            for variable, tensor in zip(variables, weights.tensors, strict=True):
                variable.assign(tensor)
            self._version = weights.version
        return self._version


def _take(memory: Memory, ids: np.ndarray) -> Memory:
    return tf.nest.map_structure(lambda room: room[ids], memory)


def _assign(memory: Memory, ids: np.ndarray, values: Memory) -> None:
    def store(room: np.ndarray, value: np.ndarray) -> None:
        room[ids] = value

    tf.nest.map_structure(store, memory, values)

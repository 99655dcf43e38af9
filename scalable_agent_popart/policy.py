"""The policy that acts: a copy of the agent's weights that changes only when told to."""

import numpy as np
import tensorflow as tf

from environments import StepOutput
from scalable_agent_popart.agent import Agent, AgentState
from scalable_agent_popart.rollouts import AgentOutput
from scalable_agent_popart.weights import WeightSource


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
        # What each environment's last step left behind.
        self._output = AgentOutput(
            action=np.zeros(num_environments, np.int32),
            policy_logits=np.zeros((num_environments, agent.num_actions), np.float32),
        )
        self._beginning = tuple(part.numpy()[0] for part in agent.initial_state(1))
        self._state = tuple(
            np.repeat(part[np.newaxis], num_environments, 0) for part in self._beginning
        )

    @property
    def num_traces(self) -> int:
        """How often the step was traced: at most twice, for one number of environments and any."""
        return self._step.experimental_get_tracing_count()

    def forget(self, ids: np.ndarray) -> None:
        """Puts the environments `ids` back to action 0 and the state at an episode's start."""
        for room in self._output:
            room[ids] = 0
        for room, beginning in zip(self._state, self._beginning, strict=True):
            room[ids] = beginning

    def last_output(self, ids: np.ndarray) -> AgentOutput:
        """What was said last in the environments `ids` `[M]`: NumPy arrays `[M, ...]`."""
        return AgentOutput(*(room[ids] for room in self._output))

    def state(self, ids: np.ndarray) -> AgentState:
        """The recurrent state before the next step of the environments `ids` `[M]`, `[M, ...]`."""
        return tuple(room[ids] for room in self._state)

    def act(self, ids: np.ndarray, env_output: StepOutput) -> AgentOutput:
        """Acts in the environments `ids` `[M]`, which have returned `env_output` `[M, ...]`.

        Returns:
          Actions and logits as NumPy arrays `[M, ...]`; remembered, as is the state.
        """
        self._seed[1] += 1
        inputs = (self._output.action[ids], env_output, self.state(ids), self._seed)
        output, state = self._step(*tf.nest.map_structure(tf.convert_to_tensor, inputs))
        output = AgentOutput(output.action.numpy(), output.policy_logits.numpy())
        for room, value in zip((*self._output, *self._state), (*output, *state), strict=True):
            room[ids] = value
        return output

    def refresh(self) -> int:
        """Takes the newest weights, if they are newer than its own; returns their version."""
        weights = self._source.latest()
        if weights.version != self._version:
            variables = self._agent.trainable_variables
            for variable, tensor in zip(variables, weights.tensors, strict=True):
                variable.assign(tensor)
            self._version = weights.version
        return self._version

"""The policy that acts: a copy of the agent's weights that changes only when told to."""

import numpy as np
import tensorflow as tf

from environments import StepOutput
from scalable_agent_popart.agent import Agent, AgentState
from scalable_agent_popart.rollouts import AgentOutput
from scalable_agent_popart.weights import WeightSource


class Policy:
    """Chooses actions for a batch of environments, one call of the network a step."""

    def __init__(self, agent: Agent, source: WeightSource, seed: int):
        """Wraps an agent of its own.

        Args:
          agent: no one else's; its variables are overwritten by `refresh`.
          source: of weights.
          seed: of the actions' randomness.
        """
        self._agent = agent
        self._source = source
        self._seed = np.array([seed % 2**31, 0], np.int32)
        self._step = tf.function(agent.step, autograph=False)
        self._version = -1

    @property
    def num_traces(self) -> int:
        """How often the step was traced; once for each number of environments."""
        return self._step.experimental_get_tracing_count()

    def initial_state(self, num_environments: int) -> AgentState:
        """Recurrent state `[N, ...]` at the start of an episode."""
        return self._agent.initial_state(num_environments)

    def act(
        self, last_actions: np.ndarray, env_output: StepOutput, state: AgentState
    ) -> tuple[AgentOutput, AgentState]:
        """Actions and logits as NumPy arrays `[N, ...]`, and the next state."""
        self._seed[1] += 1
        inputs = tf.nest.map_structure(tf.convert_to_tensor, (last_actions, env_output))
        output, state = self._step(*inputs, state, tf.constant(self._seed))
        return AgentOutput(output.action.numpy(), output.policy_logits.numpy()), state

    def refresh(self) -> int:
        """Takes the newest weights, if they are newer than its own; returns their version."""
        weights = self._source.latest()
        if weights.version != self._version:
            variables = self._agent.trainable_variables
            for variable, tensor in zip(variables, weights.tensors, strict=True):
                variable.assign(tensor)
            self._version = weights.version
        return self._version

"""The policy that acts, a copy of the agent, and the learner's weights on their way to it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from environments import StepOutput
from scalable_agent_popart.agent.agent import Agent, AgentState
from scalable_agent_popart.errors import DivergenceError
from scalable_agent_popart.rollouts import AgentOutput


class Weights(NamedTuple):
    """A frozen copy of the agent's weights."""

    version: int  # number of learner updates that made them
    tensors: Sequence[tf.Tensor]  # in the order of `Agent.trainable_variables`


class WeightSource(Protocol):
    """A policy gets its weights from here."""

    def latest(self) -> Weights:
        """Returns the newest weights published."""


def compile_step(step: Any, inputs: tuple[Any, ...]) -> Any:
    """Traces a step for such tensors `[N, ...]`, with any N, and for such a seed, the last input.

    A function of one signature takes three quarters of the time of one that has to look for the
    signature that fits.
    """
    specs = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype), inputs[:-1]
    )
    return step.get_concrete_function(*specs, tf.TensorSpec.from_tensor(inputs[-1]))


class WeightStore:
    """The newest published weights; one thread publishes, any number read."""

    def __init__(self, variables: Sequence[tf.Variable], version: int):
        self._variables = list(variables)
        self.publish(version)

    def publish(self, version: int) -> None:
        """Makes the variables' present values the newest weights."""
        # TensorFlow copies on write: a value stays as it was read when the variable changes.
        self._newest = Weights(version, [variable.read_value() for variable in self._variables])

    def latest(self) -> Weights:
        return self._newest


class Policy:
    """Chooses actions for N environments, one call of the network for all that are ready."""

    def __init__(self, agent: Agent, source: WeightSource, seed: int, num_environments: int):
        """Wraps an agent of its own, since `refresh` overwrites its variables."""
        self._agent = agent
        self._step = tf.function(agent.step, autograph=False)
        self._compiled_step: Any = None  # The first step shows the inputs' shapes.
        # Assigning each variable by itself would take about twice as long.
        self._assign = tf.function(self._assign_weights, autograph=False)
        self.begun = np.zeros(num_environments, bool)  # True from the first episode on.
        # Outputs of the last step in each environment, `[N, ...]`.
        self._output = AgentOutput(
            action=np.zeros(num_environments, np.int32),
            policy_logits=np.zeros((num_environments, agent.num_actions), np.float32),
        )
        self._beginning = tuple(part.numpy() for part in agent.initial_state(1))
        # Each part `[N, ...]` is an array, or an uncopied tensor after a step of all environments.
        self._state: AgentState = tuple(
            np.repeat(part, num_environments, axis=0) for part in self._beginning
        )
        self.restart(source, seed)

    def restart(self, source: WeightSource, seed: int) -> None:
        """Makes this a new policy again, which keeps the traced graph."""
        self._source = source
        self._seed = np.array([seed % 2**31, 0], np.int32)
        self._version = -1
        self.forget(np.arange(len(self._output.action)))
        self.begun[:] = False

    def forget(self, ids: np.ndarray) -> None:
        """Resets the environments `ids` to action 0 and the state at an episode's start."""
        if not len(ids):
            return
        self.begun[ids] = True
        for array in self._output:
            array[ids] = 0
        self._store_state(ids, self._beginning)

    def last_output(self, ids: np.ndarray) -> AgentOutput:
        """Returns the last output in the environments `ids` `[M]`, as NumPy arrays `[M, ...]`."""
        return AgentOutput(*(array[ids] for array in self._output))

    def state(self, ids: np.ndarray) -> AgentState:
        """Returns the state `[M, ...]` before the next step of the environments `ids` `[M]`."""
        return tuple(np.asarray(part)[ids] for part in self._state)

    def act(self, ids: np.ndarray, env_output: StepOutput) -> AgentOutput:
        """Acts in environments `ids` `[M]`, which returned `env_output`; returns NumPy arrays."""
        self._seed[1] += 1
        in_all = len(ids) == len(self._output.action)
        state = self._state if in_all else self.state(ids)
        inputs = (self._output.action[ids], env_output, state, self._seed)
        inputs = tf.nest.map_structure(tf.convert_to_tensor, inputs)
        if self._compiled_step is None:
            self._compiled_step = compile_step(self._step, inputs)
        output, state = self._compiled_step(*inputs)
        output = AgentOutput(output.action.numpy(), output.policy_logits.numpy())
        if not np.isfinite(output.policy_logits).all():  # No action can be sampled.
            raise DivergenceError("the policy's logits are not finite")
        for array, value in zip(self._output, output, strict=True):
            array[ids] = value
        if in_all:
            self._state = state
        else:
            self._store_state(ids, state)
        return output

    def _store_state(self, ids: np.ndarray, state: AgentState) -> None:
        """Changes the state of the environments `ids` `[M]`, to `[M, ...]` or `[1, ...]`."""
        self._state = tuple(
            part if isinstance(part, np.ndarray) else part.numpy() for part in self._state
        )
        for part, value in zip(self._state, state, strict=True):
            part[ids] = value

    def refresh(self) -> int:
        """Takes the weights published last, unless it has them; returns their version.

        The version may be an older one, of a learner that went back to a checkpoint.
        """
        weights = self._source.latest()
        if weights.version != self._version:
            self._assign(list(weights.tensors))
            self._version = weights.version
        return self._version

    def _assign_weights(self, tensors: Sequence[tf.Tensor]) -> None:
        for variable, tensor in zip(self._agent.trainable_variables, tensors, strict=True):
            variable.assign(tensor)

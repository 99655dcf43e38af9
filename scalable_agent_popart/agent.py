"""The agent: a policy that sees observations, rewards and its own actions, never the task.

Values are no part of it. They belong to `popart.ValueHead`, which only the learner calls, on
the features that `Agent.unroll` returns.
"""

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from environments import StepOutput
from scalable_agent_popart import networks
from scalable_agent_popart.rollouts import AgentOutput

_NUM_LSTM_UNITS = 256

# Nested tensors [B, ...]; empty without an LSTM.
AgentState = tuple[tf.Tensor, ...]


class Unroll(NamedTuple):
    """What the agent computes for T steps of B environments."""

    features: tf.Tensor  # [T, B, D], the input of every head
    policy_logits: tf.Tensor  # [T, B, num_actions]
    state: AgentState  # after the last step


class _ResettingCore(snt.RNNCore):
    """An LSTM whose state starts again at zero wherever an episode has ended."""

    def __init__(self, name: str = "core"):
        super().__init__(name=name)
        self._lstm = snt.LSTM(_NUM_LSTM_UNITS)

    def initial_state(self, batch_size: int) -> snt.LSTMState:
        return self._lstm.initial_state(batch_size)

    def __call__(
        self, inputs: tuple[tf.Tensor, tf.Tensor], state: snt.LSTMState
    ) -> tuple[tf.Tensor, snt.LSTMState]:
        features, done = inputs  # [B, D], [B]
        state = tf.nest.map_structure(
            lambda tensor: tf.where(done[:, tf.newaxis], tf.zeros_like(tensor), tensor), state
        )
        return self._lstm(features, state)


class Agent(snt.Module):
    """Torso, optional LSTM and policy head (Hessel et al., 2019, "Network Architecture")."""

    def __init__(self, num_actions: int, network: str, use_lstm: bool, name: str = "agent"):
        """Builds the modules.

        Args:
          num_actions: size of the action set.
          network: a key of `networks.TORSOS`.
          use_lstm: whether an LSTM of 256 units follows the torso.
          name: of the module.
        """
        super().__init__(name=name)
        self._num_actions = num_actions
        self._torso = networks.TORSOS[network]()
        self._core = _ResettingCore() if use_lstm else None
        self._policy_head = snt.Linear(num_actions, name="policy_logits")

    def initial_state(self, batch_size: int) -> AgentState:
        """The recurrent state at the start of an episode, `[batch_size, ...]`."""
        return () if self._core is None else tuple(self._core.initial_state(batch_size))

    def unroll(self, last_actions: tf.Tensor, env_outputs: StepOutput, state: AgentState) -> Unroll:
        """Runs the agent over time.

        Args:
          last_actions: `[T, B]` int32, the action that led to each step.
          env_outputs: `[T, B, ...]`; reward, done and observation are used.
          state: the recurrent state `[B, ...]` as it was before the first of these steps.
        """
        features = self._features(last_actions, env_outputs)
        if self._core is not None:
            features, lstm_state = snt.dynamic_unroll(
                self._core, (features, env_outputs.done), snt.LSTMState(*state)
            )
            state = tuple(lstm_state)
        return Unroll(features, snt.BatchApply(self._policy_head)(features), state)

    def step(
        self,
        last_actions: tf.Tensor,
        env_outputs: StepOutput,
        state: AgentState,
        seed: tf.Tensor,
    ) -> tuple[AgentOutput, AgentState]:
        """Samples one action for each of B environments.

        Args:
          last_actions: `[B]` int32.
          env_outputs: `[B, ...]`.
          state: `[B, ...]`.
          seed: int32 `[2]`; the same seed and inputs give the same actions.

        Returns:
          The agent's output `[B, ...]` and its next state.
        """
        last_actions = last_actions[tf.newaxis]  # [1, B]
        one_step = tf.nest.map_structure(lambda tensor: tensor[tf.newaxis], env_outputs)
        unroll = self.unroll(last_actions, one_step, state)
        logits = unroll.policy_logits[0]  # [B, num_actions]
        action = tf.random.stateless_categorical(logits, 1, seed, dtype=tf.int32)[:, 0]  # [B]
        return AgentOutput(action, logits), unroll.state

    def _features(self, last_actions: tf.Tensor, env_outputs: StepOutput) -> tf.Tensor:
        """Image features, last reward and last action, `[T, B, D]`."""
        # Merges time and batch: [T, B, H, W, C] -> [T * B, H, W, C] -> [T, B, 256].
        torso = snt.BatchApply(
            lambda images: self._torso(tf.image.convert_image_dtype(images, tf.float32))
        )
        reward = tf.clip_by_value(env_outputs.reward, -1.0, 1.0)[..., tf.newaxis]  # [T, B, 1]
        action = tf.one_hot(last_actions, self._num_actions)  # [T, B, num_actions]
        return tf.concat([torso(env_outputs.observation), reward, action], axis=-1)

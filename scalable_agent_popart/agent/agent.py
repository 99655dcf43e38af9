"""The agent: a policy that sees observations, rewards and its own actions, never the task.

Values are no part of it. They belong to `popart.ValueHead`, which only the learner calls, on
the features that `Agent.unroll` returns.
"""

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from environments import ArraySpec, StepOutput, image_of
from scalable_agent_popart.agent import frame_stack, networks
from scalable_agent_popart.agent.lstm import ResettingLSTM
from scalable_agent_popart.rollouts import AgentOutput, Rollout

# Tensors [B, ...]: two of the LSTM if there is one, then the frame stack if frames are stacked.
AgentState = tuple[tf.Tensor, ...]


class Unroll(NamedTuple):
    """The result of T steps in B environments."""

    features: tf.Tensor  # [T, B, D], the input of every head
    policy_logits: tf.Tensor  # [T, B, num_actions]
    state: AgentState  # after the last step


class Agent(snt.Module):
    """Torso, optional LSTM and policy head (Hessel et al., 2019, "Network Architecture")."""

    def __init__(
        self,
        num_actions: int,
        torso: snt.Module,
        use_lstm: bool,
        stacked_frame: ArraySpec | None = None,
        reads_instructions: bool = False,
    ):
        """Puts the modules together: a torso, an LSTM after it if there is one, and the policy.

        Args:
          torso: maps images `[T, B, H, W, C]` to features `[T, B, F]`.
          stacked_frame: spec of one frame `[H, W, 1]`, if the torso is to see the last four.
          reads_instructions: whether observations are `environments.Observation`s.
        """
        super().__init__()
        self.num_actions = num_actions
        self._torso = torso
        self._core = ResettingLSTM(256, name="core") if use_lstm else None
        self._stacked_frame = stacked_frame
        self._encoder = networks.InstructionEncoder() if reads_instructions else None
        self._policy_head = snt.Linear(num_actions, name="policy_logits")

    @property
    def torso_variables(self) -> tuple[tf.Variable, ...]:
        """The weights of what sees images and instructions, which do not depend on actions."""
        encoder = self._encoder.trainable_variables if self._encoder is not None else ()
        return (*self._torso.trainable_variables, *encoder)

    def create_variables(self, spec: Rollout) -> tf.Tensor:
        """Creates the variables for rollouts of this spec; returns features `[1, 1, D]`."""
        one_step = tf.nest.map_structure(
            lambda leaf: tf.zeros((1, 1, *leaf.shape[1:]), leaf.dtype), spec.env_outputs
        )
        return self.unroll(tf.zeros([1, 1], tf.int32), one_step, self.initial_state(1)).features

    def initial_state(self, batch_size: int) -> AgentState:
        """Returns the recurrent state at the start of an episode, `[batch_size, ...]`."""
        state: AgentState = ()
        if self._core is not None:
            state += tuple(self._core.initial_state(batch_size))
        if self._stacked_frame is not None:  # Black before the first frame.
            state += (tf.zeros([batch_size, *self._stacked_frame.shape[:2]], tf.uint32),)
        return state

    def unroll(self, last_actions: tf.Tensor, env_outputs: StepOutput, state: AgentState) -> Unroll:
        """Runs the agent over time.

        Args:
          last_actions: `[T, B]` int32, the action that led to each step.
          env_outputs: `[T, B, ...]`; reward, done, episode_end and observation are used.
          state: the recurrent state `[B, ...]` as it was before the first of these steps.
        """
        images = image_of(env_outputs.observation)  # [T, B, H, W, C]
        new_state: AgentState = ()
        if self._stacked_frame is not None:
            # A lost life ends an episode, but not the game whose frames are stacked.
            images, stack = frame_stack.unroll(images, env_outputs.info.episode_end, state[-1])
            new_state = (stack,)

        hidden = self._torso(images)  # [T, B, F]
        reward = tf.clip_by_value(env_outputs.reward, -1.0, 1.0)[..., tf.newaxis]  # [T, B, 1]
        action = tf.one_hot(last_actions, self.num_actions)  # [T, B, num_actions]
        inputs = [hidden, reward, action]
        if self._encoder is not None:  # [T, B, W] -> [T, B, 64]
            inputs.append(snt.BatchApply(self._encoder)(env_outputs.observation.instruction))
        features = tf.concat(inputs, axis=-1)  # [T, B, D]
        if self._core is not None:
            features, lstm_state = self._core(features, env_outputs.done, snt.LSTMState(*state[:2]))
            new_state = (*lstm_state, *new_state)
        return Unroll(features, snt.BatchApply(self._policy_head)(features), new_state)

    def unroll_step(
        self, last_actions: tf.Tensor, env_outputs: StepOutput, state: AgentState
    ) -> Unroll:
        """Runs the agent over one step, with inputs `[B, ...]` and T = 1 in what it returns."""
        one_step = tf.nest.map_structure(lambda tensor: tensor[tf.newaxis], env_outputs)
        return self.unroll(last_actions[tf.newaxis], one_step, state)

    def step(
        self, last_actions: tf.Tensor, env_outputs: StepOutput, state: AgentState, seed: tf.Tensor
    ) -> tuple[AgentOutput, AgentState]:
        """Samples an action for each of B environments; returns it, and the next state `[B, ...]`.

        `last_actions` is `[B]`, `env_outputs` and `state` are `[B, ...]`. With the same `seed`,
        int32 `[2]`, the same inputs give the same actions.
        """
        unroll = self.unroll_step(last_actions, env_outputs, state)
        logits = unroll.policy_logits[0]  # [B, num_actions]
        action = tf.random.stateless_categorical(logits, 1, seed, dtype=tf.int32)[:, 0]  # [B]
        return AgentOutput(action, logits), unroll.state

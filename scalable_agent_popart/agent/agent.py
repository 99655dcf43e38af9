"""The agent: a policy that sees observations, rewards and its own actions, never the task.

Values are no part of it. They belong to `popart.ValueHead`, which only the learner calls, on
the features that `Agent.unroll` returns.
"""

from typing import NamedTuple

import numpy as np
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
        network: str,
        use_lstm: bool,
        stacked_frame: ArraySpec | None = None,
        reads_instructions: bool = False,
        dtype: tf.DType = tf.float32,
        num_parts: int = 1,
        padding: str = "SAME",
        image_scale: float = 1.0,
    ):
        """Builds the modules: a torso of `networks.TORSOS`, and after it an LSTM if there is one.

        Args:
          stacked_frame: spec of one frame `[H, W, 1]`, if the torso is to see the last four.
          reads_instructions: whether observations are `environments.Observation`s.
          dtype: of the convolutions, float32 or bfloat16.
          num_parts: max number of parts of an unroll that pass through the convolutions in
            parallel. Processor cores that each take a part need not wait for one another within
            a convolution, and find in their cache what the layer before has left there.
          padding: SAME or VALID, of the shallow network's convolutions.
          image_scale: factor of images, after bytes are scaled to [0, 1].
        """
        super().__init__()
        self.num_actions = num_actions
        self._torso = networks.TORSOS[network](dtype, padding, image_scale)
        self._core = ResettingLSTM(256, name="core") if use_lstm else None
        self._stacked_frame = stacked_frame
        self._encoder = networks.InstructionEncoder() if reads_instructions else None
        self._num_parts = num_parts
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

    def unroll(
        self,
        last_actions: tf.Tensor,
        env_outputs: StepOutput,
        state: AgentState,
        bootstrap: bool = False,
    ) -> Unroll:
        """Runs the agent over time.

        Args:
          last_actions: `[T, B]` int32, the action that led to each step.
          env_outputs: `[T, B, ...]`; reward, done, episode_end and observation are used.
          state: the recurrent state `[B, ...]` as it was before the first of these steps.
          bootstrap: whether the last step only has its value bootstrapped from, so that no
            gradient flows through it; this saves its backward pass.
        """
        images = image_of(env_outputs.observation)  # [T, B, H, W, C]
        new_state: AgentState = ()
        if self._stacked_frame is not None:
            # A lost life ends an episode, but not the game whose frames are stacked.
            images, stack = frame_stack.unroll(images, env_outputs.info.episode_end, state[-1])
            new_state = (stack,)

        steps = images.shape[0]
        learned = steps - 1 if bootstrap else steps
        parts = [
            self._torso.convolve(images[part[0] : part[-1] + 1])
            for part in np.array_split(range(learned), min(learned, self._num_parts))
        ]
        if bootstrap:
            parts.append(tf.stop_gradient(self._torso.convolve(images[-1:])))
        hidden = self._torso.project(tf.concat(parts, axis=0))  # [T * B, 256]
        hidden = tf.reshape(hidden, [steps, -1, hidden.shape[-1]])  # [T, B, 256]

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

"""What pixel control makes of a policy's play: maps that films show beside the picture."""

import numpy as np
import tensorflow as tf

from environments import StepOutput, image_of
from scalable_agent_popart.agent.agent import Agent, AgentState
from scalable_agent_popart.learning import pixel_control


class PixelControlView:
    """Computes maps over the cells of what environments show, step by step."""

    def __init__(self, agent: Agent, q_head: pixel_control.QHead):
        """Has seen nothing yet.

        Args:
          agent: with the weights of the policy at play.
          q_head: learned on this agent's features.
        """
        self._agent = agent
        self._q_head = q_head
        # One graph for any number of environments; the head's few operations need none.
        self._features = tf.function(self._unroll, autograph=False, reduce_retracing=True)
        self._images: dict[int, np.ndarray] = {}  # What each environment showed last.

    def forget(self, ids: np.ndarray) -> None:
        """Forgets the images of the environments `ids`, which have begun anew."""
        for i in ids.tolist():
            self._images.pop(i, None)

    def maps(
        self, ids: np.ndarray, env_output: StepOutput, last_actions: np.ndarray, state: AgentState
    ) -> dict[str, np.ndarray]:
        """The maps of one step in the environments `ids` `[M]`, of which there is at least one.

        Args:
          ids: `[M]`, distinct; those that have stepped, as each does in its own time.
          env_output: `[M, ...]`, what they have returned.
          last_actions: `[M]` int32, what led to it.
          state: `[M, ...]`, the agent's recurrent state before it.

        Returns:
          By label, each float32 `[M, rows, columns]`. "change": the pseudo-rewards of the last
          actions, 0 at an environment's first image and at the first of each episode. "max Q":
          the max action values.
        """
        images = image_of(env_output.observation)
        # Nothing has changed in what has not been seen before.
        before = [self._images.get(i, new) for i, new in zip(ids.tolist(), images, strict=True)]
        ends = env_output.info.episode_end
        change = pixel_control.cell_rewards(
            tf.constant(np.stack([before, images])), tf.constant(np.stack([ends, ends]))
        )[0]
        # A copy, as the environments may overwrite theirs.
        self._images.update(zip(ids.tolist(), images.copy(), strict=True))
        inputs = (last_actions, env_output, state)
        features = self._features(*tf.nest.map_structure(tf.convert_to_tensor, inputs))
        return {
            "change": change.numpy(),
            "max Q": pixel_control.max_values(self._q_head(features))[0].numpy(),
        }

    def _unroll(
        self, last_actions: tf.Tensor, env_output: StepOutput, state: AgentState
    ) -> tf.Tensor:
        """The agent's features of one step, `[1, M, D]`."""
        one_step = tf.nest.map_structure(lambda tensor: tensor[tf.newaxis], env_output)
        return self._agent.unroll(last_actions[tf.newaxis], one_step, state).features

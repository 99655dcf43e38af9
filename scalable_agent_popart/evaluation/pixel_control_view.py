"""Maps of pixel control over a policy's play, for videos to show next to the picture."""

import numpy as np
import tensorflow as tf

from environments import Ready, StepOutput, image_of
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.agent.agent import Agent, AgentState
from scalable_agent_popart.learning import pixel_control


class PixelControlView:
    """Computes maps over the cells of images that environments show, step by step."""

    def __init__(self, policy: Policy, agent: Agent, q_head: pixel_control.QHead):
        self._policy = policy
        self._agent = agent
        self.q_head = q_head
        # One graph for any number of environments; the head's few operations need none.
        self._features = tf.function(self._unroll, autograph=False, reduce_retracing=True)
        self._images: dict[int, np.ndarray] = {}  # The last of each environment.

    def maps(self, ready: Ready) -> dict[str, np.ndarray]:
        """Computes maps float32 `[M, rows, columns]` of M >= 1 environments before the policy acts.

        "change" is the last actions' pseudo-rewards, 0 at the first image of an environment or
        episode. "max Q" is the largest action values.
        """
        ids, env_output, fresh = ready
        for i in ids[fresh].tolist():
            self._images.pop(i, None)
        images = image_of(env_output.observation)
        # The first image of an environment is compared with itself.
        before = [self._images.get(i, new) for i, new in zip(ids.tolist(), images, strict=True)]
        ends = env_output.info.episode_end
        change = pixel_control.cell_rewards(
            tf.constant(np.stack([before, images])), tf.constant(np.stack([ends, ends]))
        )[0]
        # A copy, as the environments may overwrite theirs.
        self._images.update(zip(ids.tolist(), images.copy(), strict=True))
        inputs = (self._policy.last_output(ids).action, env_output, self._policy.state(ids))
        features = self._features(*tf.nest.map_structure(tf.convert_to_tensor, inputs))
        return {
            "change": change.numpy(),
            "max Q": pixel_control.max_values(self.q_head(features))[0].numpy(),
        }

    def _unroll(
        self, last_actions: tf.Tensor, env_output: StepOutput, state: AgentState
    ) -> tf.Tensor:
        """Computes the agent's features of one step, `[1, M, D]`."""
        one_step = tf.nest.map_structure(lambda tensor: tensor[tf.newaxis], env_output)
        return self._agent.unroll(last_actions[tf.newaxis], one_step, state).features

"""What an agent makes of the images that it sees, for films to show next to the picture."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from environments import Ready, image_of
from popart import ValueHead
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.evaluation.drawing import Play
from scalable_agent_popart.learning import pixel_control
from scalable_agent_popart.suites import Suite


class AgentView:
    """Computes maps of pixel control, and the policy with values, step by step."""

    def __init__(
        self,
        policy: Policy,
        agent: Agent,
        q_head: pixel_control.QHead | None,
        head: ValueHead | None,
        trained: Suite,
    ):
        """Takes the heads whose outputs to show, and the suite with the tasks learned in play."""
        self._policy = policy
        self.q_head = q_head
        self._head = head
        self._task_ids = {
            level: task_id
            for task_id, task in enumerate(trained.tasks)
            for level in (task, trained.test_version(task))
        }
        # One graph for any number of environments; the heads' few operations need none.
        self._look = tf.function(agent.unroll_step, autograph=False, reduce_retracing=True)
        self._images: dict[int, np.ndarray] = {}  # The last of each environment.

    def look(
        self, ready: Ready, levels: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], list[Play | None]]:
        """Looks at M >= 1 environments, which play these levels, before the policy acts.

        Returns maps float32 `[M, rows, columns]` by label, and each environment's policy.
        """
        ids, env_output, _ = ready
        inputs = (self._policy.last_output(ids).action, env_output, self._policy.state(ids))
        features, logits, _ = self._look(*tf.nest.map_structure(tf.convert_to_tensor, inputs))
        plays: list[Play | None] = [None] * len(ids)
        if self._head is not None:
            tasks = np.array([self._task_ids.get(level, -1) for level in levels])
            heads = np.clip(tasks, 0, self._head.num_tasks - 1)  # There may be one for all tasks.
            values = self._head(features[0], heads).unnormalised
            known = np.where(tasks < 0, np.nan, values)
            plays = list(map(Play, tf.nn.softmax(logits[0]).numpy(), known.tolist()))
        return self._maps(ready, features), plays

    def _maps(self, ready: Ready, features: tf.Tensor) -> dict[str, np.ndarray]:
        """Computes maps of pixel control, if there are to be any.

        "change" is the last actions' pseudo-rewards, 0 at the first image of an environment or
        episode. "max Q" is the largest action values.
        """
        if self.q_head is None:
            return {}
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
        return {
            "change": change.numpy(),
            "max Q": pixel_control.max_values(self.q_head(features))[0].numpy(),
        }

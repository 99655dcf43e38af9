"""How strongly each task pulls at the policy: its part of a batch's policy gradient."""

from collections.abc import Mapping, Sequence

import numpy as np

from scalable_agent_popart.learner import Learner
from scalable_agent_popart.rollouts import Rollout, select


class TaskGradients:
    """Measures, apart from the update, what each task adds to the policy gradient.

    The policy gradient g of a batch, that of the policy's loss to the agent's weights, is the sum
    of those of its rollouts, and so of its tasks: g = sum_k g_k. Advantages are divided by the
    scale as it is before the update, also where that comes to change the statistics first.
    """

    def __init__(self, learner: Learner, tasks: Sequence[str]):
        """Args: learner: whose loss and weights; tasks: by their ids."""
        self._learner = learner
        self._tasks = tasks

    def measure(self, batch: Rollout) -> Mapping[str, Mapping[str, float]]:
        """The sizes of a batch's `[T + 1, B, ...]` gradients; weights stay as they are.

        Returns:
          By the names of the tasks that have rollouts in the batch: `policy_gradient_norm`, |g_k|,
          as it is before any clipping.
        """
        task_ids = batch.task_id.numpy()  # [B]
        norms = {
            self._tasks[i]: self._norm(batch, np.flatnonzero(task_ids == i))
            for i in np.unique(task_ids)
        }
        return {"policy_gradient_norm": norms}

    def _norm(self, batch: Rollout, chosen: np.ndarray) -> float:
        """Of the gradient of some rollouts alone."""
        gradients = self._learner.policy_gradient(select(batch, chosen))
        flat = np.concatenate([np.ravel(gradient) for gradient in gradients])
        return float(np.linalg.norm(flat.astype(np.float64)))

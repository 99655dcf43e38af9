"""How strongly each task pulls at the agent: its part of a batch's gradient."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout, select


class TaskGradients:
    """Measures, apart from the update, what each task adds to the gradient.

    Losses are sums over rollouts, so the gradient g of a batch to the agent's weights is the sum of
    those of its tasks: g = sum_k g_k. That holds for the policy's loss alone and for the total
    loss, whose values' part reaches the agent through the layers that both share.
    """

    def __init__(self, learner: Learner, tasks: Sequence[str]):
        """Args: learner: whose loss and weights; tasks: by their ids."""
        self._learner = learner
        self._tasks = tasks

    def measure(self, batch: Rollout) -> Mapping[str, Mapping[str, float]]:
        """The sizes of a batch's `[T + 1, B, ...]` gradients; weights stay as they are.

        Returns:
          By the names of the tasks that have rollouts in the batch |g_k|, as it is before any
          clipping: `policy_gradient_norm` of the policy's loss, `total_gradient_norm` of the total.
        """
        task_ids = batch.task_id.numpy()  # [B]
        norms: dict[str, dict[str, float]] = {"policy_gradient_norm": {}, "total_gradient_norm": {}}
        for i in np.unique(task_ids):
            own = self._learner.gradients(select(batch, np.flatnonzero(task_ids == i)))
            norms["policy_gradient_norm"][self._tasks[i]] = _norm(own.policy)
            norms["total_gradient_norm"][self._tasks[i]] = _norm(own.total)
        return norms


def _norm(gradient: Sequence[tf.Tensor]) -> float:
    """The length of a gradient, a tensor for each variable."""
    flat = np.concatenate([np.ravel(tensor) for tensor in gradient])
    return float(np.linalg.norm(flat.astype(np.float64)))

"""The gradients of the tasks: how strongly each moves the agent."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout, select


def norms_by_task(
    learner: Learner, tasks: Sequence[str], batch: Rollout
) -> Mapping[str, Mapping[str, float]]:
    """Measures, apart from the update, what each task adds to a batch's gradient.

    Losses are sums over rollouts, so the gradient g of a batch to the agent's weights is the sum of
    those of its tasks: g = sum_k g_k. That holds for the policy's loss alone and for the total
    loss, whose values' part reaches the agent through the layers that both share.

    Args:
      learner: whose loss and weights; stays as it is.
      tasks: names by task id.
      batch: `[T + 1, B, ...]`.

    Returns:
      |g_k| before any clipping, by the names of the tasks that have rollouts in the batch:
      `policy_gradient_norm` of the policy's loss, `total_gradient_norm` of the total.
    """
    task_ids = batch.task_id.numpy()  # [B]
    norms: dict[str, dict[str, float]] = {"policy_gradient_norm": {}, "total_gradient_norm": {}}
    for i in np.unique(task_ids):
        own = learner.gradients(select(batch, np.flatnonzero(task_ids == i)))
        norms["policy_gradient_norm"][tasks[i]] = _norm(own.policy)
        norms["total_gradient_norm"][tasks[i]] = _norm(own.total)
    return norms


def _norm(gradient: Sequence[tf.Tensor]) -> float:
    """Computes, in float64, the length of a gradient given as a tensor for each variable."""
    flat = np.concatenate([np.ravel(tensor) for tensor in gradient])
    return float(np.linalg.norm(flat.astype(np.float64)))

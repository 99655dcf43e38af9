"""The gradients of the tasks: how strongly each moves the agent."""

from collections.abc import Mapping, Sequence

import numpy as np

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
      |g_k| before any clipping: each norm of `Learner.gradient_norms` by the names of the tasks
      that have rollouts in the batch.
    """
    task_ids = batch.task_id.numpy()  # [B]
    norms: dict[str, dict[str, float]] = {}
    for i in np.unique(task_ids):
        own = learner.gradient_norms(select(batch, np.flatnonzero(task_ids == i)))
        for name, norm in own.items():
            norms.setdefault(name, {})[tasks[i]] = float(norm)
    return norms

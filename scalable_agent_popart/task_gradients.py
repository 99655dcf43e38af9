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
        """The parts of a batch `[T + 1, B, ...]` with the present weights, which stay as they are.

        Returns:
          By the names of the K tasks that have rollouts in the batch: `policy_gradient_norm`,
          |g_k|, as it would be before any clipping; and `policy_gradient_share`, g_k.g / |g|^2, the
          share of g that is due to the task. Shares sum to one, and one below zero is of a task
          that pulls against the others.
        """
        task_ids = batch.task_id.numpy()  # [B]
        present = np.unique(task_ids)
        num_weights = sum(int(np.prod(v.shape)) for v in self._learner.agent.trainable_variables)
        parts = np.empty((len(present), num_weights), np.float32)  # [K, P]
        for part, i in zip(parts, present, strict=True):
            part[:] = self._gradient(batch, task_ids == i)
        whole = parts.sum(axis=0, dtype=np.float64)  # [P]
        squared = np.dot(whole, whole)
        norms, shares = {}, {}
        for part, i in zip(parts, present, strict=True):
            exact = part.astype(np.float64)
            norms[self._tasks[i]] = float(np.linalg.norm(exact))
            shares[self._tasks[i]] = float(np.dot(exact, whole) / squared) if squared > 0 else 0.0
        return {"policy_gradient_norm": norms, "policy_gradient_share": shares}

    def _gradient(self, batch: Rollout, chosen: np.ndarray) -> np.ndarray:
        """Of the rollouts `chosen` `[B]` alone; `[P]`, all weights in one row."""
        gradients = self._learner.policy_gradient(select(batch, np.flatnonzero(chosen)))
        return np.concatenate([np.ravel(gradient) for gradient in gradients])

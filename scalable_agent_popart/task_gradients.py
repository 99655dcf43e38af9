"""How strongly each task pulls at the policy: its part of a batch's policy gradient."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from scalable_agent_popart.learner import Learner
from scalable_agent_popart.rollouts import Rollout, select


class TaskGradients:
    """Measures, apart from the update, what each task adds to the policy gradient.

    The policy gradient g of a batch, that of the policy's loss to the agent's weights, is the sum
    of those of its rollouts, and so of its tasks: g = sum_k g_k.
    """

    def __init__(self, learner: Learner, tasks: Sequence[str]):
        """Args: learner: whose loss and weights; tasks: by their ids."""
        self._learner = learner
        self._tasks = tasks

    def measure(self, batch: Rollout) -> Mapping[str, Mapping[str, float]]:
        """The parts of a batch `[T + 1, B, ...]` with the present weights, which stay as they are.

        Returns:
          By the names of the tasks that have rollouts in the batch: `policy_gradient_norm`, |g_k|,
          as it would be before any clipping; and `policy_gradient_share`, g_k.g / |g|^2, the share
          of g that is due to the task. Shares sum to one, and one below zero is of a task that
          pulls against the others.
        """
        task_ids = batch.task_id.numpy()  # [B]
        present = np.unique(task_ids)
        parts = np.stack([self._gradient(batch, task_ids == i) for i in present])  # [K, P]
        whole = parts.sum(axis=0)
        squared = np.dot(whole, whole)
        shares = parts @ whole / squared if squared > 0 else np.zeros(len(present))
        names = [self._tasks[i] for i in present]
        norms = np.linalg.norm(parts, axis=1)
        return {
            "policy_gradient_norm": dict(zip(names, norms.tolist(), strict=True)),
            "policy_gradient_share": dict(zip(names, shares.tolist(), strict=True)),
        }

    def _gradient(self, batch: Rollout, chosen: np.ndarray) -> np.ndarray:
        """Of the rollouts `chosen` `[B]` alone; `[P]`, all weights in one row."""
        gradients = self._learner.policy_gradient(select(batch, np.flatnonzero(chosen)))
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]  # [...] -> [P_i]
        return tf.concat(flat, axis=0).numpy().astype(np.float64)

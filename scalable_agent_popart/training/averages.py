"""Averages of what updates report, over all updates between two lines of a run's log."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

# Targets that vary less are constant but for rounding, and no value can explain their variance.
_MIN_RELATIVE_VARIANCE = 1e-12


class Averages:
    """Sums of updates' metrics, in all and by task, since they were last taken."""

    def __init__(self, tasks: Sequence[str]):
        self._tasks = tasks
        self._clear()

    def _clear(self) -> None:
        self.num_updates = 0
        self._totals: dict[str, float] = {}
        self._num_rollouts = np.zeros(len(self._tasks))
        self._totals_by_task: dict[str, np.ndarray] = {}
        self._largest_target = np.zeros(len(self._tasks))

    def add(self, metrics: Mapping[str, tf.Tensor], task_ids: np.ndarray) -> None:
        """Adds an update's metrics, scalars or of each rollout `[B]`, with their tasks `[B]`."""
        self.num_updates += 1
        self._num_rollouts += np.bincount(task_ids, minlength=len(self._tasks))
        for name, tensor in metrics.items():
            value = tensor.numpy()
            if name == "largest_target":
                np.maximum.at(self._largest_target, task_ids, value)
            elif value.ndim:
                by_task = np.bincount(task_ids, value, len(self._tasks))
                self._totals_by_task[name] = self._totals_by_task.get(name, 0.0) + by_task
            else:
                self._totals[name] = self._totals.get(name, 0.0) + float(value)

    def take(self) -> tuple[dict[str, float], dict[str, Mapping[str, float]]]:
        """Returns the averages by name, and those by task for tasks that had rollouts.

        Scalars are means over updates, and diagnostics means over rollouts. The largest target is
        a maximum. The explained variance is 1 - Var(G - v) / Var(G) over all steps; a task whose
        targets G are constant has none.
        """
        values = {name: total / self.num_updates for name, total in self._totals.items()}
        num_rollouts, totals = self._num_rollouts, self._totals_by_task
        for name in ("entropy", "behaviour_kl", "clipped_rho"):
            values[f"mean_{name}"] = float(totals[name].sum() / num_rollouts.sum())
        played = np.flatnonzero(num_rollouts)
        means = {name: total[played] / num_rollouts[played] for name, total in totals.items()}
        variance = means["squared_target"] - means["target"] ** 2
        unexplained = means["squared_error"] - means["error"] ** 2
        varies = variance > _MIN_RELATIVE_VARIANCE * means["squared_target"]
        explained = 1.0 - unexplained[varies] / variance[varies]
        by_task: dict[str, Mapping[str, float]] = {
            "entropy": self._named(played, means["entropy"]),
            "explained_variance": self._named(played[varies], explained),
            "largest_target": self._named(played, self._largest_target[played]),
        }
        self._clear()
        return values, by_task

    def _named(self, ids: np.ndarray, values: np.ndarray) -> dict[str, float]:
        return {self._tasks[i]: value for i, value in zip(ids, values.tolist(), strict=True)}

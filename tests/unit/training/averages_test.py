"""Averages of updates against NumPy over all steps at once."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.training.averages import Averages

_TASKS = ("a", "b", "c", "d")


def test_averages_are_over_all_updates_since_they_were_last_taken() -> None:
    generator, averages = np.random.default_rng(0), Averages(_TASKS)
    for _ in range(2):
        losses, by_task = [], {task: [] for task in _TASKS}
        for _ in range(3):
            task_ids = generator.choice([0, 1, 3], 5)
            task_ids[0] = 3
            entropy, (targets, errors) = generator.uniform(size=5), generator.normal(size=(2, 7, 5))
            targets[:, task_ids == 3] = 2.0  # Constant, so there is nothing to explain.
            losses.append(generator.normal())
            moments = {"target": targets, "error": errors}
            metrics = {"total_loss": losses[-1], "largest_target": abs(targets).max(axis=0)}
            metrics |= dict.fromkeys(("entropy", "behaviour_kl", "clipped_rho"), entropy)
            for name, steps in moments.items():
                metrics |= {name: steps.mean(axis=0), f"squared_{name}": (steps**2).mean(axis=0)}
            averages.add({n: tf.constant(value) for n, value in metrics.items()}, task_ids)
            for i, task_id in enumerate(task_ids):
                by_task[_TASKS[task_id]].append((entropy[i], targets[:, i], errors[:, i]))
        values, found = averages.take()
        assert averages.num_updates == 0
        assert values["total_loss"] == pytest.approx(np.mean(losses))
        entropies = [np.mean([rollout[0] for rollout in by_task[task]]) for task in "abd"]
        assert found["entropy"] == pytest.approx(dict(zip("abd", entropies, strict=True)))
        every = [rollout[0] for rollouts in by_task.values() for rollout in rollouts]
        for name in ("entropy", "behaviour_kl", "clipped_rho"):
            assert values[f"mean_{name}"] == pytest.approx(np.mean(every))
        steps = {
            task: [np.concatenate([rollout[j] for rollout in by_task[task]]) for j in (1, 2)]
            for task in "abd"
        }
        explained = {task: 1 - steps[task][1].var() / steps[task][0].var() for task in "ab"}
        assert found["explained_variance"] == pytest.approx(explained)
        largest = {task: abs(steps[task][0]).max() for task in "abd"}
        assert found["largest_target"] == pytest.approx(largest)

"""Averages of updates against NumPy over all steps at once."""

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.training.averages import Averages

_UPDATES, _STEPS, _ROLLOUTS = 3, 7, 5


def test_averages_are_over_all_updates_since_they_were_last_taken() -> None:
    rng, averages = np.random.default_rng(0), Averages(("a", "b", "c", "d"))
    for _ in range(2):
        task_ids = rng.choice([0, 1, 3], (_UPDATES, _ROLLOUTS))
        task_ids[:, 0] = 3
        losses, entropy = rng.normal(size=_UPDATES), rng.uniform(size=task_ids.shape)
        targets, errors = rng.normal(size=(2, *task_ids.shape, _STEPS))
        targets[task_ids == 3] = 2.0  # Constant, so there is nothing to explain.
        for i in range(_UPDATES):
            metrics = {"total_loss": losses[i], "largest_target": abs(targets[i]).max(axis=-1)}
            metrics |= dict.fromkeys(("entropy", "behaviour_kl", "clipped_rho"), entropy[i])
            for name, steps in (("target", targets[i]), ("error", errors[i])):
                metrics |= {name: steps.mean(axis=-1), f"squared_{name}": (steps**2).mean(axis=-1)}
            averages.add({n: tf.constant(value) for n, value in metrics.items()}, task_ids[i])
        values, by_task = averages.take()
        assert averages.num_updates == 0
        assert values["total_loss"] == pytest.approx(losses.mean())
        for name in ("entropy", "behaviour_kl", "clipped_rho"):
            assert values[f"mean_{name}"] == pytest.approx(entropy.mean())
        assert list(by_task["entropy"]) == list(by_task["largest_target"]) == ["a", "b", "d"]
        assert list(by_task["explained_variance"]) == ["a", "b"]
        for i, task in ((0, "a"), (1, "b"), (3, "d")):
            of_task = task_ids == i
            assert by_task["entropy"][task] == pytest.approx(entropy[of_task].mean())
            assert by_task["largest_target"][task] == pytest.approx(abs(targets[of_task]).max())
            if task != "d":
                explained = 1 - errors[of_task].var() / targets[of_task].var()
                assert by_task["explained_variance"][task] == pytest.approx(explained)

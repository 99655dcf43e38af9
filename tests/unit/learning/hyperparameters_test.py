"""Hyperparameters change from one update to the next, in the graph that is there."""

from typing import Any

import numpy as np
import pytest

from scalable_agent_popart.learning.hyperparameters import Hyperparameters
from scalable_agent_popart.runs.checkpoints import Checkpoints
from tests.fakes import small_learner

_TUNED = {"learning_rate": 0.003, "entropy_cost": 0.2, "epsilon": 0.7, "max_grad_norm": 0.5}
_START: dict[str, Any] = {"max_grad_norm": 40.0}


def _update(learner: Any) -> list[np.ndarray]:
    learner.update(small_learner.make_batch())
    return small_learner.snapshot(learner.variables)


@pytest.mark.parametrize("schedule", ["linear", "constant"])
@pytest.mark.parametrize("names", [*([name] for name in _TUNED), list(_TUNED)], ids=str)
def test_changed_value_acts_as_one_that_was_there_from_the_start(
    names: list[str], schedule: str
) -> None:
    values = {name: _TUNED[name] for name in names}
    learner = small_learner.make_learner(**_START, learning_rate_schedule=schedule)
    before = small_learner.snapshot(learner.variables)
    usual = _update(learner)
    traces = learner.num_traces
    small_learner.restore(learner.variables, before)
    first = learner.hyperparameters.values()
    learner.hyperparameters.assign(values)
    changed = _update(learner)
    learner.hyperparameters.assign(first)
    assert learner.num_traces == traces == 1
    other = small_learner.make_learner(**{**_START, **values}, learning_rate_schedule=schedule)
    for one, expected in zip(changed, _update(other), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-7)
    assert any((one != own).any() for one, own in zip(changed, usual, strict=True))


def test_constant_learning_rate_is_the_same_to_the_end() -> None:
    annealed = small_learner.make_learner()
    constant = small_learner.make_learner(learning_rate_schedule="constant")
    for frames, left in ((0, 1.0), (250, 0.75), (1000, 0.0), (2000, 0.0)):
        for learner in (annealed, constant):
            learner.frames.assign(frames)
        np.testing.assert_allclose(annealed.learning_rate(), 0.01 * left, rtol=1e-6)
        np.testing.assert_allclose(constant.learning_rate(), 0.01, rtol=1e-6)


def test_values_are_those_that_were_assigned() -> None:
    hyperparameters = Hyperparameters.of(small_learner.SETTINGS)
    hyperparameters.assign({"epsilon": 0.25})
    assert hyperparameters.values() == {
        "learning_rate": pytest.approx(0.01),
        "entropy_cost": pytest.approx(0.01),
        "epsilon": 0.25,
        "max_grad_norm": 0.0,
    }


def test_learners_checkpoint_leaves_them_to_the_flags(tmp_path: Any) -> None:
    learner = small_learner.make_learner()
    checkpoints = Checkpoints(tmp_path, learner=learner)
    checkpoints.save()
    first = learner.hyperparameters.values()
    learner.hyperparameters.assign(_TUNED)
    assert checkpoints.restore()
    assert learner.hyperparameters.values() == pytest.approx(_TUNED)
    learner.hyperparameters.assign(first)

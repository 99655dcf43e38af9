"""Hyperparameters change from one update to the next, in the graph that is there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalable_agent_popart.runs.checkpoints import Checkpoints
from tests.fakes import small_learner

_TUNED = {"learning_rate": 0.003, "entropy_cost": 0.2, "epsilon": 0.7, "max_grad_norm": 0.5}


def _update(learner: Any) -> list[np.ndarray]:
    learner.update(small_learner.make_batch())
    return small_learner.snapshot(learner.agent.trainable_variables)


def test_changed_values_act_as_those_that_were_there_from_the_start() -> None:
    learner = small_learner.build_learner(max_grad_norm=40.0)
    before, first = small_learner.snapshot(learner.variables), learner.hyperparameters.values()
    usual = _update(learner)
    for changed in (*({name: value} for name, value in _TUNED.items()), _TUNED):
        small_learner.restore(learner.variables, before)
        learner.hyperparameters.assign({**first, **changed})
        assert learner.hyperparameters.values() == pytest.approx({**first, **changed})
        after = _update(learner)
        assert any((one != own).any() for one, own in zip(after, usual, strict=True)), changed
    assert learner.num_traces == 1
    for one, expected in zip(after, _update(small_learner.build_learner(**_TUNED)), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-7)


def test_learners_checkpoint_leaves_them_to_the_flags(tmp_path: Path) -> None:
    learner = small_learner.build_learner()
    checkpoints = Checkpoints(tmp_path, learner=learner)
    checkpoints.save()
    learner.hyperparameters.assign(_TUNED)
    assert checkpoints.restore()
    assert learner.hyperparameters.values() == pytest.approx(_TUNED)

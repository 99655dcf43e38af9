"""Whole populations: trained, resumed, tested, refused and rescued."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.population import member
from scalable_agent_popart.population.directory import MemberDirectory, PopulationDirectory
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.training import trainer
from tests.fakes.main_program import run
from tests.fakes.programs import metrics

TINY = {
    "mode": "pbt",
    "population_size": 2,
    "level_name": "catch5",
    "use_popart": True,
    "num_actors": 10,
    "batch_size": 4,
    "unroll_length": 10,
    "pbt_burn_in_frames": 200,
    "pbt_episodes": 20,
    "total_environment_frames": 600,
}


def _config(root: Path, **given: Any) -> Config:
    return Config.from_flags({**TINY, "logdir": str(root), **given})


def _train(root: Path, **given: Any) -> None:
    run(**{**TINY, "logdir": str(root), **given})


def _member(root: Path, number: int) -> MemberDirectory:
    return PopulationDirectory(str(root)).member(number)


def read_checkpoint(path: Path | str) -> dict[str, np.ndarray]:
    """Reads all variables of a checkpoint, or of a folder's newest, by name."""
    reader = tf.train.load_checkpoint(str(path))
    names = reader.get_variable_to_shape_map()
    return {name.partition("/.ATTR")[0]: reader.get_tensor(name) for name in names}


def _saved(root: Path, number: int) -> dict[str, np.ndarray]:
    return read_checkpoint(_member(root, number).checkpoints)


class _Trained(NamedTuple):
    """A population of which two members took turns in one worker, in this process."""

    root: Path
    num_updates_traced: int
    num_steps_traced: int


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> _Trained:
    root = tmp_path_factory.mktemp("populations") / "two"
    counted = {"autospec": True}
    with (
        mock.patch.object(Learner, "_update", side_effect=Learner._update, **counted) as updates,
        mock.patch.object(Agent, "step", side_effect=Agent.step, **counted) as steps,
    ):
        assert member.take_turns(_config(root), {}) is None
    return _Trained(root, updates.call_count, steps.call_count)


@pytest.fixture
def population(trained: _Trained, tmp_path: Path) -> Path:
    """Returns the directory of a copy."""
    return Path(shutil.copytree(trained.root, tmp_path / "population"))


def test_members_are_ordinary_runs_that_were_compared(trained: _Trained) -> None:
    for number in range(2):
        directory, values = _member(trained.root, number), _saved(trained.root, number)
        events = directory.read_lineage()
        assert [event.comparison for event in events] == list(range(len(events)))
        assert values["num_comparisons"] == len(events) - 1
        assert values["learner/frames"] >= TINY["total_environment_frames"]
        assert len(events) > 1
        # Each is the other's only partner.
        assert {event.partner for event in events[1:]} <= {1 - number, None}
        last = metrics(directory.path)[-1]
        assert last["frames"] >= TINY["total_environment_frames"]
        tuned = events[-1].hyperparameters
        assert {name: last[name] for name in tuned} == pytest.approx(tuned)


def test_members_that_take_turns_share_what_is_traced(trained: _Trained) -> None:
    lineages = [_member(trained.root, number).read_lineage() for number in range(2)]
    assert sum(map(len, lineages)) > 2  # Turns.
    assert trained.num_updates_traced == 1
    assert trained.num_steps_traced == factory.num_actor_threads(_config(trained.root))


def test_a_finished_population_is_left_alone_and_a_longer_member_resumes(population: Path) -> None:
    before = [_saved(population, number) for number in range(2)]
    assert member.take_turns(_config(population), {}) is None
    for number in range(2):
        after = _saved(population, number)
        assert all(np.array_equal(before[number][name], after[name]) for name in after)
    _train(population, total_environment_frames=640, pbt_member=1)
    assert _saved(population, 1)["learner/frames"] >= 640


def test_a_member_is_tested(population: Path) -> None:
    run(mode="test", test_num_episodes=2, num_actors=5, logdir=str(population), pbt_member=1)
    evaluation = json.loads((_member(population, 1).path / "evaluation.json").read_text())
    assert evaluation["frames"] == _saved(population, 1)["learner/frames"]


def test_an_ordinary_run_cannot_resume_a_member(population: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: [^\n]*--population_size[^\n]*$"):
        run(level_name="catch5", num_actors=10, logdir=str(_member(population, 0).path))


def test_a_given_hyperparameter_is_where_the_member_starts(tmp_path: Path) -> None:
    _train(tmp_path, pbt_member=0, learning_rate=0.25, total_environment_frames=40)
    start = _member(tmp_path, 0).read_lineage()[0].hyperparameters
    assert start["learning_rate"] == 0.25
    assert start["entropy_cost"] != 0.03


def test_a_member_that_diverges_starts_over_and_is_given_up_if_it_always_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "_MAX_RESCUES", 2)
    given = {"pbt_member": 0, "log_seconds": 1e-6, "total_environment_frames": 80}
    _train(tmp_path / "once", learning_rate=1e30, **given)
    events = _member(tmp_path / "once", 0).read_lineage()
    assert events[1].started_over
    assert events[1].hyperparameters["learning_rate"] <= 5e-3
    # Whatever the hyperparameters, the loss is not finite.
    with pytest.raises(SystemExit, match=r"^error: [^\n]*2 times[^\n]*$"):
        _train(tmp_path / "always", baseline_cost=1e38, **given)
    events = _member(tmp_path / "always", 0).read_lineage()
    assert [event.started_over for event in events] == [False, True, True]


def test_a_reused_learner_is_as_good_as_new() -> None:
    first = _config(Path("unused"), epsilon=0.1)
    second = _config(Path("unused"), epsilon=0.2, seed=2)
    spec, parts = factory.make_rollout_spec(first), trainer.Parts()
    learner = parts.make_learner(first, spec)
    for variable in learner.variables:
        variable.assign(tf.ones_like(variable))
    tf.random.set_seed(second.seed)
    fresh = factory.make_learner(second, spec)
    tf.random.set_seed(second.seed)
    assert parts.make_learner(second, spec) is learner
    for variable, value in zip(learner.variables, fresh.variables, strict=True):
        np.testing.assert_array_equal(variable, value, err_msg=variable.name)
    assert learner.hyperparameters.values() == fresh.hyperparameters.values()
    # A setting that the graph does not read from variables needs another learner.
    clipping = dataclasses.replace(second, max_grad_norm=0.0 if second.max_grad_norm else 40.0)
    assert parts.make_learner(clipping, spec) is not learner

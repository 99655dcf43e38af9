"""Whole populations: trained, resumed, refused, interrupted and killed."""

import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.config import Config
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.population import worker as population_lib
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.population.member_directory import Event
from tests.fakes.main_program import run
from tests.fakes.programs import DEADLINE_SECONDS, Programs, wait_until

_TINY = {
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


def _train(root: Path, **given: Any) -> None:
    run(**{**_TINY, "logdir": str(root), **given})


def _refusal(**given: Any) -> str:
    with pytest.raises(SystemExit) as exit_:
        run(**given)
    message = str(exit_.value)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def _saved(root: Path, number: int) -> dict[str, np.ndarray]:
    """The variables of a member's newest checkpoint by name."""
    reader = tf.train.load_checkpoint(str(_member(root, number) / "checkpoints"))
    names = reader.get_variable_to_shape_map()
    return {name.partition("/.ATTR")[0]: reader.get_tensor(name) for name in names}


def _member(root: Path, number: int) -> Path:
    return PopulationDirectory(str(root)).member(number).path


def _lineage(root: Path, number: int) -> list[Event]:
    return PopulationDirectory(str(root)).member(number).read_lineage()


def _whole(root: Path, number: int) -> None:
    """A finished member's files agree with each other."""
    events, values = _lineage(root, number), _saved(root, number)
    assert [event.comparison for event in events] == list(range(len(events)))
    assert values["num_comparisons"] == len(events) - 1
    assert values["learner/frames"] >= _TINY["total_environment_frames"]
    for name, value in events[-1].hyperparameters.items():
        assert values[f"hyperparameters/{name}"] == value


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two members that took turns in one worker."""
    root = tmp_path_factory.mktemp("populations") / "two"
    _train(root)
    return root


def test_members_are_ordinary_runs_that_were_compared(population: Path) -> None:
    for number in range(2):
        _whole(population, number)
        assert len(_lineage(population, number)) > 1
        path = _member(population, number)
        config = json.loads((path / "config.json").read_text())
        assert config["flags"]["learning_rate_schedule"] == "constant"
        assert config["flags"]["pbt_member"] == number
        metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert metrics[-1]["frames"] >= _TINY["total_environment_frames"]
        assert {"learning_rate", "entropy_cost", "epsilon"} <= metrics[-1].keys()
        episodes = (path / "episodes.jsonl").read_text().splitlines()
        frames = [json.loads(line)["frames"] for line in episodes]
        assert frames == sorted(frames)
    first, second = (_lineage(population, number)[0] for number in range(2))
    assert first.hyperparameters != second.hyperparameters
    # With two members, each is the other's only partner.
    assert {e.partner for e in _lineage(population, 0)[1:]} <= {1, None}


def test_hyperparameters_of_the_lineage_are_those_that_taught(population: Path) -> None:
    for number in range(2):
        lines = (_member(population, number) / "metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        tuned = _lineage(population, number)[-1].hyperparameters
        assert {name: last[name] for name in tuned} == pytest.approx(tuned)


def test_finished_population_is_left_as_it_is(population: Path) -> None:
    before = [_saved(population, number) for number in range(2)]
    _train(population)
    for number in range(2):
        after = _saved(population, number)
        assert all(np.array_equal(before[number][name], after[name]) for name in after)


def test_longer_population_goes_on(population: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", population, tmp_path / "longer"], check=True)
    _train(tmp_path / "longer", total_environment_frames=640, pbt_member=1)
    assert _saved(tmp_path / "longer", 1)["learner/frames"] >= 640
    assert _lineage(tmp_path / "longer", 1)[0] == _lineage(population, 1)[0]


def test_member_is_tested_and_a_population_is_not(population: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", population, tmp_path / "tested"], check=True)
    given = {"mode": "test", "test_num_episodes": 2, "num_actors": 5}
    run(**given, logdir=str(tmp_path / "tested"), pbt_member=1)
    evaluation = json.loads((_member(tmp_path / "tested", 1) / "evaluation.json").read_text())
    assert evaluation["frames"] == _saved(population, 1)["learner/frames"]
    message = _refusal(mode="test", logdir=str(population))
    assert "holds a population" in message
    assert "member-00" in message


@pytest.mark.parametrize("member", [-1, 0])
@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"level_name": "cluttered_catch"}, "--level_name was catch5 and is cluttered_catch;"),
        ({"level_name": "catch_1,catch_10"}, "--level_name was catch5 and is catch_1,catch_10"),
        ({"network": "deep"}, "--network was shallow and is deep"),
        ({"use_popart": False}, "--use_popart was True and is False"),
        ({"population_size": 3}, "--population_size was 2 and is 3"),
        ({"reward_clipping": "abs_one"}, "--reward_clipping was none and is abs_one"),
    ],
    ids=str,
)
def test_members_of_another_experiment_are_refused_with_the_difference(
    population: Path, other: dict[str, Any], difference: str, member: int
) -> None:
    before = sorted(population.rglob("*"))
    given = {**_TINY, **other, "logdir": str(population), "pbt_member": member}
    assert difference in _refusal(**given)
    assert sorted(population.rglob("*")) == before


def test_members_directory_is_no_ordinary_run(population: Path) -> None:
    flags = {name: v for name, v in _TINY.items() if "pbt" not in (name[:3], v)}
    del flags["population_size"]
    message = _refusal(**flags, logdir=str(_member(population, 0)))
    assert "--population_size was 2 and is 0" in message
    assert "holds a population" in _refusal(**flags, logdir=str(population))


def test_directory_of_an_ordinary_run_holds_no_population(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    message = _refusal(**_TINY, logdir=str(tmp_path))
    assert "holds a run, not a population" in message
    assert list(tmp_path.iterdir()) == [tmp_path / "config.json"]


def test_given_hyperparameter_is_where_the_member_starts(tmp_path: Path) -> None:
    _train(tmp_path, pbt_member=0, learning_rate=0.25, total_environment_frames=40)
    start = _lineage(tmp_path, 0)[0].hyperparameters
    assert start["learning_rate"] == 0.25
    assert start["entropy_cost"] != 0.03
    # The checkpoint has it from there on.
    _train(tmp_path, pbt_member=0, learning_rate=0.5, total_environment_frames=80)
    assert _saved(tmp_path, 0)["hyperparameters/learning_rate"] == 0.25
    assert len(_lineage(tmp_path, 0)) == 1


def test_member_that_diverges_starts_over(tmp_path: Path) -> None:
    _train(tmp_path, pbt_member=0, learning_rate=1e30, log_seconds=1e-6)
    events = _lineage(tmp_path, 0)
    assert events[0].hyperparameters["learning_rate"] == pytest.approx(1e30)
    assert events[1].started_over
    assert events[1].hyperparameters["learning_rate"] <= 5e-3
    _whole(tmp_path, 0)


def test_member_that_always_diverges_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population_lib, "_MOST_RESCUES", 2)
    # Whatever the hyperparameters, the loss is not finite.
    given = {**_TINY, "logdir": str(tmp_path), "pbt_member": 0, "baseline_cost": 1e38}
    message = _refusal(**given, log_seconds=1e-6)
    assert "diverged" in message
    assert "2 times without a comparison" in message
    assert [event.started_over for event in _lineage(tmp_path, 0)] == [False, True, True]


def _count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[None]:
    """A list that grows by one with each call of a method."""
    real, calls = getattr(owner, name), []

    def count(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, count)
    return calls


def test_members_that_take_turns_share_what_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = _count_calls(monkeypatch, Learner, "_update")
    steps = _count_calls(monkeypatch, Agent, "step")
    config = Config.from_flags({**_TINY, "population_size": 4, "logdir": str(tmp_path)})
    assert all(signal_number is None for signal_number in population_lib.turns(config, {}))
    assert (
        sum(len(_lineage(tmp_path, number)) for number in range(4)) > 4
    )  # More than one turn each.
    assert len(steps) == factory.num_actor_threads(config)  # Once in each thread.
    assert len(updates) == 1


def test_learner_of_another_member_is_as_good_as_new() -> None:
    given = {**_TINY, "logdir": "unused", "level_name": "cluttered_catch"}
    first, second = (
        Config.from_flags({**given, "seed": seed, "epsilon": epsilon})
        for seed, epsilon in ((1, 0.1), (2, 0.2))
    )
    spec, graphs = factory.make_rollout_spec(first), population_lib.Graphs()
    learner = graphs.make_learner(first, spec)
    for variable in learner.variables:
        variable.assign(tf.ones_like(variable))
    tf.random.set_seed(second.seed)
    fresh = factory.make_learner(second, spec)
    tf.random.set_seed(second.seed)
    assert graphs.make_learner(second, spec) is learner
    for variable, value in zip(learner.variables, fresh.variables, strict=True):
        np.testing.assert_array_equal(variable, value, err_msg=variable.name)
    assert learner.hyperparameters.values() == fresh.hyperparameters.values()
    # What the graph does not read from variables asks for another one.
    other = dataclasses.replace(second, discounting=0.5)
    assert graphs.make_learner(other, spec) is not learner


class Populations(Programs):
    """Starts programs that train a population."""

    def __init__(self, root: Path):
        super().__init__()
        self.root = root

    def start(self, **given: Any) -> subprocess.Popen[str]:
        flags = {**_TINY, "logdir": self.root, "log_seconds": 0.01, **given}
        return self.run(*(f"--{name}={value}" for name, value in flags.items()))

    def frames(self, number: int) -> int:
        path = _member(self.root, number) / "metrics.jsonl"
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        return json.loads(lines[-1])["frames"] if lines else 0


@pytest.fixture
def populations(tmp_path: Path) -> Iterator[Populations]:
    populations = Populations(tmp_path / "population")
    yield populations
    populations.close()


def _workers(parent: int) -> list[int]:
    """The processes that train for another one."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"import work" in _command(child)]


def _command(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_worker_that_is_killed_is_started_again(populations: Populations) -> None:
    program = populations.start(pbt_places=2)
    wait_until(lambda: min(populations.frames(n) for n in range(2)) > 0, program)
    killed = _workers(program.pid)
    assert len(killed) == 2
    for process in killed:
        os.kill(process, signal.SIGKILL)
    _, said = program.communicate(timeout=DEADLINE_SECONDS)
    assert program.returncode == 0, said
    for number in range(2):
        _whole(populations.root, number)


def test_population_that_is_asked_to_stop_saves(populations: Populations) -> None:
    program = populations.start(total_environment_frames=10**9, pbt_episodes=10**9)
    wait_until(lambda: populations.frames(0) > 0, program)
    (worker,) = _workers(program.pid)
    program.send_signal(signal.SIGINT)
    _, told = program.communicate(timeout=DEADLINE_SECONDS)
    assert program.returncode == 128 + signal.SIGINT
    assert _gone(worker)
    assert _saved(populations.root, 0)["learner/frames"] == populations.frames(0)
    frames = sum(populations.frames(number) for number in range(2))
    line = f"saved at {frames:,} frames in {populations.root}; the same command goes on"
    assert told.splitlines()[-1] == line


def test_workers_end_with_their_parent(populations: Populations) -> None:
    program = populations.start(total_environment_frames=10**9, pbt_episodes=10**9)
    wait_until(lambda: populations.frames(0) > 0, program)
    (worker,) = _workers(program.pid)
    program.kill()
    program.wait()
    wait_until(lambda: _gone(worker))
    # As for any other end that was asked for, everything is saved.
    assert _saved(populations.root, 0)["learner/frames"] == populations.frames(0)

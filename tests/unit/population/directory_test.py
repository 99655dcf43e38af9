"""The configuration of a population: defaults, refusals, what members share, and who may join."""

import dataclasses
import fcntl
import functools
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.runs.directory import RunDirectory

_OUTSIDE_DMLAB30 = "seekavoid_arena_01"


def _config(level_name: str = "catch5", /, **given: Any) -> Config:
    return Config.from_flags({"level_name": level_name, **given})


def _population(level_name: str = "catch5", /, **given: Any) -> Config:
    return _config(level_name, **{"mode": "pbt", "population_size": 4, **given})


def _member(config: Config, number: int, **start: float) -> Config:
    return PopulationDirectory(config.logdir).member_config(config, number, start)


def _refusal(level_name: str = "catch5", /, **given: Any) -> str:
    with pytest.raises(UserError) as error:
        _config(level_name, **given)
    message = str(error.value)
    assert "\n" not in message
    return message


def _refusal_in_population(level_name: str = "catch5", /, **given: Any) -> str:
    return _refusal(level_name, **{"mode": "pbt", "population_size": 4, **given})


# Defaults.


@pytest.mark.parametrize("level_name", ["atari57", "pong", "dmlab30"])
def test_burn_in_and_episodes_are_the_papers(level_name: str) -> None:
    config = _population(level_name)
    assert (config.pbt_burn_in_frames, config.pbt_episodes) == (20_000_000, 5000)


@pytest.mark.parametrize(
    ("level_name", "tuned"),
    [
        ("atari57", {"entropy_cost", "learning_rate", "epsilon", "max_grad_norm"}),
        ("dmlab30", {"entropy_cost", "learning_rate", "epsilon"}),
        ("catch5", {"entropy_cost", "learning_rate", "epsilon"}),
    ],
)
def test_a_population_tunes_the_papers_hyperparameters(level_name: str, tuned: set[str]) -> None:
    assert set(_population(level_name).tuned) == tuned
    assert _config(level_name).tuned == ()


def test_learning_rate_is_constant_by_default_in_a_population_and_annealed_elsewhere() -> None:
    assert _population().learning_rate_schedule == "constant"
    assert _population(pbt_member=2).learning_rate_schedule == "constant"
    assert _config().learning_rate_schedule == "linear"
    assert _config(mode="train").learning_rate_schedule == "linear"
    assert _config(mode="test").learning_rate_schedule == "linear"


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_a_schedule_that_is_given_wins(schedule: str) -> None:
    assert _population(learning_rate_schedule=schedule).learning_rate_schedule == schedule
    assert _config(learning_rate_schedule=schedule).learning_rate_schedule == schedule


# What is refused.


@pytest.mark.parametrize("size", [0, 1])
def test_a_population_has_two_members_or_more(size: int) -> None:
    message = _refusal(mode="pbt", population_size=size)
    for expected in ("--mode=pbt", "--population_size", f"got {size}"):
        assert expected in message
    assert "--mode=pbt needs --population_size" in _refusal(mode="pbt")
    assert _population(population_size=2).population_size == 2


@pytest.mark.parametrize(
    ("name", "value"), [("population_size", 4), ("pbt_member", 0), ("pbt_places", 2)]
)
def test_flags_of_a_population_are_refused_without_it(name: str, value: int) -> None:
    for mode in ({}, {"mode": "train"}):
        assert f"--{name} is for --mode=pbt" in _refusal(**{name: value}, **mode)


@pytest.mark.parametrize("member", [-2, 4, 5])
def test_members_are_counted_from_zero(member: int) -> None:
    message = _refusal_in_population(pbt_member=member)
    for expected in (f"--pbt_member={member}", "[0, 3]"):
        assert expected in message
    for possible in (-1, 0, 3):
        assert _population(pbt_member=possible).pbt_member == possible


def test_a_learners_address_is_that_of_one_member() -> None:
    address = {"learner_address": "host:1234"}
    message = _refusal_in_population(**address)
    assert "--learner_address" in message
    assert "--pbt_member" in message
    assert _population(pbt_member=0, **address).learner_address == "host:1234"
    actor = {"job_name": "actor", "task": 0}
    assert "--pbt_member" in _refusal_in_population(**address, **actor)
    assert _population(pbt_member=0, **address, **actor).job_name == "actor"


def test_places_are_for_members_that_share_a_machine() -> None:
    assert _population(pbt_places=3).pbt_places == 3
    assert _population(pbt_places=1, pbt_member=0).pbt_places == 1
    message = _refusal_in_population(pbt_places=2, pbt_member=0)
    assert "--pbt_places" in message
    assert "--pbt_member" in message


@pytest.mark.usefixtures("stand_in")
def test_levels_must_have_reference_scores() -> None:
    message = _refusal_in_population(_OUTSIDE_DMLAB30)
    for expected in ("--mode=pbt", _OUTSIDE_DMLAB30, "human-normalised", "dmlab30"):
        assert expected in message
    both = f"{_OUTSIDE_DMLAB30},lasertag_one_opponent_small"
    assert _population(both).population_size == 4
    assert _config(_OUTSIDE_DMLAB30).population_size == 0


# What members share.


def test_members_of_a_population_are_one_experiment() -> None:
    config = _population(num_actors=10)
    for number, start in enumerate([{"entropy_cost": 1e-3}, {"learning_rate": 1e-5}, {}]):
        member = _member(config, number, epsilon=10.0**-number, **start)
        assert member.experiment == config.experiment
    assert _population(pbt_places=2, num_actors=20).experiment == config.experiment
    other = _population(seed=2, logdir="/other", checkpoint_seconds=7.0, log_seconds=7.0)
    assert other.experiment == _member(other, 3).experiment == config.experiment


@pytest.mark.parametrize("level_name", ["catch5", "atari57"])
def test_what_is_tuned_is_no_part_of_the_experiment(level_name: str) -> None:
    config = _population(level_name)
    tuned = dict.fromkeys(config.tuned, 0.125)
    assert _population(level_name, **tuned).experiment == config.experiment
    assert not set(config.tuned) & set(config.experiment)
    expected = level_name == "catch5"  # Where it is not tuned it makes a difference.
    other = _population(level_name, max_grad_norm=7.0).experiment
    assert (other != config.experiment) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"population_size": 5},
        {"pbt_episodes": 7},
        {"pbt_burn_in_frames": 7},
        {"batch_size": 7},
        {"use_popart": True},
        {"learning_rate_schedule": "linear"},
        {"discounting": 0.5},
    ],
)
def test_populations_of_other_flags_are_other_experiments(given: dict[str, Any]) -> None:
    assert _population(**given).experiment != _population().experiment


def test_an_ordinary_run_is_another_experiment() -> None:
    alone = _config(learning_rate_schedule="constant")
    population = _population()
    assert alone.experiment != population.experiment
    assert alone.experiment != _member(population, 0).experiment
    meaningless = {"pbt_episodes": 7, "pbt_burn_in_frames": 7}
    assert _config().with_flags(meaningless).experiment == _config().experiment


# Going on with a member, and testing it.


def _recorded_member(path: Path, **given: Any) -> tuple[Config, RunDirectory]:
    """A member's configuration, and its directory, in which it is recorded."""
    config = _population(logdir=str(path), **given)
    own = _member(config, 3, entropy_cost=1 / 3e3, learning_rate=1e-4 / 7, epsilon=1e-7)
    directory = RunDirectory(own.logdir)
    directory.lock()
    directory.record(own)
    directory.close()
    return own, directory


@pytest.mark.parametrize(
    "given", [{}, {"pbt_places": 2}, {"learner_address": "host:1234", "pbt_member": 3}]
)
def test_a_members_record_is_read_back_as_it_was_written(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    own, directory = _recorded_member(tmp_path, **given)
    assert directory.path == tmp_path / "member-03"
    assert directory.read_config() == own
    directory.check(own)


def test_a_member_is_not_continued_in_another_population_or_alone(tmp_path: Path) -> None:
    own, directory = _recorded_member(tmp_path)
    with pytest.raises(UserError, match="--population_size was 4 and is 5"):
        directory.check(own.with_flags({"population_size": 5}))
    with pytest.raises(UserError, match="--population_size was 4 and is 0"):
        directory.check(_config())


@pytest.mark.parametrize("given", [{}, {"learner_address": "host:1234", "pbt_member": 3}])
def test_a_member_is_tested_as_it_was_trained(tmp_path: Path, given: dict[str, Any]) -> None:
    architecture = {"use_lstm": True, "use_popart": True, "network": "deep"}
    trained, directory = _recorded_member(tmp_path, **architecture, **given)
    config = directory.wait_for_config().for_test({"mode": "test", "logdir": trained.logdir})
    assert config == dataclasses.replace(trained, mode="test", learner_address="")
    assert {name: getattr(config, name) for name in architecture} == architecture


def test_a_member_is_tested_on_other_levels_but_with_no_other_network() -> None:
    trained = _member(_population("pong,boxing", use_popart=True), 1)
    for level_name in ("pong", "qbert"):
        config = trained.for_test({"mode": "test", "level_name": level_name})
        assert config.suite.tasks == (level_name,)
        assert (config.use_popart, config.population_size, config.pbt_member) == (True, 4, 1)
    with pytest.raises(UserError, match="--use_lstm was False and is True"):
        trained.for_test({"mode": "test", "use_lstm": True})
    with pytest.raises(UserError, match="--population_size was 0 and is 4"):
        _config().for_test({"mode": "test", "population_size": 4})


# Joining a population.


@pytest.mark.parametrize("other", [8, 9])
def test_of_members_that_begin_at_once_the_first_one_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    population = PopulationDirectory(str(tmp_path / "deep" / "population"))
    have_seen_nobody, lock = threading.Barrier(4), fcntl.flock

    def wait_and_lock(file: Any, operation: int) -> None:
        have_seen_nobody.wait(timeout=60)
        lock(file, operation)

    def join(config: Config) -> str:
        try:
            population.join(config, config.precision)
        except UserError as error:
            return str(error)
        return "joined"

    configs = [_population(pbt_member=n, batch_size=(8, other)[n % 2]) for n in range(4)]
    monkeypatch.setattr(fcntl, "flock", wait_and_lock)
    with ThreadPoolExecutor(len(configs)) as pool:
        outcomes = pool.map(join, configs)
    begun = population.read_config()
    assert begun in configs
    assert begun is not None
    for config, outcome in zip(configs, outcomes, strict=True):
        joined = config.batch_size == begun.batch_size
        expected = f"--batch_size was {begun.batch_size} and is {config.batch_size}"
        assert outcome == "joined" if joined else expected in outcome
    assert {file.name for file in population.path.iterdir()} == {"lock", "population.json"}


def test_a_member_never_writes_over_what_another_one_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = PopulationDirectory(str(tmp_path))
    first = _population(pbt_member=0, batch_size=8)

    def late(file: Any, operation: int) -> None:
        record = {"flags": dataclasses.asdict(first)}
        (tmp_path / "population.json").write_text(json.dumps(record))

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(UserError, match="--batch_size was 8 and is 9"):
        population.join(_population(pbt_member=1, batch_size=9), "auto")
    assert population.read_config() == first


@pytest.mark.parametrize(
    "given",
    [
        {"level_name": "catch_1,catch_10"},
        {"network": "deep"},
        {"use_popart": True},
        {"population_size": 5},
        {"reward_clipping": "abs_one"},
        {"discounting": 0.5},
        {"max_grad_norm": 7.0},
        {"pbt_episodes": 7},
        {"seed": 7},
    ],
)
def test_another_population_is_refused_with_the_difference(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    ((name, value),) = given.items()
    population = PopulationDirectory(str(tmp_path))
    population.join(_population(), "auto")
    before = getattr(_population(), name)
    join = functools.partial(population.join, precision="auto")
    for refuse in (population.check, join):
        with pytest.raises(UserError) as error:
            refuse(_population().with_flags(given))
        assert f"another population: --{name} was {before} and is {value}; " in str(error.value)
    population.check(_population())


def test_another_suites_population_is_refused(tmp_path: Path) -> None:
    for one, other in itertools.permutations(("catch5", "atari57")):
        population = PopulationDirectory(str(tmp_path / one))
        population.join(_population(one), "auto")
        with pytest.raises(UserError, match=f"--level_name was {one} and is {other}"):
            population.check(_population(other))


@pytest.mark.parametrize(
    "given",
    [
        {"total_environment_frames": 10**9},
        {"learning_rate": 1.0, "entropy_cost": 1.0, "epsilon": 1.0},
        {"pbt_member": 3, "num_actors": 9, "actor_threads": 1},
        {"pbt_places": 4, "logdir": "/elsewhere"},
    ],
)
def test_members_may_differ_in_what_is_their_own(tmp_path: Path, given: dict[str, Any]) -> None:
    population = PopulationDirectory(str(tmp_path))
    population.join(_population(), "auto")
    population.join(_population(**given), "auto")
    assert population.read_config() == _population()


def test_all_members_compute_in_the_type_that_the_first_one_measured(tmp_path: Path) -> None:
    population = PopulationDirectory(str(tmp_path))
    config = _population(logdir=str(tmp_path))
    assert config.precision == "auto"
    for measured in ("bfloat16", "float32"):
        assert population.join(config, measured).precision == "bfloat16"
    assert population.read_config() == dataclasses.replace(config, precision="bfloat16")
    with pytest.raises(UserError, match="--precision was bfloat16 and is float32"):
        population.check(dataclasses.replace(config, precision="float32"))


def test_a_member_that_has_learned_goes_on_whatever_its_hyperparameters_are_now(
    tmp_path: Path,
) -> None:
    own, directory = _recorded_member(tmp_path)
    directory.checkpoints.mkdir()
    (directory.checkpoints / "ckpt-1.index").touch()
    directory.check(dataclasses.replace(own, learning_rate=0.5, entropy_cost=0.5, epsilon=0.5))
    with pytest.raises(UserError, match=r"--discounting was 0\.99 and is 0\.5"):
        directory.check(dataclasses.replace(own, discounting=0.5))


def test_a_run_is_no_population_and_a_population_is_no_run(tmp_path: Path) -> None:
    population, run = tmp_path / "population", RunDirectory(str(tmp_path / "run"))
    PopulationDirectory(str(population)).check(_population())
    assert not population.exists()
    PopulationDirectory(str(population)).join(_population(), "auto")
    own = RunDirectory(str(population))
    for refuse in (own.refuse_population, lambda: own.check(_config())):
        with pytest.raises(UserError, match=r"holds a population, not a run.*member-00"):
            refuse()
    run.lock()
    run.record(_config())
    with pytest.raises(UserError, match="holds a run, not a population; give another --logdir"):
        PopulationDirectory(str(run.path)).join(_population(), "auto")
    assert not (run.path / "population.json").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "\xff", '{"flags": 3}', '{"flags": {}}', '{"flags": {"level_name": 3}}'],
)
def test_a_damaged_population_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "population.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError) as error:
        PopulationDirectory(str(tmp_path)).join(_population(), "auto")
    message = str(error.value)
    assert f"{tmp_path / 'population.json'} is damaged" in message
    assert "\n" not in message


def test_a_member_has_a_seed_of_its_own_and_the_populations_flags(tmp_path: Path) -> None:
    for size in (2, 8, 24):
        each = [_population(population_size=size, seed=seed) for seed in range(30)]
        seeds = {_member(config, number).seed for config in each for number in range(size)}
        assert len(seeds) == 30 * size
    config = _population(logdir=str(tmp_path), pbt_places=3, use_popart=True)
    own = _member(config, 2, entropy_cost=0.5)
    assert (own.logdir, own.pbt_member, own.pbt_places) == (str(tmp_path / "member-02"), 2, 1)
    same = {name: getattr(config, name) for name in ("logdir", "seed", "pbt_member", "pbt_places")}
    assert dataclasses.replace(own, entropy_cost=config.entropy_cost, **same) == config

"""The files of a population: which members they admit, and that they are never seen half done."""

import dataclasses
import errno
import fcntl
import itertools
import json
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from environments import EnvironmentLostError
from scalable_agent_popart import errors
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import (
    Event,
    MemberDirectory,
    PopulationDirectory,
    Published,
)
from scalable_agent_popart.runs.directory import RunDirectory

_OUTSIDE_DMLAB30 = "seekavoid_arena_01"
_ENDINGS = ("index", "data-00000-of-00001")
_VALUES = {"entropy_cost": 1e-3, "epsilon": 1e-7}


def _config(level_name: str = "catch5", /, **given: Any) -> Config:
    return Config.from_flags({"level_name": level_name, **given})


def _population(level_name: str = "catch5", /, **given: Any) -> Config:
    return _config(level_name, **{"mode": "pbt", "population_size": 4, **given})


def _member(config: Config, number: int, **start: float) -> Config:
    return PopulationDirectory(config.logdir).member_config(config, number, start)


# A population's flags.


def test_defaults_are_the_papers_and_given_values_win() -> None:
    three = {"entropy_cost", "learning_rate", "epsilon"}
    for level_name, tuned in (
        ("atari57", three | {"max_grad_norm"}),
        ("dmlab30", three),
        ("catch5", three),
    ):
        config = _population(level_name)
        assert set(config.tuned) == tuned
        assert _config(level_name).tuned == ()
        if level_name != "catch5":
            assert (config.pbt_burn_in_frames, config.pbt_episodes) == (20_000_000, 5000)
    assert _population(pbt_member=2).learning_rate_schedule == "constant"
    assert _config(mode="train").learning_rate_schedule == "linear"
    for schedule in ("linear", "constant"):
        given = {"learning_rate_schedule": schedule}
        assert _population(**given).learning_rate_schedule == schedule
        assert _config(**given).learning_rate_schedule == schedule


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"population_size": 0}, ("--mode=pbt needs --population_size", "got 0")),
        ({"population_size": 1}, ("--mode=pbt", "--population_size", "got 1")),
        ({"mode": "train"}, ("--population_size is for --mode=pbt",)),
        ({"pbt_member": -2}, ("--pbt_member=-2", "[0, 3]")),
        ({"pbt_member": 4}, ("--pbt_member=4", "[0, 3]")),
        ({"learner_address": "host:1"}, ("--learner_address", "--pbt_member")),
        ({"learner_address": "host:1", "job_name": "actor", "task": 0}, ("--pbt_member",)),
        ({"pbt_places": 2, "pbt_member": 0}, ("--pbt_places", "--pbt_member")),
    ],
    ids=str,
)
def test_impossible_flags_of_a_population_are_refused(
    given: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        _population(**given)
    assert all(word in str(error.value) for word in words)


def test_possible_flags_of_a_population_are_accepted() -> None:
    assert _population(population_size=2, pbt_places=3).pbt_places == 3
    for member in (-1, 0, 3):
        assert _population(pbt_member=member).pbt_member == member
    for job in ({}, {"job_name": "actor", "task": 0}):
        own = _population(pbt_member=0, pbt_places=1, learner_address="host:1", **job)
        assert own.learner_address == "host:1"


@pytest.mark.usefixtures("stand_in")
def test_a_population_needs_a_level_with_reference_scores() -> None:
    with pytest.raises(UserError, match=rf"--mode=pbt.*human-normalised.*{_OUTSIDE_DMLAB30}"):
        _population(_OUTSIDE_DMLAB30)
    assert _population(f"{_OUTSIDE_DMLAB30},lasertag_one_opponent_small").population_size == 4
    assert _config(_OUTSIDE_DMLAB30).population_size == 0


def test_members_of_a_population_are_one_experiment() -> None:
    config = _population(num_actors=10)
    for number, start in enumerate([{"entropy_cost": 1e-3}, {"learning_rate": 1e-5}, {}]):
        member = _member(config, number, epsilon=10.0**-number, **start)
        assert member.experiment == config.experiment
    other = _population(seed=2, logdir="/other", checkpoint_seconds=7.0, pbt_places=2)
    assert other.experiment == _member(other, 3).experiment == config.experiment
    for level_name in ("catch5", "atari57"):
        # What is tuned is no part of the experiment; what is not, is.
        population = _population(level_name)
        assert not set(population.tuned) & set(population.experiment)
        clipped = _population(level_name, max_grad_norm=7.0).experiment
        assert (clipped != population.experiment) == (level_name == "catch5")


def test_other_flags_make_another_experiment() -> None:
    config = _population()
    for given in (
        {"population_size": 5},
        {"pbt_episodes": 7},
        {"pbt_burn_in_frames": 7},
        {"use_popart": True},
        {"learning_rate_schedule": "linear"},
    ):
        assert _population(**given).experiment != config.experiment
    alone = _config(learning_rate_schedule="constant")
    assert alone.experiment not in (config.experiment, _member(config, 0).experiment)
    meaningless = {"pbt_episodes": 7, "pbt_burn_in_frames": 7}
    assert _config().with_flags(meaningless).experiment == _config().experiment


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


# Resuming a member, and testing it.


@pytest.mark.parametrize(
    "given", [{}, {"pbt_places": 2}, {"learner_address": "host:1234", "pbt_member": 3}]
)
def test_a_member_is_resumed_and_tested_as_it_was_recorded(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    agent = {"use_lstm": True, "use_popart": True, "network": "deep"}
    config = _population(logdir=str(tmp_path), **agent, **given)
    own = _member(config, 3, entropy_cost=1 / 3e3, learning_rate=1e-4 / 7, epsilon=1e-7)
    directory = RunDirectory(own.logdir)
    directory.lock()
    directory.record(own)
    directory.close()
    assert directory.read_config() == own
    directory.check(own)
    for other in (own.with_flags({"population_size": 5}), _config()):
        with pytest.raises(
            UserError, match=f"--population_size was 4 and is {other.population_size}"
        ):
            directory.check(other)
    directory.checkpoints.mkdir()
    (directory.checkpoints / "ckpt-1.index").touch()
    directory.check(dataclasses.replace(own, learning_rate=0.5, entropy_cost=0.5, epsilon=0.5))
    with pytest.raises(UserError, match=r"--discounting was 0\.99 and is 0\.5"):
        directory.check(dataclasses.replace(own, discounting=0.5))
    tested = directory.wait_for_config().for_test({"mode": "test", "logdir": own.logdir})
    assert tested == dataclasses.replace(own, mode="test", learner_address="")
    with pytest.raises(UserError, match="--use_lstm was True and is False"):
        own.for_test({"mode": "test", "use_lstm": False})


# Joining a population.


@pytest.mark.parametrize("other", [8, 9])
def test_if_members_begin_at_once_the_first_one_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    population = PopulationDirectory(str(tmp_path / "deep" / "population"))
    have_seen_nobody, lock = threading.Barrier(4), fcntl.flock

    def wait_and_lock(file: Any, operation: int) -> None:
        have_seen_nobody.wait(timeout=60)
        lock(file, operation)

    def join(config: Config) -> str:
        try:
            return population.join(config, "float32")
        except UserError as error:
            return str(error)

    configs = [_population(pbt_member=n, batch_size=(8, other)[n % 2]) for n in range(4)]
    monkeypatch.setattr(fcntl, "flock", wait_and_lock)
    with ThreadPoolExecutor(len(configs)) as pool:
        outcomes = [*pool.map(join, configs)]
    begun = population.read_config()
    assert begun in [dataclasses.replace(config, precision="float32") for config in configs]
    for config, outcome in zip(configs, outcomes, strict=True):
        joined = config.batch_size == begun.batch_size
        expected = f"--batch_size was {begun.batch_size} and is {config.batch_size}"
        assert outcome == "float32" if joined else expected in outcome
    assert {file.name for file in population.path.iterdir()} == {"lock", "population.json"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("level_name", "catch_1,catch_10"),
        ("level_name", "atari57"),
        ("population_size", 5),
        ("reward_clipping", "abs_one"),
        ("max_grad_norm", 7.0),
        ("pbt_episodes", 7),
        ("seed", 7),
        ("precision", "float32"),
    ],
)
def test_another_population_is_refused_with_the_difference(
    tmp_path: Path, name: str, value: Any
) -> None:
    population = PopulationDirectory(str(tmp_path))
    population.join(_population(), "bfloat16")
    before = getattr(population.read_config(), name)
    other = _population(**{name: value}) if name != "level_name" else _population(value)
    for refuse in (population.check, lambda config: population.join(config, "bfloat16")):
        with pytest.raises(UserError, match="another population: ") as error:
            refuse(other)
        assert f"--{name} was {before} and is {value}; " in str(error.value)


def test_members_may_differ_in_flags_of_their_own_and_share_a_type(tmp_path: Path) -> None:
    population = PopulationDirectory(str(tmp_path))
    assert population.check(_population()) is None
    for given, measured in (
        ({}, "bfloat16"),
        ({"total_environment_frames": 10**9}, "float32"),
        ({"learning_rate": 1.0, "entropy_cost": 1.0, "epsilon": 1.0}, "float32"),
        ({"pbt_member": 3, "num_actors": 9, "actor_threads": 1}, "float32"),
        ({"pbt_places": 4, "logdir": "/elsewhere"}, "float32"),
    ):
        assert population.join(_population(**given), measured) == "bfloat16"
        expected = dataclasses.replace(_population(), precision="bfloat16")
        assert population.check(_population(**given)) == population.read_config() == expected


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


# Publishing.


class _DeathError(BaseException):
    """Ends the process, as far as the files that it leaves go."""


def _save(folder: Path, number: int, content: str = "") -> str:
    """Makes up a checkpoint; returns its path without the files' endings."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending in _ENDINGS:
        (folder / f"ckpt-{number}.{ending}").write_text(f"{ending} {content or number}")
    return str(folder / f"ckpt-{number}")


def _content(checkpoint: str) -> str:
    """Returns what a checkpoint was saved with, if all of it is there and of one piece."""
    found = {ending: Path(f"{checkpoint}.{ending}").read_text() for ending in _ENDINGS}
    (content,) = {text.removeprefix(f"{ending} ") for ending, text in found.items()}
    return content


def _publish(member: MemberDirectory, comparison: int, content: str = "") -> Published:
    checkpoint = _save(member.checkpoints, comparison, content)
    record = Published(2, comparison, 1800, 12.5, 40, {"catch_1": -0.25}, _VALUES, checkpoint)
    member.publish(record)
    return record


def _published(member: MemberDirectory) -> Published:
    published = member.published()
    assert published is not None
    return published


@pytest.fixture
def member(tmp_path: Path) -> MemberDirectory:
    """The directory of a member that has begun."""
    own = PopulationDirectory(str(tmp_path)).member(2)
    own.path.mkdir()
    return own


@pytest.fixture(params=[True, False], ids=["links", "no_links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tells whether files can have a second name."""

    def refuse(source: Any, target: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source))

    if not request.param:
        monkeypatch.setattr(os, "link", refuse)
    return request.param


def test_a_member_that_has_not_begun_has_published_nothing(tmp_path: Path) -> None:
    population = PopulationDirectory(str(tmp_path))
    (tmp_path / "member-00").mkdir()
    (tmp_path / "member-01").touch()
    assert [population.member(number).published() for number in range(3)] == [None] * 3
    assert population.member(123).path == tmp_path / "member-123"


@pytest.mark.usefixtures("links")
def test_the_last_two_snapshots_are_kept_with_what_they_earned(member: MemberDirectory) -> None:
    before = None
    for comparison in range(1, 12):
        record = _publish(member, comparison)
        published = _published(member)
        assert dataclasses.replace(published, checkpoint=record.checkpoint) == record
        shutil.rmtree(member.checkpoints)  # Newer ones replace the run's own.
        assert _content(published.checkpoint) == str(comparison)
        assert before is None or _content(before.checkpoint) == str(comparison - 1)
        kept = {f"snapshot-{n}.{e}" for n in {comparison, max(1, comparison - 1)} for e in _ENDINGS}
        assert {file.name for file in (member.path / "snapshots").iterdir()} == kept
        before = published


def _end_at(last: int, patch: pytest.MonkeyPatch) -> None:
    """Lets the process end at its `last`th step that changes a file; a copy has a half."""
    steps, copyfile = itertools.count(1), shutil.copyfile

    def ending(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == last:
                raise _DeathError
            return step(*args, **kwargs)

        return wrapped

    def copy_in_two(source: Any, target: Any) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:3])
        ending(copyfile)(source, target)

    for owner, names in ((os, ("link", "fsync")), (pathlib.Path, ("unlink", "mkdir", "replace"))):
        for name in names:
            patch.setattr(owner, name, ending(getattr(owner, name)))
    patch.setattr(shutil, "copyfile", copy_in_two)


def _deaths(
    folder: Path, monkeypatch: pytest.MonkeyPatch, comparison: int
) -> Iterator[MemberDirectory]:
    """Yields members that have published twice, and died a step later each in the next time."""
    for last in itertools.count(1):
        member = MemberDirectory(str(folder / f"{last}"))
        member.path.mkdir()
        record = [_publish(member, number) for number in (1, 2)][-1]
        checkpoint = _save(member.checkpoints, 3, "new")
        record = dataclasses.replace(record, comparison=comparison, checkpoint=checkpoint)
        with monkeypatch.context() as patch:
            _end_at(last, patch)
            try:
                member.publish(record)
            except _DeathError:
                pass
            else:
                assert last > 8
                return
        yield member


@pytest.mark.usefixtures("links")
@pytest.mark.parametrize("comparison", [3, 2])  # The latter if the run went back in between.
def test_what_is_published_is_all_there_wherever_a_member_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comparison: int
) -> None:
    for member in _deaths(tmp_path, monkeypatch, comparison):
        published = _published(member)
        assert _content(published.checkpoint) in ("2", "new")
        if comparison == 3:
            assert _content(published.checkpoint) == {2: "2", 3: "new"}[published.comparison]
        _publish(member, 3, "again")  # When it is back.
        published = _published(member)
        assert _content(published.checkpoint) == "again"
        kept = {file.stem for file in (member.path / "snapshots").iterdir()}
        assert Path(published.checkpoint).name in kept
        assert len(kept) <= 2


def test_a_full_disk_is_told_in_one_line_and_what_was_published_stays(
    member: MemberDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _publish(member, 1)

    def refuse(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[-1]))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(OSError, match="No space left") as raised:
        _publish(member, 2)
    line = errors.explain(raised.value)
    assert line is not None
    assert "no space left" in line
    assert "\n" not in line
    assert _content(_published(member).checkpoint) == "1"
    # Other errors are explained only if they are the user's to mend.
    assert errors.explain(UserError("give another")) == "give another"
    assert errors.explain(errors.DivergenceError("nan")) == "nan"
    assert errors.explain(EnvironmentLostError("lost")) == "lost"
    for error in (OSError(errno.EIO, "broken"), ValueError("wrong"), KeyboardInterrupt()):
        assert errors.explain(error) is None


# Reading from another.


@pytest.fixture
def reader(tmp_path: Path) -> MemberDirectory:
    """The directory of another member, that reads from the first one."""
    own = PopulationDirectory(str(tmp_path)).member(11)
    own.path.mkdir()
    return own


def test_a_fetched_checkpoint_is_a_whole_copy_of_which_nothing_is_left(
    member: MemberDirectory, reader: MemberDirectory
) -> None:
    _publish(member, 1, "theirs")
    source = _published(member)
    _save(reader.path / "incoming", 1, "of a reader that died")
    (reader.path / "incoming" / "snapshot-1.data-00007-of-00008").touch()
    with reader.fetch(source) as checkpoint:
        assert len([*Path(checkpoint).parent.iterdir()]) == len(_ENDINGS)
        assert reader.path in Path(checkpoint).parents
        _publish(member, 2)
        _publish(member, 3)
        assert _content(checkpoint) == "theirs"
    with pytest.raises(RuntimeError, match="unusable"), reader.fetch(_published(member)):
        raise RuntimeError("unusable")
    assert not [*reader.path.iterdir()]
    assert _content(_published(member).checkpoint) == "3"


@pytest.mark.parametrize("gone", [_ENDINGS, _ENDINGS[:1], _ENDINGS[1:]])
def test_a_checkpoint_that_is_gone_or_partly_is_not_fetched(
    member: MemberDirectory, reader: MemberDirectory, gone: tuple[str, ...]
) -> None:
    _publish(member, 1)
    source = _published(member)
    for ending in gone:
        Path(f"{source.checkpoint}.{ending}").unlink()
    with pytest.raises(FileNotFoundError, match="snapshot-1"), reader.fetch(source):
        pytest.fail("it was there")
    assert not [*reader.path.iterdir()]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.ESTALE, FileNotFoundError),  # NFS says so of a file that is gone.
        (errno.EIO, OSError),
    ],
)
def test_a_checkpoint_may_go_while_it_is_copied(
    member: MemberDirectory,
    reader: MemberDirectory,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    expected: type[OSError],
) -> None:
    _publish(member, 1)
    copyfile, calls = shutil.copyfile, itertools.count(1)

    def copy_one(original: Any, target: Any) -> None:
        if next(calls) > 1:
            raise OSError(number, os.strerror(number), str(original))
        copyfile(original, target)

    monkeypatch.setattr(shutil, "copyfile", copy_one)
    with pytest.raises(OSError, match=r".") as raised, reader.fetch(_published(member)):
        pytest.fail("it was there")
    assert type(raised.value) is expected
    assert not [*reader.path.iterdir()]


# Lineage.

_START = Event(0, 0, None, None, None, False, None, _VALUES)
_ALONE = _START._replace(comparison=1, frames=1_234_567, fitness=-3.25)
_COMPARED = _ALONE._replace(partner=2, partner_fitness=0.04)
_COPIED = _COMPARED._replace(partner_fitness=55.55, copied=True, source_frames=9)
_DESCRIBED = [
    (_START, "starts with"),
    (_ALONE, "fitness -3.2, nobody to compare with; now"),
    (_COMPARED, "fitness -3.2, compared with member 2 (0.0); now"),
    (_COPIED, "fitness -3.2, copies member 2 (55.5); now"),
    (_COMPARED._replace(partner_fitness=None), "fitness -3.2, member 2 could not be read; now"),
    (_COPIED._replace(fitness=None), "diverged, copies member 2 (55.5); now"),
    (_ALONE._replace(fitness=None, started_over=True), "diverged, starts over; now"),
]


def test_events_are_described_in_one_line() -> None:
    for event, expected in _DESCRIBED:
        when = "" if event is _START else "at 1,234,567 frames: "
        values = "entropy_cost 0.001, epsilon 1e-07"
        assert event.describe(7) == f"member 7 {when}{expected} {values}"


def test_lineage_is_read_as_far_as_it_is_written(member: MemberDirectory) -> None:
    assert member.read_lineage() == []
    events = [event for event, _ in _DESCRIBED]
    lines = [json.dumps(event._asdict()) for event in events]
    for unfinished in ("", lines[0][:9], lines[0]):
        member.lineage.write_text("".join(f"{line}\n" for line in lines) + unfinished)
        assert member.read_lineage() == events
    member.lineage.write_text(lines[0])
    assert member.read_lineage() == []


@pytest.mark.parametrize("damage", ["", "{", "[1]", "{}", '{"member": 1}', "\xff", '{"flags": 3}'])
def test_damaged_files_are_refused_in_one_line(member: MemberDirectory, damage: str) -> None:
    population = PopulationDirectory(str(member.path.parent))
    line = json.dumps(_START._asdict())
    for path, read, content in (
        (member.path / "fitness.json", member.published, damage),
        (member.lineage, member.read_lineage, f"{line}\n{damage}\n{line}\n"),
        (population.path / "population.json", population.read_config, damage),
    ):
        path.write_text(content, encoding="latin-1")
        with pytest.raises(UserError, match=r"^[^\n]* is damaged [^\n]*$") as raised:
            read()
        assert str(path) in str(raised.value)

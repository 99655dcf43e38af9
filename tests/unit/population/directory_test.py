"""The files of a population: which members they admit, and that they are never seen half done."""

import contextlib
import dataclasses
import errno
import fcntl
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import (
    MemberDirectory,
    PopulationDirectory,
    Published,
)
from scalable_agent_popart.runs.config import Config

_ENDINGS = ("index", "data-00000-of-00001")


def _population(level_name: str = "catch5", /, **given: Any) -> Config:
    flags = {"mode": "pbt", "population_size": 4, "level_name": level_name, **given}
    return Config.from_flags(flags)


def _member(config: Config, number: int, **start: float) -> Config:
    return PopulationDirectory(config.logdir).member_config(config, number, start)


# Members' flags.


def test_members_of_a_population_are_one_experiment() -> None:
    config = _population(num_actors=10)
    assert _member(config, 1, epsilon=0.1, entropy_cost=1e-3).experiment == config.experiment
    same = _population(seed=2, logdir="/other", checkpoint_seconds=7.0, pbt_places=2)
    assert same.experiment == _member(same, 3).experiment == config.experiment
    assert _population(pbt_episodes=7).experiment != config.experiment
    tuned = _population("atari57", max_grad_norm=7.0)  # What is tuned is no part of it.
    assert tuned.experiment == _population("atari57").experiment


def test_a_member_has_a_seed_of_its_own_and_the_populations_flags(tmp_path: Path) -> None:
    each = [_population(population_size=8, seed=seed) for seed in range(9)]
    assert len({_member(config, number).seed for config in each for number in range(8)}) == 72
    config = _population(logdir=str(tmp_path), pbt_places=3, use_popart=True)
    member = _member(config, 2, entropy_cost=0.5)
    assert member.logdir == str(tmp_path / "member-02")
    assert (member.pbt_member, member.pbt_places) == (2, 1)
    same = {name: getattr(config, name) for name in ("logdir", "seed", "pbt_member", "pbt_places")}
    assert dataclasses.replace(member, entropy_cost=config.entropy_cost, **same) == config


# Joining a population.


def test_if_members_begin_at_once_the_first_one_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = PopulationDirectory(str(tmp_path / "deep" / "population"))
    have_seen_nobody, lock = threading.Barrier(4), fcntl.flock

    def wait_and_lock(file: Any, operation: int) -> None:
        have_seen_nobody.wait(timeout=60)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", wait_and_lock)
    configs = [_population(pbt_member=n, batch_size=8 + n % 2) for n in range(4)]
    with ThreadPoolExecutor(len(configs)) as pool:
        joining = [pool.submit(population.join, config) for config in configs]
    begun = population.read_config()
    assert begun in configs
    for config, joined in zip(configs, joining, strict=True):
        assert (joined.exception() is None) == (config.batch_size == begun.batch_size)


def test_members_share_a_population_and_another_one_is_refused(tmp_path: Path) -> None:
    population = PopulationDirectory(str(tmp_path / "population"))
    assert population.check(_population()) is None
    assert not population.path.exists()
    for given in ({}, {"pbt_member": 3, "num_actors": 9, "learning_rate": 1.0}):
        population.join(_population(**given))
        assert population.check(_population(**given)) == population.read_config() == _population()
    for refuse in (population.check, population.join):
        with pytest.raises(UserError, match=r"another population: .*--seed was 1 and is 7;"):
            refuse(_population(seed=7))


# Publishing.


def _publish(member: MemberDirectory, comparison: int, content: str) -> Published | None:
    """Publishes a made-up checkpoint, and returns what others read."""
    checkpoint = member.checkpoints / "ckpt-1"
    checkpoint.parent.mkdir(exist_ok=True)
    for ending in _ENDINGS:
        Path(f"{checkpoint}.{ending}").write_text(f"{ending} {content}")
    member.publish(Published(comparison, 1800, 12.5, 40, str(checkpoint)))
    return member.published()


def _content(checkpoint: str) -> str:
    """Returns what a checkpoint was saved with, if all of it is there and of one piece."""
    texts = {ending: Path(f"{checkpoint}.{ending}").read_text() for ending in _ENDINGS}
    (content,) = {text.removeprefix(f"{ending} ") for ending, text in texts.items()}
    return content


@pytest.fixture
def members(tmp_path: Path) -> list[MemberDirectory]:
    """The directories of two members that have begun."""
    directories = [PopulationDirectory(str(tmp_path)).member(number) for number in (2, 123)]
    for member in directories:
        member.path.mkdir()
    return directories


def _end_at(last: int, patch: pytest.MonkeyPatch) -> None:
    """Lets the process end at its `last`th step that changes a file; a copy has a half."""
    steps, copyfile = itertools.count(1), shutil.copyfile

    def ending(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == last:
                raise SystemExit
            return step(*args, **kwargs)

        return wrapped

    def copy_in_two(source: Any, target: Any) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:3])
        ending(copyfile)(source, target)

    for owner, name in ((os, "fsync"), (Path, "unlink"), (Path, "mkdir"), (Path, "replace")):
        patch.setattr(owner, name, ending(getattr(owner, name)))
    patch.setattr(shutil, "copyfile", copy_in_two)


@pytest.mark.parametrize("comparison", [3, 2])  # The latter if the run went back in between.
def test_what_is_published_is_all_there_wherever_a_member_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comparison: int
) -> None:
    for last in itertools.count(1):
        member = MemberDirectory(str(tmp_path / f"{last}"))
        member.path.mkdir()
        for number in (1, 2):
            _publish(member, number, f"{number}")
        with monkeypatch.context() as patch, contextlib.suppress(SystemExit):
            _end_at(last, patch)
            _publish(member, comparison, "new")
            assert last > 9
            return
        assert _content(member.published().checkpoint) in ("2", "new")
        published = _publish(member, 3, "again")  # When it is back.
        assert _content(published.checkpoint) == "again"
        kept = {file.stem for file in (member.path / "snapshots").iterdir()}
        assert Path(published.checkpoint).name in kept
        assert len(kept) <= 2


# Reading from another.


def test_a_fetched_checkpoint_is_a_whole_copy_of_which_nothing_is_left(
    members: list[MemberDirectory],
) -> None:
    member, reader = members
    with reader.fetch(_publish(member, 1, "theirs")) as checkpoint:
        assert reader.path in Path(checkpoint).parents
        for comparison in (2, 3):
            published = _publish(member, comparison, f"{comparison}")
        assert _content(checkpoint) == "theirs"
    with pytest.raises(RuntimeError, match="unusable"), reader.fetch(published):
        raise RuntimeError("unusable")
    assert not [*reader.path.iterdir()]
    assert _content(published.checkpoint) == "3"


def test_a_checkpoint_that_goes_before_or_while_it_is_copied_is_not_fetched(
    members: list[MemberDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    member, reader = members
    source = _publish(member, 1, "1")

    def cannot_be_fetched() -> None:
        with pytest.raises(FileNotFoundError), reader.fetch(source):
            pytest.fail("it was there")
        assert not [*reader.path.iterdir()]

    with monkeypatch.context() as patch:
        copies = iter([shutil.copyfile, mock.Mock(side_effect=OSError(errno.ESTALE, "gone"))])
        patch.setattr(shutil, "copyfile", lambda *paths: next(copies)(*paths))
        cannot_be_fetched()
    Path(f"{source.checkpoint}.{_ENDINGS[1]}").unlink()
    cannot_be_fetched()


@pytest.mark.parametrize("damage", ["{", "{}"])
def test_damaged_files_are_refused(members: list[MemberDirectory], damage: str) -> None:
    member = members[0]
    population = PopulationDirectory(str(member.path.parent))
    for path, read in (
        (member.path / "fitness.json", member.published),
        (member.lineage, member.read_lineage),
        (population.path / "population.json", population.read_config),
    ):
        path.write_text(f"{damage}\n")
        with pytest.raises(UserError, match=f"^{path} is damaged"):
            read()

"""A population's directory: nothing in it is ever seen half done, whoever dies or joins when."""

import dataclasses
import errno
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from environments import EnvironmentLostError
from scalable_agent_popart import errors
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.population.member_directory import Event, MemberDirectory, Published

_ENDINGS = ("index", "data-00000-of-00001")
_VALUES = {"entropy_cost": 1e-3 / 3, "epsilon": 1e-7}


class _DeathError(BaseException):
    """The process's end, as far as what it leaves behind goes."""


def _one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def _save(folder: Path, number: int, content: str = "") -> str:
    """A made-up checkpoint; returns its path without the files' endings."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending in _ENDINGS:
        (folder / f"ckpt-{number}.{ending}").write_text(f"{ending} {content or number}")
    return str(folder / f"ckpt-{number}")


def _content(checkpoint: str) -> str:
    """What a checkpoint was saved with, if all of it is there and of one piece."""
    found = {ending: Path(f"{checkpoint}.{ending}").read_text() for ending in _ENDINGS}
    (content,) = {text.removeprefix(f"{ending} ") for ending, text in found.items()}
    return content


def _record(checkpoint: str, comparison: int = 1, **given: Any) -> Published:
    returns = {"catch_1": -0.25}
    return dataclasses.replace(
        Published(2, comparison, 1800, 12.5, 40, returns, _VALUES, checkpoint), **given
    )


@pytest.fixture
def member(tmp_path: Path) -> MemberDirectory:
    """Of one that has begun."""
    own = PopulationDirectory(str(tmp_path)).member(2)
    own.path.mkdir()
    return own


@pytest.fixture
def reader(tmp_path: Path) -> MemberDirectory:
    """Another member, that takes from the first one."""
    own = PopulationDirectory(str(tmp_path)).member(11)
    own.path.mkdir()
    return own


@pytest.fixture(params=[True, False], ids=["links", "no_links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether files can have a second name."""

    def refuse(source: Any, target: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source))

    if not request.param:
        monkeypatch.setattr(os, "link", refuse)
    return request.param


def _publish(member: MemberDirectory, comparison: int, content: str = "") -> Published:
    checkpoint = _save(member.checkpoints, comparison, content)
    record = _record(checkpoint, comparison)
    member.publish(record)
    return record


def _snapshots(member: MemberDirectory) -> list[str]:
    return sorted(file.name for file in (member.path / "snapshots").iterdir())


def _files(*comparisons: int) -> list[str]:
    return sorted(f"snapshot-{n}.{ending}" for n in comparisons for ending in _ENDINGS)


# Publishing.


def test_a_member_that_has_not_begun_has_published_nothing(tmp_path: Path) -> None:
    population = PopulationDirectory(str(tmp_path))
    assert population.member(0).published() is None
    (tmp_path / "member-00").mkdir()
    assert population.member(0).published() is None
    (tmp_path / "member-01").touch()
    assert population.member(1).published() is None
    assert population.member(0).path == tmp_path / "member-00"
    assert population.member(123).path == tmp_path / "member-123"


@pytest.mark.usefixtures("links")
def test_what_is_published_is_read_with_the_checkpoint_that_earned_it(
    member: MemberDirectory,
) -> None:
    _save(member.checkpoints, 10, "another")
    record = _publish(member, 1, "ours")
    shutil.rmtree(member.checkpoints)  # As the run's own are, in favour of newer ones.
    published = member.published()
    assert published is not None
    assert dataclasses.replace(published, checkpoint=record.checkpoint) == record
    assert _content(published.checkpoint) == "ours"
    assert _snapshots(member) == _files(1)


@pytest.mark.usefixtures("links")
def test_the_last_two_snapshots_are_kept(member: MemberDirectory) -> None:
    for comparison in range(1, 12):
        before = member.published()
        _publish(member, comparison)
        assert _snapshots(member) == _files(*{comparison, max(1, comparison - 1)})
        assert before is None or _content(before.checkpoint) == str(comparison - 1)
        published = member.published()
        assert published is not None
        assert _content(published.checkpoint) == str(comparison)


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
    patch.setattr(shutil, "copyfile", ending(copy_in_two))


def _deaths(
    folder: Path, monkeypatch: pytest.MonkeyPatch, comparison: int
) -> Iterator[MemberDirectory]:
    """Members that have published twice and died in a step of the next time, a step later each."""
    for last in itertools.count(1):
        member = MemberDirectory(str(folder / f"{last}"))
        member.path.mkdir()
        _publish(member, 1)
        _publish(member, 2)
        record = _record(_save(member.checkpoints, 3, "new"), comparison)
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
def test_what_is_published_is_all_there_wherever_a_member_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for member in _deaths(tmp_path, monkeypatch, comparison=3):
        published = member.published()
        assert published is not None
        expected = {2: "2", 3: "new"}[published.comparison]
        assert _content(published.checkpoint) == expected
        _publish(member, 3, "again")  # When it is back.
        published = member.published()
        assert published is not None
        assert _content(published.checkpoint) == "again"
        kept = {name.partition(".")[0] for name in _snapshots(member)}
        assert Path(published.checkpoint).name in kept
        assert kept <= {"snapshot-2", "snapshot-3", "snapshot-3-again"}
        assert len(kept) <= 2


@pytest.mark.usefixtures("links")
def test_a_member_that_went_back_may_die_publishing_a_comparison_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for member in _deaths(tmp_path, monkeypatch, comparison=2):
        published = member.published()
        assert published is not None
        assert _content(published.checkpoint) in ("2", "new")


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
    published = member.published()
    assert published is not None
    assert _content(published.checkpoint) == "1"


def test_errors_that_are_not_the_users_are_not_explained() -> None:
    assert errors.explain(UserError("give another")) == "give another"
    assert errors.explain(errors.DivergenceError("nan")) == "nan"
    assert errors.explain(EnvironmentLostError("lost")) == "lost"
    for error in (OSError(errno.EIO, "broken"), ValueError("wrong"), KeyboardInterrupt()):
        assert errors.explain(error) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "{}", '{"member": 1}', "\xff"])
def test_a_damaged_fitness_is_refused_in_one_line(member: MemberDirectory, text: str) -> None:
    (member.path / "fitness.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError) as raised:
        member.published()
    message = _one_line(raised)
    assert str(member.path / "fitness.json") in message
    assert "delete it" in message


# Taking from another.


@pytest.fixture
def source(member: MemberDirectory) -> Published:
    """What the first member published."""
    _publish(member, 1, "theirs")
    published = member.published()
    assert published is not None
    return published


def test_a_fetched_checkpoint_is_a_whole_copy_that_is_the_readers_own(
    member: MemberDirectory, reader: MemberDirectory, source: Published
) -> None:
    before = {*reader.path.iterdir()}
    with reader.fetch(source) as checkpoint:
        assert _content(checkpoint) == "theirs"
        assert reader.path in Path(checkpoint).parents
        _publish(member, 2)
        _publish(member, 3)
        assert _content(checkpoint) == "theirs"
    assert {*reader.path.iterdir()} == before
    published = member.published()
    assert published is not None
    assert _content(published.checkpoint) == "3"


def test_nothing_is_left_of_a_checkpoint_that_could_not_be_used(
    reader: MemberDirectory, source: Published
) -> None:
    with pytest.raises(RuntimeError, match="unusable"), reader.fetch(source):
        raise RuntimeError("unusable")
    assert not [*reader.path.iterdir()]


def test_nothing_is_left_of_what_a_reader_fetched_when_it_died(
    reader: MemberDirectory, source: Published
) -> None:
    _save(reader.path / "incoming", 1, "old")
    (reader.path / "incoming" / "snapshot-1.data-00007-of-00008").touch()
    with reader.fetch(source) as checkpoint:
        assert _content(checkpoint) == "theirs"
        assert len([*Path(checkpoint).parent.iterdir()]) == len(_ENDINGS)
    assert not [*reader.path.iterdir()]


@pytest.mark.parametrize("gone", [_ENDINGS, _ENDINGS[:1], _ENDINGS[1:]])
def test_a_checkpoint_that_is_gone_or_partly_is_not_fetched(
    reader: MemberDirectory, source: Published, gone: tuple[str, ...]
) -> None:
    for ending in gone:
        Path(f"{source.checkpoint}.{ending}").unlink()
    with pytest.raises(FileNotFoundError, match="snapshot-1"), reader.fetch(source):
        pytest.fail("it was there")
    shutil.rmtree(Path(source.checkpoint).parent)
    with pytest.raises(FileNotFoundError), reader.fetch(source):
        pytest.fail("it was there")
    assert not [*reader.path.iterdir()]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.ESTALE, FileNotFoundError),  # Gone, as NFS says it.
        (errno.EIO, OSError),
        (errno.ENOSPC, OSError),
    ],
)
def test_a_checkpoint_may_go_while_it_is_copied(
    reader: MemberDirectory,
    source: Published,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    expected: type[OSError],
) -> None:
    copyfile, calls = shutil.copyfile, itertools.count(1)

    def copy_one(original: Any, target: Any) -> None:
        if next(calls) > 1:
            raise OSError(number, os.strerror(number), str(original))
        copyfile(original, target)

    monkeypatch.setattr(shutil, "copyfile", copy_one)
    with pytest.raises(OSError, match=r".") as raised, reader.fetch(source):
        pytest.fail("it was there")
    assert type(raised.value) is expected
    assert not [*reader.path.iterdir()]


# Lineage.

_START = Event(0, 0, None, None, None, False, None, {"entropy_cost": 1e-3, "epsilon": 1e-7})
_ALONE = _START._replace(comparison=1, frames=1_234_567, fitness=-3.25)
_COMPARED = _ALONE._replace(partner=2, partner_fitness=0.04)
_COPIED = _COMPARED._replace(partner_fitness=55.55, copied=True, source_frames=9)
_RESCUED = _COPIED._replace(fitness=None)
_STARTED_OVER = _ALONE._replace(fitness=None, started_over=True)
_EVENTS = (_START, _ALONE, _COMPARED, _COPIED, _RESCUED, _STARTED_OVER)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (_START, "starts with"),
        (_ALONE, "fitness -3.2, nobody to compare with; now"),
        (_COMPARED, "fitness -3.2, compared with member 2 (0.0); now"),
        (_COPIED, "fitness -3.2, copies member 2 (55.5); now"),
        (_RESCUED, "diverged, copies member 2 (55.5); now"),
        (_STARTED_OVER, "diverged, starts over; now"),
    ],
)
def test_events_are_described_in_one_line(event: Event, expected: str) -> None:
    when = "" if event is _START else "at 1,234,567 frames: "
    values = "entropy_cost 0.001, epsilon 1e-07"
    assert event.describe(7) == f"member 7 {when}{expected} {values}"


def test_lineage_is_read_as_far_as_it_is_written(member: MemberDirectory) -> None:
    assert member.read_lineage() == []
    lines = [json.dumps(event._asdict()) for event in _EVENTS]
    for unfinished in ("", lines[0][:9], lines[0]):
        member.lineage.write_text("".join(f"{line}\n" for line in lines) + unfinished)
        assert member.read_lineage() == list(_EVENTS)
    member.lineage.write_text(lines[0])
    assert member.read_lineage() == []


@pytest.mark.parametrize("damage", ["", "{", "{}", "[1]", '{"unknown": 1}', "\xff"])
def test_damaged_lineage_is_refused_in_one_line(member: MemberDirectory, damage: str) -> None:
    line = json.dumps(_START._asdict())
    member.lineage.write_text(f"{line}\n{damage}\n{line}\n", encoding="latin-1")
    with pytest.raises(UserError) as raised:
        member.read_lineage()
    assert f"{member.lineage} is damaged" in _one_line(raised)

"""Reads what there is to know of a population: its members, and the best one's ancestry."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scalable_agent_popart import scores
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import (
    Event,
    MemberDirectory,
    PopulationDirectory,
)
from scalable_agent_popart.report import records
from scalable_agent_popart.report.ancestry import Segment, in_effect, trace
from scalable_agent_popart.runs.directory import POPULATION_FILE
from scalable_agent_popart.scores import ReferenceScore

_MEMBER = re.compile(r"member-(\d{2,9})", re.ASCII)


@dataclass(frozen=True)
class Member:
    """A member that has begun to train.

    Attributes:
      number: in the population.
      config: its run's.
      lineage: its events, in order.
      frames: of its own run that it is known to have reached.
      num_tasks: with a known score, of which it has finished an episode.
      score: mean capped human-normalised score of these tasks' latest training episodes, in
        percent; None if there are none.
      complete: whether these are all of the tasks with a known score.
    """

    number: int
    config: Config
    lineage: tuple[Event, ...]
    frames: int
    num_tasks: int
    score: float | None
    complete: bool

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"member-{self.number:02d}"

    @property
    def standing(self) -> tuple[int, float, int]:
        """Higher for a fitter member; scores of fewer tasks are hardly comparable."""
        score = -np.inf if self.score is None else self.score
        return self.num_tasks, score, -self.number

    @property
    def replaced(self) -> list[Event]:
        """The events at which its weights became others, copied or drawn anew."""
        return [event for event in self.lineage if event.copied or event.started_over]

    @property
    def copies(self) -> list[Event]:
        """The events at which it went on with another's weights."""
        return [event for event in self.lineage if event.copied]


@dataclass(frozen=True)
class Population:
    """Members that learn side by side, and the line of descent that stands for them in a report.

    Attributes:
      path: of the population's directory.
      members: those that have begun, by number.
      best: of those that have finished episodes of the most tasks, the one with the highest score.
      shown: the one whose ancestry it is: the best, unless another was asked for.
      whole: whether none was asked for.
      segments: the ancestry, oldest first.
    """

    path: Path
    members: Mapping[int, Member]
    best: Member
    shown: Member
    whole: bool
    segments: tuple[Segment, ...]

    @property
    def config(self) -> Config:
        """Of the member that is shown."""
        return self.shown.config

    @property
    def size(self) -> int:
        """Members, begun or not."""
        return self.config.population_size

    @property
    def seed(self) -> int:
        """That all members' seeds come from."""
        return self.config.seed // self.size

    def directory(self, member: int) -> MemberDirectory:
        """A member's."""
        return PopulationDirectory(str(self.path)).member(member)


def read_population(path: str, problems: list[str]) -> Population | None:
    """What a path names: a population, or a member of one, whose ancestry is then the one shown.

    Args:
      path: of any directory.
      problems: gets a line for each thing that could not be read.

    Returns:
      None if it is neither.

    Raises:
      UserError: if it is, and there is no member to report on.
    """
    directory, number = _find(Path(path))
    if directory is None:
        return None
    of = directory if number is None else directory.member(number)
    shared = of.read_config()
    if number is not None and (shared is None or not shared.population_size):
        return None  # A run that lies there, if it is one.
    if shared is None or not shared.population_size:
        raise UserError(f"it holds a {POPULATION_FILE} of no population")
    members = _read_members(directory, shared.population_size, problems)
    if not members or number not in (None, *members):
        raise UserError("; ".join(["it has nothing to report yet", *problems]))
    best = max(members.values(), key=lambda member: member.standing)
    shown = best if number is None else members[number]
    lineages = {member.number: member.lineage for member in members.values()}
    segments, unknown = trace(lineages, shown.number)
    if unknown:
        start = segments[0]
        problems.append(
            f"{directory.path}: the ancestry of {shown.name} is known from frame {start.first:,} "
            f"of member {start.member} on only: {unknown}"
        )
    return Population(directory.path, members, best, shown, number is None, segments)


def _find(path: Path) -> tuple[PopulationDirectory | None, int | None]:
    """The population that a directory is, or is in, and the member that it is."""
    if (path / POPULATION_FILE).exists():
        return PopulationDirectory(str(path)), None
    for own in (path, path.resolve()):  # The path may be `.`, or a link's.
        found = _MEMBER.fullmatch(own.name)
        if found and (own.parent / POPULATION_FILE).exists():
            return PopulationDirectory(str(own.parent)), int(found[1])
    return None, None


def _read_members(
    directory: PopulationDirectory, size: int, problems: list[str]
) -> dict[int, Member]:
    members = {}
    for path in sorted(directory.path.glob("member-*")):
        found = _MEMBER.fullmatch(path.name)
        if not found or int(found[1]) >= size:
            continue
        own = MemberDirectory(str(path))
        try:
            config = own.read_config()
        except UserError as error:
            problems.append(f"{path} skipped: {error}")
            continue
        if config is None:
            continue  # Not begun.
        if config.population_size != size:
            problems.append(f"{path} skipped: it is no member of a population of {size}")
            continue
        members[int(found[1])] = _read_member(own, int(found[1]), config, problems)
    return members


def _read_member(
    directory: MemberDirectory, number: int, config: Config, problems: list[str]
) -> Member:
    lineage = tuple(in_effect(records.read_lineage(directory.lineage, problems)))
    references = config.suite.reference_scores
    known = [task for task in config.suite.tasks if task in references]
    episodes = records.read_recent_episodes(directory.episodes, config.suite.tasks)
    returns = {
        task: own["episode_return"].to_numpy()[-records.RECENT_EPISODES :]
        for task, own in episodes.groupby("task", observed=True)
        if task in references
    }
    reached = [event.frames for event in lineage]
    if len(episodes):
        reached.append(int(episodes["frames"].max()))
    return Member(
        number,
        config,
        lineage,
        max(reached, default=0),
        len(returns),
        _score(returns, references),
        len(returns) == len(known),
    )


def _score(
    returns: Mapping[str, np.ndarray], references: Mapping[str, ReferenceScore]
) -> float | None:
    aggregate = scores.aggregate_returns(returns, references)
    return aggregate.mean_capped if aggregate else None

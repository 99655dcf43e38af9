"""Reads the directories of runs and populations, finished or not, as a report compares them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import Event, MemberDirectory, PopulationDirectory
from scalable_agent_popart.report import records
from scalable_agent_popart.report.lineage import Segment, trace
from scalable_agent_popart.report.records import Evaluation
from scalable_agent_popart.runs.directory import POPULATION_FILE, Change, RunDirectory

_MEMBER = re.compile(r"member-(\d{2,9})", re.ASCII)
_NOTHING = "it has nothing to report yet"


@dataclass(frozen=True)
class Member:
    """A member of a population that has begun to train."""

    number: int
    config: Config
    lineage: tuple[Event, ...]
    frames: int  # Of its own run, that it is known to have reached.
    num_tasks: int  # With a known score, of which it has finished an episode.
    # Mean capped human-normalised score of these tasks' latest training episodes, in percent.
    score: float | None
    complete: bool  # Whether these are all of the tasks with a known score.

    @property
    def name(self) -> str:
        """The name of its directory."""
        return f"member-{self.number:02d}"

    @property
    def rank(self) -> tuple[int, float, int]:
        """Higher for a fitter member; scores of fewer tasks are hardly comparable."""
        score = -np.inf if self.score is None else self.score
        return self.num_tasks, score, -self.number


@dataclass(frozen=True)
class Population:
    """Members that learn side by side, and the line of descent that stands for them in a report."""

    path: Path
    members: Mapping[int, Member]  # Those that have begun, by number.
    best: Member  # Of those with episodes of the most tasks, the one with the highest score.
    shown: Member  # The one whose ancestry it is: the best, unless another was asked for.
    whole: bool  # Whether none was asked for.
    segments: tuple[Segment, ...]  # The ancestry, oldest first.

    def directory(self, member: int) -> MemberDirectory:
        """Gives a member's directory."""
        return PopulationDirectory(str(self.path)).member(member)

    def end(self, segment: Segment) -> int:
        """Gives the last frame of a segment: of the present, the newest that is known."""
        return self.members[segment.member].frames if segment.last is None else segment.last


@dataclass(frozen=True)
class Run:
    """The content of a run directory, or of a population's.

    Where there is a `population`, which the run is the best of or a member of, frames are those
    that the weights have learned from, in whatever member.
    """

    path: Path
    config: Config
    logs: Mapping[str, pd.DataFrame]  # `episodes`, and the tables of `records.read_metrics`.
    evaluations: tuple[Evaluation, ...]  # All results of `--mode=test`.
    problems: list[str]  # A line for each thing that could not be read.
    population: Population | None
    history: tuple[Change, ...]  # Flags that it was resumed with and were others, oldest first.
    device: str  # That it was trained on; empty if that is not known.

    @property
    def seed(self) -> int:
        """The seed that was given, from which members of a population have their own."""
        size = self.config.population_size if self.population else 0
        return self.config.seed // (size or 1)

    @property
    def mixed(self) -> list[str]:
        """Names the changes of flags that the run has learned with, one after the other.

        A run that was made longer has, if its learning rate was annealed to the end before.
        """
        return [
            f"{name} {then} to {now} at {change.frames:,} frames"
            for change in self.history
            for name, (then, now) in change.changed.items()
            if name != "total_environment_frames" or self.config.learning_rate_schedule == "linear"
        ]

    @property
    def frames(self) -> int:
        """Environment frames the run is known to have reached."""
        reached = [evaluation.frames for evaluation in self.evaluations]
        reached += [int(table["frames"].max()) for table in self.logs.values() if len(table)]
        return max(reached, default=0)


def read_run(path: str) -> Run:
    """Reads the directory of a run, of a population or of one of its members.

    A population is one run: the ancestry of its best member's weights, with frames counted as
    these have learned from them. So is a member, with its own ancestry.

    Raises:
      UserError: if it is not known what made it, or there is nothing to report in it.
    """
    problems: list[str] = []
    population = _read_population(path, problems)
    directory = RunDirectory(path)
    segments: tuple[Segment, ...] = (Segment(0, 0, None, 0),)
    if population is not None:
        directory, segments = population.directory(population.shown.number), population.segments
    record = directory.read_record()
    if record is None:
        raise UserError("it holds no config.json, so no run")
    config = record.config
    logs, tests = {}, {}
    for number in dict.fromkeys(segment.member for segment in segments):
        own = population.directory(number) if population else directory
        episodes = records.read_episodes(own.episodes, config.suite.tasks, problems)
        logs[number] = {
            "episodes": episodes,
            **records.read_metrics(own.metrics, config, problems),
        }
        tests[number] = _read_tests(own, config, problems)
        if population:
            tests[number] = _of_known_weights(population, number, tests[number], problems)
    evaluations = tuple(
        test._replace(frames=test.frames + segment.offset)
        for segment in segments
        for test in tests[segment.member]
        if segment.holds(np.array(test.frames))
    )
    tables = {}
    for name in ("episodes", *records.METRICS):
        parts = []
        for segment in segments:
            table = logs[segment.member][name]
            table = table[segment.holds(table["frames"].to_numpy())]
            parts.append(table.assign(frames=table["frames"] + segment.offset))
        # Empty tables have no types that mean anything.
        whole = [part for part in parts if len(part)] or parts[:1]
        tables[name] = pd.concat(whole, ignore_index=True)
    if not len(tables["episodes"]) and not len(tables["statistics"]) and not evaluations:
        raise UserError("; ".join([_NOTHING, *problems]))
    history, device = record.history, record.device
    return Run(Path(path), config, tables, evaluations, problems, population, history, device)


def _read_tests(
    directory: RunDirectory, config: Config, problems: list[str]
) -> tuple[Evaluation, ...]:
    """Reads evaluations, and names those in another precision than the run was trained in."""
    evaluations = records.read_evaluations(directory, problems)
    if config.precision != "auto":
        tested = {(test.frames, test.precision) for test in evaluations if test.precision}
        problems += [
            f"{directory.path}: its test at {frames:,} frames acted in {precision}, and it was "
            f"trained in {config.precision}"
            for frames, precision in sorted(tested)
            if precision != config.precision
        ]
    return evaluations


def _of_known_weights(
    population: Population, number: int, tests: tuple[Evaluation, ...], problems: list[str]
) -> tuple[Evaluation, ...]:
    """Leaves out a member's tests of which it is not known what weights they are of.

    Where weights become others, copied or sampled anew, there are two checkpoints: from before
    that and after.
    """
    own = [segment for segment in population.segments if segment.member == number]
    doubtful = {frames for segment in own for frames in (segment.first, segment.last)} & {
        event.frames
        for event in population.members[number].lineage
        if event.copied or event.started_over
    }
    for frames in sorted({test.frames for test in tests if test.frames in doubtful}):
        problems.append(
            f"{population.directory(number).path}: tests at {frames:,} frames skipped: its weights "
            "became others there, and the tests may be of those before or after"
        )
    return tuple(test for test in tests if test.frames not in doubtful)


def _read_population(path: str, problems: list[str]) -> Population | None:
    """Reads the population that a path names, or that it names a member of; None if it is neither.

    Raises:
      UserError: if there is no member to report on.
    """
    named, number = Path(path), None
    if (named / POPULATION_FILE).exists():
        directory = PopulationDirectory(path)
    else:
        for own in (named, named.resolve()):  # The path may be `.`, or a link's.
            found = _MEMBER.fullmatch(own.name)
            if found and (own.parent / POPULATION_FILE).exists():
                directory, number = PopulationDirectory(str(own.parent)), int(found[1])
                break
        else:
            return None
    shared = (directory if number is None else directory.member(number)).read_config()
    if shared is None or not shared.population_size:
        if number is not None:
            return None  # A run that lies there, if it is one.
        raise UserError(f"it holds a {POPULATION_FILE} of no population")
    size = shared.population_size
    found_members = [_read_member(directory, i, size, problems) for i in range(size)]
    members = {member.number: member for member in found_members if member}
    if not members or number not in (None, *members):
        raise UserError("; ".join([_NOTHING, *problems]))
    best = max(members.values(), key=lambda member: member.rank)
    shown = best if number is None else members[number]
    lineages = {member.number: member.lineage for member in members.values()}
    segments, unknown = trace(lineages, shown.number)
    if unknown:
        problems.append(
            f"{directory.path}: the ancestry of {shown.name} is known from frame "
            f"{segments[0].first:,} of member {segments[0].member} on only: {unknown}"
        )
    return Population(directory.path, members, best, shown, number is None, segments)


def _read_member(
    population: PopulationDirectory, number: int, size: int, problems: list[str]
) -> Member | None:
    """Reads a member of a population of this size; None if it has not begun."""
    directory = population.member(number)
    try:
        config = directory.read_config()
    except UserError as error:
        problems.append(f"{directory.path} skipped: {error}")
        return None
    if config is None:
        return None
    if config.population_size != size:
        problems.append(f"{directory.path} skipped: it is no member of a population of {size}")
        return None
    references = config.suite.reference_scores
    lineage = records.read_lineage(directory.lineage, problems)
    episodes = records.read_recent_episodes(directory.episodes, config.suite.tasks)
    returns = {
        str(task): own["episode_return"].to_numpy()[-records.RECENT_EPISODES :]
        for task, own in episodes.groupby("task", observed=True)
        if task in references
    }
    frames = max([0, *(event.frames for event in lineage), *episodes["frames"].tail(1)])
    aggregate = scores.aggregate_returns(returns, references)
    score = aggregate.mean_capped if aggregate else None
    complete = len(returns) == len(references.keys() & set(config.suite.tasks))
    return Member(number, config, lineage, int(frames), len(returns), score, complete)

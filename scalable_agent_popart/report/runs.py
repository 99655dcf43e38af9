"""Runs as a report compares them, finished or not: logs, tests and what made them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report import records
from scalable_agent_popart.report.ancestry import Segment
from scalable_agent_popart.report.populations import Population, read_population
from scalable_agent_popart.report.records import Evaluation, Metrics
from scalable_agent_popart.runs.directory import Change, RunDirectory


@dataclass(frozen=True)
class Run:
    """A run directory's content.

    Attributes:
      path: of the directory.
      config: the run's.
      episodes: task, frames (of the run, at its end) and episode_return (raw) of each episode of
        training, in the order of frames.
      metrics: what the learner measured.
      evaluations: all results of `--mode=test`.
      problems: what could not be read, a line each.
      population: what the run is the best of, or a member of. Frames are then those that the
        weights have learned from, in whatever member.
      history: the flags that the run was resumed with and that were others, oldest first.
      device: what the run was trained on; empty if that is not known.
    """

    path: Path
    config: Config
    episodes: pd.DataFrame
    metrics: Metrics
    evaluations: tuple[Evaluation, ...]
    problems: list[str] = field(default_factory=list)
    population: Population | None = None
    history: tuple[Change, ...] = ()
    device: str = ""

    @property
    def seed(self) -> int:
        """That all of the run's chance comes from."""
        return self.population.seed if self.population else self.config.seed

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
        logs = (self.episodes, self.metrics.statistics, self.metrics.course)
        reached += [int(table["frames"].max()) for table in logs if len(table)]
        return max(reached, default=0)


def read_run(path: str) -> Run:
    """Reads the directory of a run, of a population or of one of its members.

    A population is one run: the ancestry of its best member's weights, with frames counted as
    these have learned from them. So is a member, with its own ancestry.

    Raises:
      UserError: if it is not known what made it, or there is nothing to report in it.
    """
    problems: list[str] = []
    population = read_population(path, problems)
    if population is None:
        directory = RunDirectory(path)
        config = directory.read_config()
        if config is None:
            raise UserError("it holds no config.json, so no run")
        logs = _Logs.read(directory, config, problems)
    else:
        directory = population.directory(population.shown.number)
        config = population.config
        logs = _follow(population, problems)
    if not len(logs.episodes) and not len(logs.metrics.statistics) and not logs.evaluations:
        raise UserError("; ".join(["it has nothing to report yet", *problems]))
    return Run(
        Path(path),
        config,
        logs.episodes,
        logs.metrics,
        logs.evaluations,
        problems,
        population,
        directory.read_history(),
        directory.read_device(),
    )


@dataclass(frozen=True)
class _Logs:
    """What one directory, or several, have of a run; attributes as those of Run."""

    episodes: pd.DataFrame
    metrics: Metrics
    evaluations: tuple[Evaluation, ...]

    @classmethod
    def read(cls, directory: RunDirectory, config: Config, problems: list[str]) -> "_Logs":
        episodes = records.read_episodes(directory.episodes, config.suite.tasks, problems)
        metrics = records.read_metrics(directory.metrics, config, problems)
        evaluations = records.read_evaluations(directory, problems)
        if config.precision != "auto":
            others = {(e.frames, e.precision) for e in evaluations} - {
                (e.frames, own) for e in evaluations for own in (None, config.precision)
            }
            problems += [
                f"{directory.path}: its test at {frames:,} frames acted in {precision}, and it was "
                f"trained in {config.precision}"
                for frames, precision in sorted(others)
            ]
        return cls(episodes, metrics, evaluations)


def _follow(population: Population, problems: list[str]) -> _Logs:
    """What is of the ancestry's weights, with frames as these have learned from them."""
    segments = population.segments
    logs = {
        number: _Logs.read(population.directory(number), population.config, problems)
        for number in dict.fromkeys(segment.member for segment in segments)
    }
    evaluations = {
        number: _of_known_weights(population, number, own.evaluations, problems)
        for number, own in logs.items()
    }
    return _Logs(
        _join(segments, {number: own.episodes for number, own in logs.items()}),
        Metrics(
            *(
                _join(segments, {n: getattr(own.metrics, table.name) for n, own in logs.items()})
                for table in fields(Metrics)
            )
        ),
        tuple(
            replace(evaluation, frames=evaluation.frames + segment.offset)
            for segment in segments
            for evaluation in evaluations[segment.member]
            if segment.holds(np.array(evaluation.frames))
        ),
    )


def _join(segments: Sequence[Segment], tables: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """The rows that lie in the segments, from the tables of their members."""
    parts = []
    for segment in segments:
        table = tables[segment.member]
        own = table[segment.holds(table["frames"].to_numpy())]
        parts.append(own.assign(frames=own["frames"] + segment.offset))
    # Empty tables have no types that mean anything.
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def _of_known_weights(
    population: Population, number: int, evaluations: Sequence[Evaluation], problems: list[str]
) -> list[Evaluation]:
    """Those of a member's tests of which it is known what weights they are of.

    Where weights become others there are two checkpoints, from before that and after.
    """
    ends = {
        frames
        for segment in population.segments
        if segment.member == number
        for frames in (segment.first, segment.last)
    }
    doubtful = ends & {event.frames for event in population.members[number].replaced}
    for frames in sorted({test.frames for test in evaluations if test.frames in doubtful}):
        problems.append(
            f"{population.directory(number).path}: tests at {frames:,} frames skipped: its weights "
            "became others there, and the tests may be of those before or after"
        )
    return [test for test in evaluations if test.frames not in doubtful]

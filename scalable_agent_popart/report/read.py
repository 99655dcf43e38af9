"""Reads directories of runs and populations, finished or not; names what cannot be read."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import Event, MemberDirectory, PopulationDirectory
from scalable_agent_popart.population.lineage import Segment, trace
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import Record, RunDirectory, is_population
from scalable_agent_popart.runs.json_lines import DAMAGE, read_lines
from scalable_agent_popart.runs.run import Run as OpenedRun

_NOTHING = "it has nothing to report yet"
MAX_METRICS = 500  # Lines of metrics that are enough for a curve.
_NO_LOG = "from a line on it is no log of this run"


class Evaluation(NamedTuple):
    """One result of `--mode=test`."""

    starts: str  # `noop` or `human`.
    frames: int  # Environment frames the policy was trained for.
    returns: dict[str, np.ndarray]  # Raw, by level.


@dataclass(frozen=True)
class Member:
    """A member of a population that has begun to train."""

    number: int
    directory: MemberDirectory
    config: Config
    lineage: tuple[Event, ...]
    frames: int  # Those of its own run that it is known to have reached.
    num_tasks: int  # With a known score, of which it has finished an episode.
    # Mean capped human-normalised score of these tasks' latest training episodes, in percent.
    score: float | None
    complete: bool  # Whether these are all of the tasks with a known score.

    @property
    def name(self) -> str:
        return self.directory.path.name

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
    best: Member  # The highest score among those with episodes of the most tasks.
    segments: tuple[Segment, ...]  # The best one's ancestry, oldest first.

    def end(self, segment: Segment) -> int:
        """Returns the last known frame of a segment."""
        return self.members[segment.member].frames if segment.last is None else segment.last


@dataclass(frozen=True)
class Run:
    """The content of a run or a population, by the frames that its weights learned from."""

    path: Path
    record: Record  # Its `config.json`.
    logs: Mapping[str, pd.DataFrame]  # `episodes`, and the tables of `_read_metrics`.
    evaluations: Sequence[Evaluation]  # All results of `--mode=test`.
    problems: Sequence[str] = ()  # A line for each thing that could not be read.
    videos: Path | None = None  # Films of tests, a population's of its best member.
    population: Population | None = None
    from_file: bool = False  # Whether the run is of a file of scores, whose returns are means.

    @property
    def config(self) -> Config:
        return self.record.config

    @property
    def seed(self) -> int:
        """The seed that was given, from which members of a population have their own."""
        size = self.config.population_size if self.population else 0
        return self.config.seed // (size or 1)

    @property
    def mixed(self) -> list[str]:
        """Names changes of flags in turn; a longer run counts if its learning rate was annealed."""
        return [
            f"{name} {then} to {now} at {change.frames:,} frames"
            for change in self.record.history
            for name, (then, now) in change.changed.items()
            if name != "total_environment_frames" or self.config.learning_rate_schedule == "linear"
        ]

    @property
    def frames(self) -> int:
        """Environment frames the run is known to have reached."""
        reached = [evaluation.frames for evaluation in self.evaluations]
        reached += [int(table["frames"].max()) for table in self.logs.values() if len(table)]
        return max(reached, default=0)

    def budgeted(self, frames: int) -> int:
        """Returns how far a run was in its budget when its weights had learned from `frames`.

        Members of a population copy weights, and not the count of frames.
        """
        segments = self.population.segments if self.population else ()
        offsets = [s.offset for s in segments if s.first + s.offset < frames]
        return frames - offsets[-1] if offsets else frames

    def numbers(self, log: str, names: list[str]) -> pd.DataFrame:
        """Returns the rows of a log of metrics that have any of these numbers; others are NaN."""
        keys = ["frames", "task"] if log == "task_metrics" else ["frames"]
        table = self.logs[log].reindex(columns=[*keys, *names])
        table[names] = table[names].apply(pd.to_numeric, errors="coerce")
        return table.dropna(subset=names, how="all")

    def recent_means(self, task: str, frames: np.ndarray) -> np.ndarray:
        """Averages a task's latest episodes up to each of `frames`; NaN before the first."""
        episodes = self.logs["episodes"]
        episodes = episodes[episodes["task"] == task]
        window = 1 if self.from_file else scores.RECENT_EPISODES
        means = episodes["episode_return"].rolling(window, min_periods=1).mean()
        ends = np.searchsorted(episodes["frames"].to_numpy(), frames, side="right")
        return np.append(means, np.nan)[ends - 1]


def read_runs(paths: Iterable[str], every_record: bool = False) -> tuple[list[Run], list[str]]:
    """Reads the runs in some directories, each once, as `read_run`.

    Also returns a line for each run or file that cannot be read. Raises UserError of no run.
    """
    runs, problems = [], list[str]()
    for path in {os.path.realpath(path): path for path in paths}.values():
        try:
            runs.append(read_run(path, every_record))
            problems += runs[-1].problems
        except UserError as error:
            problems.append(f"{path} skipped: {error}")
    if not runs:
        raise UserError(f"there is no run to report on: {'; '.join(problems)}")
    return runs, problems


def read_run(path: str, every_record: bool = False) -> Run:
    """Reads the directory of a run, such as a population's member, or of a population.

    A population is one run: the ancestry of its best member's weights. Tests at the frames of a
    copy do not count, as they may be of the weights before it or after. Of metrics there are at
    most `MAX_METRICS` records, or every one.

    Raises UserError if it is not known what made it, or there is nothing to report in it.
    """
    problems: list[str] = []
    population = _read_population(path, problems)
    opened = OpenedRun.open(population.best.directory.path if population else path)
    record, tasks = opened.record, opened.config.suite.tasks
    at_most = None if every_record else MAX_METRICS
    segments = population.segments if population else (Segment(0, 0, None, 0),)
    logs, tests = {}, {}
    for number in dict.fromkeys(segment.member for segment in segments):
        source: RunDirectory = opened.directory
        copies = set[int]()  # A copy leaves two checkpoints of the same frames.
        if population:
            member = population.members[number]
            source = member.directory
            copies = {e.frames for e in member.lineage if e.copied or e.started_over}
        logs[number] = {"episodes": _read_episodes(source.episodes, tasks, problems)}
        logs[number] |= _read_metrics(source.metrics, tasks, problems, at_most)
        tests[number] = _read_evaluations(source, record, copies, problems)
    evaluations = [
        test._replace(frames=test.frames + segment.offset)
        for segment in segments
        for test in tests[segment.member]
        if segment.holds(np.array(test.frames))
    ]
    tables = {}
    for name in logs[segments[0].member]:
        parts = []
        for segment in segments:
            table = logs[segment.member][name]
            table = table[segment.holds(table["frames"].to_numpy())]
            parts.append(table.assign(frames=table["frames"] + segment.offset))
        tables[name] = join(parts)
    if not any(map(len, tables.values())) and not evaluations:
        raise UserError("; ".join([_NOTHING, *problems]))
    videos = opened.directory.videos
    return Run(Path(path), record, tables, evaluations, problems, videos, population)


def join(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Puts tables below each other; empty ones have no types that mean anything."""
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def _read_population(path: str, problems: list[str]) -> Population | None:
    """Reads the population in a directory, if it is that of one; a UserError if none began."""
    if not is_population(path):
        return None
    directory = PopulationDirectory(path)
    config = directory.read_config()
    members = {}
    for number in range(config.population_size if config else 0):
        try:
            if member := _read_member(number, directory.member(number)):
                members[number] = member
        except UserError as error:
            problems.append(f"{directory.member(number).path} skipped: {error}")
    if not members:
        raise UserError("; ".join([_NOTHING, *problems]))
    best = max(members.values(), key=lambda member: member.rank)
    lineages = {number: member.lineage for number, member in members.items()}
    segments, unknown = trace(lineages, best.number)
    if unknown:
        problems.append(
            f"{directory.path}: the ancestry of {best.name} is known from frame "
            f"{segments[0].first:,} of member {segments[0].member} on only: {unknown}"
        )
    return Population(directory.path, members, best, segments)


def _read_member(number: int, directory: MemberDirectory) -> Member | None:
    """Reads a member of a population; None if it has not begun."""
    run, lineage = OpenedRun.find(directory.path), tuple(directory.read_lineage())
    if run is None:
        return None
    config = run.config
    references, tasks = config.suite.reference_scores, config.suite.tasks
    episodes = _read_episodes(directory.episodes, tasks, [])
    recent = recent_returns(episodes)
    returns = {task: values for task, values in recent.items() if task in references}
    frames = max([0, *(event.frames for event in lineage), *episodes["frames"].tail(1)])
    aggregate = scores.aggregate_returns(returns, references)
    score = aggregate.mean_capped if aggregate else None
    complete = len(returns) == len(references.keys() & set(tasks))
    return Member(number, directory, config, lineage, int(frames), len(returns), score, complete)


def recent_returns(episodes: pd.DataFrame) -> dict[str, np.ndarray]:
    """Returns the returns of each task's latest episodes."""
    by_task = episodes.groupby("task", observed=True)["episode_return"]
    return {str(task): played.to_numpy()[-scores.RECENT_EPISODES :] for task, played in by_task}


def _read_episodes(path: Path, tasks: Sequence[str], problems: list[str]) -> pd.DataFrame:
    """Reads the log of episodes: frames are of the run, at their ends."""
    task_ids = {task: i for i, task in enumerate(tasks)}

    def rows() -> Iterator[tuple[int, int, float]]:
        with _skipping(path, problems, _NO_LOG):
            for line in read_lines(path):
                yield task_ids[line["task"]], int(line["frames"]), float(line["episode_return"])

    # A log may be long, so its rows are packed.
    kind = [("task", np.int32), ("frames", np.int64), ("episode_return", np.float64)]
    table = pd.DataFrame(np.fromiter(rows(), np.dtype(kind)))
    table["task"] = pd.Categorical.from_codes(table["task"], list(tasks))
    return table.sort_values("frames", kind="stable", ignore_index=True)


def _read_metrics(
    path: Path, tasks: Sequence[str], problems: list[str], at_most: int | None
) -> dict[str, pd.DataFrame]:
    """Reads a learner's log: `metrics` by record, and `task_metrics` by record and task.

    Both are sorted by frames. Numbers that were not recorded, or were not finite, are NaN.
    """
    records: list[dict[str, Any]] = []
    by_task: list[dict[str, Any]] = []
    with _skipping(path, problems, _NO_LOG):
        for line in read_lines(path, at_most=at_most):
            named = {name: each for name, each in line.items() if isinstance(each, dict)}
            record = {name: value for name, value in line.items() if name not in named}
            records.append({**record, "frames": int(line["frames"])})
            for task in tasks:
                values = {name: each.get(task) for name, each in named.items()}
                by_task.append({"frames": int(line["frames"]), "task": task, **values})
    metrics = pd.DataFrame(records, columns=None if records else ["frames"])
    task_metrics = pd.DataFrame(by_task, columns=None if records else ["frames", "task"])
    numbers = task_metrics.columns.difference(["frames", "task"], sort=False)
    task_metrics[numbers] = task_metrics[numbers].apply(pd.to_numeric, errors="coerce")
    return {
        name: table.sort_values("frames", kind="stable", ignore_index=True)
        for name, table in {"metrics": metrics, "task_metrics": task_metrics}.items()
    }


def _read_evaluations(
    directory: RunDirectory, made: Record, copies: Set[int], problems: list[str]
) -> list[Evaluation]:
    """Reads results of `--mode=test`, and names those in another than the run's precision.

    Those at the frames of `copies` are left out.
    """
    evaluations = []
    for path in sorted(directory.evaluations.glob("*.json")):
        with _skipping(path, problems, "it is no evaluation"):
            record = json.loads(path.read_bytes())
            starts, frames = str(record["starts"]), int(record["frames"])
            if frames in copies:
                reason = "a copy changed the weights at its frames, before or after this test"
                problems.append(f"{path} skipped: {reason}")
                continue
            levels = {**record["tasks"], **record.get("train", {"tasks": {}})["tasks"]}
            returns = {level: np.array(each["returns"], float) for level, each in levels.items()}
            evaluations.append(Evaluation(starts, frames, returns))
            trained = str(made.flag("precision", frames))
            acted = str(record.get("precision", trained))  # Older records have none.
            if acted != trained:
                what = f"its test at {frames:,} frames acted in {acted}"
                problems.append(f"{directory.path}: {what}, and it was trained in {trained}")
    return evaluations


@contextlib.contextmanager
def _skipping(path: Path, problems: list[str], why: str) -> Iterator[None]:
    """Ends a block that cannot read a file, and names the file among the problems."""
    try:
        yield
    except OSError as error:
        problems.append(f"{path} skipped: {error.strerror or error}")
    except DAMAGE as error:
        problems.append(f"{path} skipped: {why} ({type(error).__name__}: {error})")

"""Reads the files of run directories; what cannot be read is named and passed over."""

import errno
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from scalable_agent_popart.config import Config
from scalable_agent_popart.population.directory import Event
from scalable_agent_popart.runs.directory import DAMAGE, RunDirectory

# A task's score while training is the mean over its latest episodes, as in the run's own log.
RECENT_EPISODES = 100
# No frame count or return comes near; beyond it sums would lose their precision.
_LARGEST = 1e15
# Lines that are decoded in one go, and lines of metrics that are enough for a curve.
_CHUNK = 10_000
_MOST_METRICS = 500
# Bytes of a log that usually have enough episodes.
_TAIL = 2**20

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Evaluation:
    """One result of `--mode=test`."""

    starts: str
    frames: int  # Environment frames the policy was trained for.
    returns: dict[str, np.ndarray]  # Raw, by level.
    precision: str | None = None  # Of the convolutions, where that was noted.


def read_episodes(
    path: Path, tasks: Iterable[str], problems: list[str], tail: int | None = None
) -> pd.DataFrame:
    """Task, frames (of the run, at its end) and episode_return (raw) of each episode, by frames.

    Args:
      path: of the log.
      tasks: those that the run was trained on.
      problems: gets a line for each thing that could not be read.
      tail: how many bytes to read, from the log's end; None for all.
    """
    place = {task: i for i, task in enumerate(tasks)}

    def row(record: Any) -> tuple[int, float, float]:
        frames, episode_return = _count(record["frames"]), _number(record["episode_return"])
        return place[record["task"]], frames, episode_return

    rows = _convert_lines(_lines(path, problems, tail), row, path, problems)
    table = np.array(rows, np.float64).reshape(-1, 3)
    episodes = pd.DataFrame(
        {
            "task": pd.Categorical.from_codes(table[:, 0].astype(int), list(place)),
            "frames": table[:, 1].astype(np.int64),
            "episode_return": table[:, 2],
        }
    )
    return episodes.sort_values("frames", kind="stable", ignore_index=True)


def read_recent_episodes(path: Path, tasks: Collection[str]) -> pd.DataFrame:
    """As `read_episodes`, of at least the latest RECENT_EPISODES of each task, as far as there are.

    A whole log may have millions.
    """
    tail = _TAIL
    while True:
        episodes = read_episodes(path, tasks, [], tail)
        enough = episodes["task"].value_counts().min() >= RECENT_EPISODES
        if enough or not path.is_file() or tail >= path.stat().st_size:
            return episodes
        tail *= 8


@dataclass(frozen=True)
class Metrics:
    """What the learner measured, at so many points that they make a curve.

    Attributes:
      statistics: PopArt's frames, task, shift and scale; empty without it.
      gradients: frames, loss (see `LOSSES`), task and norm of gradients, where those were measured;
        NaN for a task that had no rollout in the batch.
      batches: frames, task and share of the rollouts that were learned from since the line before.
      course: frames, frames_per_second, memory_mib of the learner and its environments' processes,
        and entropy of the policy, the mean in nats over a batch; NaN where a record does not tell.
    """

    statistics: pd.DataFrame
    gradients: pd.DataFrame
    batches: pd.DataFrame
    course: pd.DataFrame


# What gradients are of, and how a record calls their norms.
LOSSES = {"policy": "policy_gradient_norm", "total": "total_gradient_norm"}
# Of the tables above, beside `frames`.
_COLUMNS = {
    "statistics": ("task", "shift", "scale"),
    "gradients": ("loss", "task", "norm"),
    "batches": ("task", "share"),
    "course": ("frames_per_second", "memory_mib", "entropy"),
}


def read_metrics(path: Path, config: Config, problems: list[str]) -> Metrics:
    """Reads a learner's log."""
    tasks = config.suite.tasks

    def rows(record: Any) -> dict[str, list[tuple]]:
        frames = _count(record["frames"])
        found: dict[str, list[tuple]] = {}
        if config.use_popart:
            shift, scale = record["shift"], record["scale"]
            found["statistics"] = [(frames, t, _number(shift[t]), _number(scale[t])) for t in tasks]
        found["gradients"] = [
            (frames, loss, t, _number(norms[t]) if t in norms else np.nan)
            for loss, name in LOSSES.items()
            if (norms := record.get(name))  # Not in the last line of a program.
            for t in tasks
        ]
        if "batch_share" in record:
            share = record["batch_share"]
            found["batches"] = [(frames, t, _number(share[t])) for t in tasks]
        if "frames_per_second" in record:
            found["course"] = [(frames, *_course(record, config))]
        return found

    lines = _lines(path, problems)
    chosen = np.unique(np.linspace(0, len(lines) - 1, min(_MOST_METRICS, len(lines))).astype(int))
    found = _convert_lines([lines[i] for i in chosen], rows, path, problems)

    def table(name: str) -> pd.DataFrame:
        every = [row for record in found for row in record.get(name, [])]
        whole = pd.DataFrame(every, columns=["frames", *_COLUMNS[name]])
        return whole.sort_values("frames", kind="stable", ignore_index=True)

    return Metrics(**{name: table(name) for name in _COLUMNS})


def _course(record: Any, config: Config) -> tuple[float, float, float]:
    """A record's speed, memory and entropy."""
    memory, entropy = np.nan, np.nan
    if "memory_mib" in record:
        memory = _number(record["memory_mib"])
    if cost := record.get("entropy_cost"):
        summed = -_number(record["entropy_loss"]) / cost  # Over a batch's steps.
        entropy = summed / (config.unroll_length * config.batch_size)
    return _number(record["frames_per_second"]), memory, entropy


def read_evaluations(directory: RunDirectory, problems: list[str]) -> tuple[Evaluation, ...]:
    """All results of `--mode=test`."""
    found = []
    for path in [*sorted(directory.evaluations.glob("*.json")), directory.evaluation]:
        try:
            record = json.loads(_content(path))
            tasks = {**record["tasks"], **record.get("train", {"tasks": {}})["tasks"]}
            returns = {
                str(level): np.array([_number(value) for value in result["returns"]])
                for level, result in tasks.items()
            }
            if not returns or not all(map(len, returns.values())):
                raise ValueError("levels without returns")
            found.append(
                Evaluation(
                    str(record["starts"]),
                    _count(record["frames"]),
                    returns,
                    record.get("precision"),
                )
            )
        except FileNotFoundError:
            continue  # Not every run is tested.
        except (OSError, *DAMAGE) as error:
            problems.append(f"{path} skipped: no evaluation ({_say(error)})")
    return tuple(found)


def read_lineage(path: Path, problems: list[str]) -> list[Event]:
    """The events of a member of a population, in the order of its `lineage.jsonl`."""
    return _convert_lines(_lines(path, problems), _event, path, problems)


def _event(record: Any) -> Event:
    copied, started_over = record["copied"], record.get("started_over", False)
    if not isinstance(copied, bool) or not isinstance(started_over, bool):
        raise ValueError(f"neither true nor false: {copied}, {started_over}")
    return Event(
        comparison=_count(record["comparison"]),
        frames=_count(record["frames"]),
        fitness=_if_given(_number, record["fitness"]),
        partner=_if_given(_count, record["partner"]),
        partner_fitness=_if_given(_number, record["partner_fitness"]),
        copied=copied,
        source_frames=_if_given(_count, record["source_frames"]),
        hyperparameters={
            str(name): _number(value) for name, value in record["hyperparameters"].items()
        },
        started_over=started_over,
    )


def _if_given(convert: Callable[[Any], _Row], value: Any) -> _Row | None:
    return None if value is None else convert(value)


def _lines(path: Path, problems: list[str], tail: int | None = None) -> list[bytes]:
    """The whole lines of a log, or of so many bytes at its end; none if it cannot be read."""
    try:
        *lines, rest = _content(path, tail).split(b"\n")
    except OSError as error:
        problems.append(f"{path} skipped: {error.strerror or error}")
        return []
    if rest:
        problems.append(f"{path}: its last line is cut off (or still being written) and left out")
    return lines


def _convert_lines(
    lines: Sequence[bytes], convert: Callable[[Any], _Row], path: Path, problems: list[str]
) -> list[_Row]:
    """What `convert` makes of each line's record, without the lines that it fails on."""
    rows: list[_Row] = []
    damaged = 0
    for start in range(0, len(lines), _CHUNK):
        chunk = lines[start : start + _CHUNK]
        try:  # All at once is several times faster.
            records = json.loads(b"[" + b",".join(chunk) + b"]")
            if len(records) != len(chunk):
                raise ValueError
            rows += [convert(record) for record in records]
        except DAMAGE:
            for line in chunk:
                try:
                    rows.append(convert(json.loads(line)))
                except DAMAGE:
                    damaged += 1
    if damaged:
        problems.append(
            f"{path}: {damaged:,} of {len(lines):,} lines read skipped, not of this run's log"
        )
    return rows


def _content(path: Path, tail: int | None = None) -> bytes:
    """Of a file, not of whatever else may go by its name; from a line's beginning on."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no file")
    with open(path, "rb") as file:
        start = max(0, path.stat().st_size - tail) if tail else 0
        if start:
            file.seek(start - 1)
            file.readline()
        return file.read()


def _number(value: Any) -> float:
    """The number if it is one, and of a size that can be."""
    number = float(value)
    if not abs(number) < _LARGEST:  # NaN is not, either.
        raise ValueError(f"{value} is no number that can be")
    return number


def _count(value: Any) -> int:
    number = _number(value)
    if number < 0:
        raise ValueError(f"{value} is no count")
    return int(number)


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

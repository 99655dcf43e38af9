"""Reads the files of run directories into tables; what cannot be read is named and passed over."""

import errno
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from scalable_agent_popart.config import Config
from scalable_agent_popart.population.directory import Event
from scalable_agent_popart.runs.directory import DAMAGE, RunDirectory

# A task's score while training is the mean over its latest episodes, as in the run's own log.
RECENT_EPISODES = 100
# The columns, beside `frames`, of the tables that `read_metrics` makes.
METRICS = {
    "statistics": ("task", "shift", "scale"),
    "gradients": ("loss", "task", "norm"),
    "batches": ("task", "share"),
    "progress": ("frames_per_second", "memory_mib", "entropy"),
}
# The loss that gradients are of, and the name that a record has for their norms.
LOSSES = {"policy": "policy_gradient_norm", "total": "total_gradient_norm"}
# No frame count or return comes near; beyond it sums would lose their precision.
_MAX_NUMBER = 1e15
_MAX_METRICS = 500  # Lines of metrics that are enough for a curve.
_TAIL = 2**20  # Bytes at the end of a log that usually have enough episodes.

_Row = TypeVar("_Row")


class Evaluation(NamedTuple):
    """One result of `--mode=test`."""

    starts: str  # `noop` or `human`.
    frames: int  # Environment frames the policy was trained for.
    returns: dict[str, np.ndarray]  # Raw, by level.
    precision: str | None  # Of the convolutions, where that was recorded.


def read_episodes(
    path: Path, tasks: Collection[str], problems: list[str], tail: int | None = None
) -> pd.DataFrame:
    """Reads the task, frames (of the run, at its end) and raw episode_return of each episode.

    Of a long log only the last `tail` bytes may be read. `problems` gets a line for each thing
    that could not be. The rows are sorted by frames.
    """
    task_ids = {task: i for i, task in enumerate(tasks)}

    def row(record: Any) -> tuple[int, float, float]:
        frames, episode_return = _count(record["frames"]), _number(record["episode_return"])
        return task_ids[record["task"]], frames, episode_return

    rows = _read_lines(path, row, problems, tail=tail)
    task, frames, episode_return = np.array(rows, np.float64).reshape(-1, 3).T
    task = pd.Categorical.from_codes(task.astype(int), list(tasks))
    columns = {"task": task, "frames": frames.astype(np.int64), "episode_return": episode_return}
    return pd.DataFrame(columns).sort_values("frames", kind="stable", ignore_index=True)


def read_recent_episodes(path: Path, tasks: Collection[str]) -> pd.DataFrame:
    """Reads the latest RECENT_EPISODES of each task at least, without all of a log of millions."""
    size = path.stat().st_size if path.is_file() else 0
    tail = _TAIL
    while True:
        episodes = read_episodes(path, tasks, [], tail)
        if tail >= size or episodes["task"].value_counts().min() >= RECENT_EPISODES:
            return episodes
        tail *= 8


def read_metrics(path: Path, config: Config, problems: list[str]) -> dict[str, pd.DataFrame]:
    """Reads a learner's log, at so many points that they make a curve.

    Returns:
      Tables by name, with the columns METRICS and `frames`, sorted by these: `statistics` (PopArt's
      shift and scale; empty without it), `gradients` (where their norms were measured; NaN for a
      task without a rollout in the batch), `batches` (each task's share of the rollouts since the
      line before) and `progress` (speed, memory of the learner with its environments' processes,
      and mean entropy of the policy in nats; NaN where a record does not tell).
    """
    tasks = config.suite.tasks

    def rows(record: Any) -> dict[str, list[tuple]]:
        frames = _count(record["frames"])

        def by_task(*names: str) -> list[tuple]:
            return [(frames, task, *(_number(record[n][task]) for n in names)) for task in tasks]

        found: dict[str, list[tuple]] = {
            "statistics": by_task("shift", "scale") if config.use_popart else [],
            "batches": by_task("batch_share") if "batch_share" in record else [],
        }
        found["gradients"] = [
            (frames, loss, task, _number(norms[task]) if task in norms else np.nan)
            for loss, name in LOSSES.items()
            if (norms := record.get(name))  # Not in the last line of a program.
            for task in tasks
        ]
        if "frames_per_second" in record:
            speed, entropy = _number(record["frames_per_second"]), np.nan
            memory = _number(record["memory_mib"]) if "memory_mib" in record else np.nan
            if cost := record.get("entropy_cost"):  # The loss is a sum over a batch's steps.
                steps = config.unroll_length * config.batch_size
                entropy = -_number(record["entropy_loss"]) / cost / steps
            found["progress"] = [(frames, speed, memory, entropy)]
        return found

    found = _read_lines(path, rows, problems, at_most=_MAX_METRICS)
    tables = {}
    for name, columns in METRICS.items():
        every = [row for record in found for row in record.get(name, [])]
        table = pd.DataFrame(every, columns=["frames", *columns])
        tables[name] = table.sort_values("frames", kind="stable", ignore_index=True)
    return tables


def read_evaluations(directory: RunDirectory, problems: list[str]) -> tuple[Evaluation, ...]:
    """Reads all results of `--mode=test`."""
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
            starts, frames = str(record["starts"]), _count(record["frames"])
            found.append(Evaluation(starts, frames, returns, record.get("precision")))
        except FileNotFoundError:
            continue  # Not every run is tested.
        except (OSError, *DAMAGE) as error:
            problems.append(f"{path} skipped: no evaluation ({type(error).__name__}: {error})")
    return tuple(found)


def read_lineage(path: Path, problems: list[str]) -> tuple[Event, ...]:
    """Reads the events of a population's member, without comparisons that were made again later."""

    converters: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(("fitness", "partner_fitness"), _number),
        **dict.fromkeys(("partner", "source_frames"), _count),
    }

    def event(record: Any) -> Event:
        found = Event(**record)
        if not isinstance(found.copied, bool) or not isinstance(found.started_over, bool):
            raise ValueError(f"neither true nor false: {found.copied}, {found.started_over}")
        optional: dict[str, Any] = {
            name: convert(value)
            for name, convert in converters.items()
            if (value := record[name]) is not None
        }
        return found._replace(
            comparison=_count(found.comparison),
            frames=_count(found.frames),
            hyperparameters={str(n): _number(v) for n, v in found.hyperparameters.items()},
            **optional,
        )

    kept: list[Event] = []
    for own in _read_lines(path, event, problems):
        while kept and kept[-1].comparison >= own.comparison:
            kept.pop()
        kept.append(own)
    return tuple(kept)


def _read_lines(
    path: Path,
    convert: Callable[[Any], _Row],
    problems: list[str],
    tail: int | None = None,
    at_most: int | None = None,
) -> list[_Row]:
    """Converts the records of a log's whole lines; those that `convert` fails on are counted.

    Only lines in the last `tail` bytes are read, and `at_most` so many of them, evenly spread.
    """
    try:
        *lines, rest = _content(path, tail).decode(errors="surrogateescape").split("\n")
    except OSError as error:
        problems.append(f"{path} skipped: {error.strerror or error}")
        return []
    if rest:
        problems.append(f"{path}: its last line is cut off (or still being written) and left out")
    if at_most and len(lines) > at_most:
        lines = [lines[i] for i in np.linspace(0, len(lines) - 1, at_most).astype(int)]
    rows: list[_Row] = []
    for line in lines:
        try:
            rows.append(convert(json.loads(line)))
        except DAMAGE:
            continue
    if damaged := len(lines) - len(rows):
        problems.append(
            f"{path}: {damaged:,} of {len(lines):,} lines read skipped, not of this run's log"
        )
    return rows


def _content(path: Path, tail: int | None = None) -> bytes:
    """Reads a file, or from the beginning of a line within so many bytes at its end.

    Raises:
      OSError: if it cannot be read, or is a directory or a pipe, which might block.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no file")
    with open(path, "rb") as file:
        start = max(0, path.stat().st_size - tail) if tail else 0
        if start:
            file.seek(start - 1)
            file.readline()
        return file.read()


def _number(value: Any, lowest: float = -_MAX_NUMBER) -> float:
    number = float(value)
    if not lowest <= number < _MAX_NUMBER:  # NaN is not, either.
        raise ValueError(f"{value} is no number that can be")
    return number


def _count(value: Any) -> int:
    return int(_number(value, 0))

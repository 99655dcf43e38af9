"""Reads what runs left behind, finished or not; what cannot be read is named and passed over."""

import errno
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.run_directory import RunDirectory

# How data that is not what it should be shows.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
# No frame count or return comes near; beyond it sums would lose their precision.
_LARGEST = 1e15
# Lines that are decoded in one go, and lines of metrics that are enough for a curve.
_CHUNK = 10_000
_MOST_METRICS = 500

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Evaluation:
    """One result of `--mode=test`."""

    starts: str
    frames: int  # Environment frames the policy was trained for.
    returns: dict[str, np.ndarray]  # Raw, by level.


@dataclass(frozen=True)
class Run:
    """A run directory's content.

    Attributes:
      path: of the directory.
      config: the run's.
      episodes: task, frames (of the run, at its end) and episode_return (raw) of each episode of
        training, in the order of frames.
      statistics: frames, task, shift and scale of PopArt; empty without it.
      evaluations: all results of `--mode=test`.
      problems: what could not be read, a line each.
    """

    path: Path
    config: Config
    episodes: pd.DataFrame
    statistics: pd.DataFrame
    evaluations: tuple[Evaluation, ...]
    problems: list[str] = field(default_factory=list)

    @property
    def frames(self) -> int:
        """Environment frames the run is known to have reached."""
        reached = [evaluation.frames for evaluation in self.evaluations]
        reached += [
            int(table["frames"].max()) for table in (self.episodes, self.statistics) if len(table)
        ]
        return max(reached, default=0)


def read_run(path: str) -> Run:
    """Reads a run directory.

    Raises:
      UserError: if it is not known what made it, or there is nothing to report in it.
    """
    directory = RunDirectory(path)
    config = directory.read_config()
    if config is None:
        raise UserError(f"{path} holds no config.json, so no run")
    problems: list[str] = []
    run = Run(
        directory.path,
        config,
        _read_episodes(directory.episodes, config.suite.tasks, problems),
        _read_statistics(directory.metrics, config, problems),
        _read_evaluations(directory, problems),
        problems,
    )
    if not len(run.episodes) and not len(run.statistics) and not run.evaluations:
        raise UserError(f"{path} has nothing to report yet: {'; '.join(problems)}")
    return run


def _read_episodes(path: Path, tasks: Iterable[str], problems: list[str]) -> pd.DataFrame:
    place = {task: i for i, task in enumerate(tasks)}

    def row(record: Any) -> tuple[int, float, float]:
        frames, episode_return = _count(record["frames"]), _number(record["episode_return"])
        return place[record["task"]], frames, episode_return

    rows = _convert_lines(_lines(path, problems), row, path, problems)
    table = np.array(rows, np.float64).reshape(-1, 3)
    episodes = pd.DataFrame(
        {
            "task": pd.Categorical.from_codes(table[:, 0].astype(int), list(place)),
            "frames": table[:, 1].astype(np.int64),
            "episode_return": table[:, 2],
        }
    )
    return episodes.sort_values("frames", kind="stable", ignore_index=True)


def _read_statistics(path: Path, config: Config, problems: list[str]) -> pd.DataFrame:
    columns = ["frames", "task", "shift", "scale"]
    tasks = config.suite.tasks

    def rows(record: Any) -> list[tuple[int, str, float, float]]:
        frames, shift, scale = _count(record["frames"]), record["shift"], record["scale"]
        return [(frames, task, _number(shift[task]), _number(scale[task])) for task in tasks]

    if not config.use_popart:
        return pd.DataFrame(columns=columns)
    lines = _lines(path, problems)
    chosen = np.unique(np.linspace(0, len(lines) - 1, min(_MOST_METRICS, len(lines))).astype(int))
    found = _convert_lines([lines[i] for i in chosen], rows, path, problems)
    table = pd.DataFrame([row for line in found for row in line], columns=columns)
    return table.sort_values("frames", kind="stable", ignore_index=True)


def _read_evaluations(directory: RunDirectory, problems: list[str]) -> tuple[Evaluation, ...]:
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
            found.append(Evaluation(str(record["starts"]), _count(record["frames"]), returns))
        except FileNotFoundError:
            continue  # Not every run is tested.
        except (OSError, *_DAMAGE) as error:
            problems.append(f"{path} skipped: no evaluation ({_say(error)})")
    return tuple(found)


def _lines(path: Path, problems: list[str]) -> list[bytes]:
    """The whole lines of a log; none if it cannot be read."""
    try:
        *lines, rest = _content(path).split(b"\n")
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
        except _DAMAGE:
            for line in chunk:
                try:
                    rows.append(convert(json.loads(line)))
                except _DAMAGE:
                    damaged += 1
    if damaged:
        problems.append(
            f"{path}: {damaged:,} of {len(lines):,} lines read skipped, not of this run's log"
        )
    return rows


def _content(path: Path) -> bytes:
    """Of a file, not of whatever else may go by its name."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no file")
    return path.read_bytes()


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

"""Logs of one JSON record per line, and what a number in a run's files may be.

Logs outgrow memory, so they are read line by line. Crashes and people damage single lines, which
are counted and left out.
"""

import json
import math
import mmap
import os
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

import numpy as np

# Reading a file of unexpected content raises one of these.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
_MAX_COUNT = 1e15  # No count of frames comes near.

_Row = TypeVar("_Row")


def to_json(record: Any, indent: int | None = None) -> str:
    """Writes a record as JSON, in which NaN and infinities become null."""
    text = json.dumps(record, default=_of_a_library)
    return json.dumps(json.loads(text, parse_constant=lambda _: None), indent=indent)


def _of_a_library(value: Any) -> Any:
    """Returns a number of NumPy, such as suites from outside may have, or a mapping as Python's."""
    return value.item() if isinstance(value, np.generic) else dict(value)


def open_to_append(path: Path, most: int = sys.maxsize) -> IO[str]:
    """Cuts a log back to `most` bytes, and to whole lines, and opens it to write more."""
    path.touch()
    with open(path, "rb+") as file:
        if end := min(most, size := file.seek(0, os.SEEK_END)):
            # Some file systems share no map that can be written.
            with mmap.mmap(file.fileno(), end, mmap.MAP_PRIVATE, mmap.PROT_READ) as content:
                end = content.rfind(b"\n") + 1
        if end < size:
            file.truncate(end)
    return open(path, "a", encoding="utf-8")


def to_number(value: Any) -> float:
    """Returns a finite number that was read from a file; raises one of DAMAGE if it is none."""
    # `isinstance` would accept true and false, because Python's bool is a kind of int.
    if type(value) not in (float, int) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def to_count(value: Any) -> int:
    """Returns a count that was read from a file; raises one of DAMAGE if it cannot be one."""
    found = int(value) if type(value) is float else value
    if type(found) is not int or not 0 <= found < _MAX_COUNT:
        raise ValueError(f"{value!r} is no count")
    return found


def to_episode(record: Any, tasks: Collection[str]) -> tuple[str, float, int]:
    """Returns the task, raw return and run's frames of an episode; raises one of DAMAGE."""
    if (task := record["task"]) not in tasks:
        raise ValueError(f"unknown task {task!r}")
    return task, to_number(record["episode_return"]), to_count(record["frames"])


def spread(file: BinaryIO, at_most: int) -> set[int]:
    """Returns the numbers of so many of a log's whole lines, spread from the first to the last."""
    whole = sum(line.endswith(b"\n") for line in file)
    return {*np.linspace(0, whole - 1, min(at_most, whole)).astype(int).tolist()}


def read_lines(
    path: Path,
    convert: Callable[[Any], _Row],
    problems: list[str],
    tail: int | None = None,
    at_most: int | None = None,
) -> Iterator[_Row]:
    """Yields what `convert` makes of each record of a log; raises OSError if it cannot be read.

    `tail` takes only lines that begin within so many bytes at the end. `at_most` takes so many
    lines, spread from the first to the last. If `convert` raises one of DAMAGE, the line is left
    out. In the end `problems` gets a line that counts these, and one if the log ends within a line.
    """
    num_lines = num_damaged = 0
    with open(path, "rb") as file:
        chosen = spread(file, at_most) if at_most else None
        begin = max(0, file.seek(0, os.SEEK_END) - tail) if tail else 0
        file.seek(max(0, begin - 1))
        if begin:
            file.readline()
        for i, line in enumerate(file):
            if not line.endswith(b"\n"):
                told = "its last line is cut off (or still being written) and left out"
                problems.append(f"{path}: {told}")
                break  # What is written meanwhile is no line of its own.
            if chosen is None or i in chosen:
                num_lines += 1
                try:
                    row = convert(json.loads(line.decode(errors="surrogateescape")))
                except DAMAGE:
                    num_damaged += 1
                else:
                    yield row
    if num_damaged:
        told = f"{num_damaged:,} of {num_lines:,} lines read skipped, not of this run's log"
        problems.append(f"{path}: {told}")

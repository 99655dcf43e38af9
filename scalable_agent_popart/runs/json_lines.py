"""Logs of one JSON record per line, and what a number in a run's files may be.

Logs outgrow memory, so they are read line by line. Crashes and people damage single lines, which
are counted and left out.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

# Reading a file of unexpected content raises one of these.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
_MAX_COUNT = 1e15  # No count of frames comes near.
_WHOLE = 2**24  # Bytes up to which a log is read as a whole to choose lines of it.
_BLOCK = 2**16  # Bytes that are searched at once for the end of a line.

_Row = TypeVar("_Row")


def to_json(record: Any, indent: int | None = None) -> str:
    """Writes a record as JSON, in which NaN and infinities become null."""
    return json.dumps(_finite(record), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, np.generic):  # Suites from outside may have numbers of NumPy.
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return value


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
        size = file.seek(0, os.SEEK_END)
        end = end_of_lines(file, size)
        if end < size:
            told = "its last line is cut off (or still being written) and left out"
            problems.append(f"{path}: {told}")
        begin = max(0, size - tail) if tail else 0
        for line in _spread(file, end, at_most) if at_most else _lines(file, begin, end):
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


def end_of_lines(file: BinaryIO, limit: int) -> int:
    """Returns where the last whole line in a file's first `limit` bytes ends; reads from there."""
    end = min(limit, file.seek(0, os.SEEK_END))
    while end > 0:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _lines(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    """Yields the lines that begin from one position on and before another."""
    file.seek(max(0, begin - 1))
    if begin:
        file.readline()
    position = file.tell()
    while position < end and (line := file.readline()):
        position += len(line)
        yield line


def _spread(file: BinaryIO, end: int, at_most: int) -> Iterator[bytes]:
    """Yields so many lines up to `end`, or all, at equal distances (in bytes if it is large)."""
    if end <= _WHOLE:
        lines = list(_lines(file, 0, end))
        few = min(at_most, len(lines))
        yield from (lines[i] for i in np.linspace(0, len(lines) - 1, few).astype(int))
        return
    position = 0
    for begin in np.linspace(0, end_of_lines(file, end - 1), at_most).astype(int):
        line = next(_lines(file, int(begin), end), b"")  # The file may have been cut off meanwhile.
        # Several positions may lie within one long line, which is read only once.
        if line and file.tell() - len(line) >= position:
            position = file.tell()
            yield line

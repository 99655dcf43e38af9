"""Logs of one JSON record per line, of which a crash may cut off the last."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

# Reading a file of unexpected content raises one of these.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


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
        end = min(most, file.seek(0, os.SEEK_END))
        while end:
            file.seek(end - 1)
            if file.read(1) == b"\n":
                break
            end -= 1
        file.truncate(end)
    return open(path, "a", encoding="utf-8")


def read_lines(path: Path, tail: int | None = None, at_most: int | None = None) -> Iterator[Any]:
    """Yields the records of a log's whole lines; raises OSError, or one of DAMAGE.

    `tail` takes only lines that begin within so many bytes at the end. `at_most` takes so many
    lines, spread from the first to the last.
    """
    with open(path, "rb") as file:
        chosen = spread(file, at_most) if at_most else None
        begin = max(0, file.seek(0, os.SEEK_END) - tail) if tail else 0
        file.seek(max(0, begin - 1))
        if begin:
            file.readline()
        for i, line in enumerate(file):
            if not line.endswith(b"\n"):
                break  # What is written meanwhile is the rest of this line.
            if chosen is None or i in chosen:
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {i + 1} is no JSON: {error}") from error
                yield record


def spread(file: BinaryIO, at_most: int) -> set[int]:
    """Returns the numbers of so many of a log's whole lines, spread from the first to the last."""
    whole = sum(line.endswith(b"\n") for line in file)
    return {*np.linspace(0, whole - 1, min(at_most, whole)).astype(int).tolist()}

"""Logs of one JSON record per line, of which a crash may cut off the last."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from scalable_agent_popart.system import supervisor

# Reading a file of unexpected content raises one of these.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
_MAX_LINE_BYTES = 2**18  # The end of a log that is sure to hold its last line, of 1,000 tasks.


def to_json(record: Any, indent: int | None = None) -> str:
    """Writes a record as JSON, in which NaN and infinities become null."""
    # Suites from outside may have numbers of NumPy, and mappings that are no dictionaries.
    text = json.dumps(record, default=lambda x: x.item() if isinstance(x, np.generic) else dict(x))
    return json.dumps(json.loads(text, parse_constant=lambda _: None), indent=indent)


def open_to_append(path: Path, most: int = sys.maxsize) -> IO[str]:
    """Cuts a log back to `most` bytes, and to whole lines, and opens it to write more."""
    with open(path, "ab+") as file:
        end = min(most, file.tell())
        while end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            end -= 1
        file.truncate(end)
    return open(path, "a", encoding="utf-8")


def append(path: Path, record: Any) -> None:
    """Adds a record to a log that no other process writes to at the same time."""
    with open_to_append(path) as file:
        file.write(to_json(record) + "\n")


def read_lines(path: Path, at_most: int | None = None) -> Iterator[Any]:
    """Yields the records of a log's whole lines; raises OSError, or one of DAMAGE.

    `at_most` takes so many lines, spread from the first to the last.
    """
    with open(path, "rb") as file:
        if at_most:
            whole = sum(line.endswith(b"\n") for line in file)
            chosen = {*np.linspace(0, whole - 1, min(at_most, whole)).astype(int).tolist()}
            file.seek(0)
        for i, line in enumerate(file):
            if not line.endswith(b"\n"):
                break  # What is written meanwhile is the rest of this line.
            if not at_most or i in chosen:
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {i + 1} is no JSON: {error}") from error
                yield record


def last_frames(path: Path) -> int:
    """Returns the frames that a log's last whole line names; 0 if there is none."""
    lines = supervisor.tail(path, _MAX_LINE_BYTES).split("\n")[:-1]
    return int(json.loads(lines[-1])["frames"]) if lines else 0

"""Finds the runs that a user names, among the folders and patterns that stand for several."""

import glob
import os
from collections.abc import Iterable, Iterator

from scalable_agent_popart.runs.directory import POPULATION_FILE


def find_runs(names: Iterable[str]) -> Iterator[str]:
    """Yields directories of runs and populations for their names, folders of them, and patterns.

    A path that exists is taken literally, whatever characters it has. A name for which there is no
    run is yielded as it is, for the reader to complain about.
    """
    for name in names:
        paths = [name] if os.path.exists(name) else sorted(glob.glob(name))
        yield from [run for path in paths for run in _runs_at(path)] or [name]


def _runs_at(path: str) -> list[str]:
    """Returns the path if it is a run's or a population's, and otherwise those directly in it."""
    if _is_run(path):
        return [path]
    return sorted(filter(_is_run, glob.glob(os.path.join(glob.escape(path), "*"))))


def _is_run(path: str) -> bool:
    files = ("config.json", POPULATION_FILE)
    return any(os.path.exists(os.path.join(path, file)) for file in files)

"""Tables of what runs recorded, in long form, for a user's own figures and statistics."""

import os
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.report.compare import Comparison, compare
from scalable_agent_popart.report.curves import tabulate_returns
from scalable_agent_popart.report.read import Run, join, read_runs
from scalable_agent_popart.runs.directory import find_runs
from scalable_agent_popart.scores import ReferenceScore

_SHARED = ("run", "agent", "seed", "frames")
_UNKNOWN = ReferenceScore(np.nan, np.nan)


class RunTables(NamedTuple):
    """Tables of the records of runs: pandas DataFrames in long form.

    Each table begins with the columns `run` (its directory), `agent` (its name in reports), `seed`
    and `frames` (environment frames). Other columns are named as in the files.
    """

    metrics: pd.DataFrame  # A row per record.
    task_metrics: pd.DataFrame  # A row per record and task, such as `scale` with PopArt.
    episodes: pd.DataFrame  # A row per finished episode.
    # A row per task and point of a learning curve, or per level and test. `return` is raw, and
    # `score` normalised (percent). `source` is `training` or `test`.
    scores: pd.DataFrame


def read(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> RunTables:
    """Reads runs, and warns of each file that cannot be read; `scalable_agent_popart.read_runs`."""
    names = [paths] if isinstance(paths, str | os.PathLike) else paths
    directories = find_runs(os.path.expanduser(os.fspath(name)) for name in names)
    runs, problems = read_runs(directories, every_record=True)
    for problem in problems:
        warnings.warn(problem, stacklevel=3)
    comparisons, _ = compare(runs, None)
    logs = ("metrics", "task_metrics", "episodes")
    tables = {name: [_log(each, name) for each in comparisons] for name in logs}
    tables["scores"] = [_scores(each) for each in comparisons]
    return RunTables(**{name: _joined(parts) for name, parts in tables.items()})


def _log(comparison: Comparison, name: str) -> pd.DataFrame:
    return comparison.tabulate(lambda run: run.logs[name], every_run=True)


def _scores(comparison: Comparison) -> pd.DataFrame:
    """Makes the rows of learning curves and of tests, with scores of the levels that have them."""
    suite = comparison.suite

    def tests(run: Run) -> pd.DataFrame:
        rows = [
            (test.frames, level, test.starts, len(returns), np.mean(returns))
            for test in run.evaluations
            for level, returns in test.returns.items()
        ]
        return pd.DataFrame(rows, columns=["frames", "task", "starts", "episodes", "return"])

    training = tabulate_returns(comparison, suite.tasks)
    training = training.assign(source="training", starts="noop", episodes=np.nan)
    tested = comparison.tabulate(tests, every_run=True).assign(source="test")
    table = join([training, tested])

    references = {starts: suite.references(starts) for starts in table["starts"].unique()}
    levels = zip(table["return"], table["starts"], table["task"], strict=True)
    return table.assign(
        score=[
            scores.normalise(value, references[starts].get(level, _UNKNOWN))
            for value, starts, level in levels
        ]
    )


def _joined(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Joins tables of comparisons, with the columns that all tables share first."""
    table = pd.concat(tables)
    rest = [name for name in table if name not in (*_SHARED, "reward_clipping")]
    return table[[*_SHARED, *rest]].reset_index(drop=True)

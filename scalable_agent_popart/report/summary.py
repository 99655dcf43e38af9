"""Sums a comparison up in one table of all its numbers: of agents, between agents, and of runs."""

from collections.abc import Mapping, Sequence

import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.report import (
    curves,
    differences,
    gradients,
    populations,
    progress,
    statistics,
)
from scalable_agent_popart.report.compare import Comparison
from scalable_agent_popart.report.final_scores import FinalScores

# The columns of the table of all numbers. `docs/formats.md` says what they mean.
COLUMNS = (
    "kind", "measure", "protocol", "task", "agent", "versus", "run", "seed", "runs", "source",
    "remark", "episodes", "fewest_frames", "most_frames", "value", "low", "high", "lowest",
    "highest", "median", "rerun_low", "rerun_high", "effect", "p",
)  # fmt: skip
_COUNTS = ("seed", "runs", "episodes", "fewest_frames", "most_frames")
_KEYS = ["measure", "protocol", "task", "agent"]


def recorded(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Makes the tables of learning curves, of populations' members and of each kind of metrics.

    Runs that lag far behind are left out of the metrics.
    """
    return {
        "learning_curves": curves.tabulate_scores(comparison),
        "progress": progress.tabulate(comparison),
        "batches": progress.tabulate_batches(comparison),
        "statistics": statistics.tabulate(comparison),
        "gradients": gradients.tabulate(comparison),
        "members": populations.members(comparison),
    }


def summarise(finals: Sequence[FinalScores], tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Makes a row for each number: agents' over their runs, differences, and each run's.

    The first of `finals` is of the tasks as they are trained on; `tables` are those of `recorded`.
    """
    parts = [final.by_run() for final in finals]
    parts += [
        curves.means_over_training(tables["learning_curves"], parts[0]),
        progress.summarise(tables["progress"]),
        progress.summarise_batches(tables["batches"]),
        statistics.summarise(tables["statistics"]),
        gradients.summarise(tables["gradients"]),
        tables["members"],
    ]
    by_run = _table(parts)
    kinds = {
        "agent": [_over_runs(by_run)],
        "measured": [final.measured() for final in finals],
        "published": [final.published() for final in finals],
        "difference": [differences.summarise(by_run)],
        "run": [by_run],
    }
    return _table([part.assign(kind=kind) for kind in kinds for part in kinds[kind]])


def _table(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Puts parts with any of the columns below each other."""
    whole = [part.reindex(columns=COLUMNS).astype(object) for part in parts if len(part)]
    table = pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=COLUMNS)
    numbers = COLUMNS[COLUMNS.index("value") :]
    return table.astype(dict.fromkeys(numbers, float) | dict.fromkeys(_COUNTS, "Int64"))


def _over_runs(by_run: pd.DataFrame) -> pd.DataFrame:
    """Averages each agent's runs, with Student's t intervals; a single run keeps its own."""
    by_run = by_run.assign(
        lowest=by_run["lowest"].fillna(by_run["value"]),
        highest=by_run["highest"].fillna(by_run["value"]),
    )
    reduced = {
        **dict.fromkeys(("source", "remark", "low", "high"), "first"),
        **dict.fromkeys(("episodes", "fewest_frames", "lowest"), "min"),
        **dict.fromkeys(("most_frames", "highest"), "max"),
    }
    groups = by_run.groupby(_KEYS, sort=False, dropna=False)
    values = groups["value"].agg(runs="size", value="mean", median="median", deviation="std")
    table = pd.concat([groups.agg(reduced), values], axis=1).reset_index()
    means, runs = table["value"], table["runs"]
    low, high = scores.students_t(means, table["deviation"], runs)
    rerun_low, rerun_high = scores.students_t(means, table["deviation"] * 2**0.5, runs)
    return table.assign(
        low=low.fillna(table["low"]),
        high=high.fillna(table["high"]),
        rerun_low=rerun_low,
        rerun_high=rerun_high,
    )

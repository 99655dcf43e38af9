"""Sums a comparison up in one table of all its numbers: of agents, between agents, and of runs."""

from collections.abc import Sequence
from pathlib import Path

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
from scalable_agent_popart.report.chapter import Chapter
from scalable_agent_popart.report.compare import Comparison
from scalable_agent_popart.report.final_scores import FinalScores, columns

# The columns of the table of all numbers. `docs/formats.md` says what they mean.
COLUMNS = (
    "kind", "measure", "protocol", "task", "agent", "versus", "run", "seed", "runs", "source",
    "remark", "episodes", "fewest_frames", "most_frames", "value", "low", "high", "lowest",
    "highest", "median", "rerun_low", "rerun_high", "effect", "p",
)  # fmt: skip
_COUNTS = ("seed", "runs", "episodes", "fewest_frames", "most_frames")
_KEYS = ["measure", "protocol", "task", "agent"]


def open_chapter(comparison: Comparison, name: str = "", directory: Path = Path()) -> Chapter:
    """Tabulates what runs recorded, and sums it up with a row for each number.

    Numbers are agents' over their runs, differences, and each run's. Runs that lag far behind are
    left out of all but learning curves and populations.
    """
    finals = [FinalScores(comparison, column) for column in columns(comparison.suite)]
    recorded = {
        "learning_curves": curves.tabulate_scores(comparison),
        "progress": progress.tabulate(comparison),
        "statistics": statistics.tabulate(comparison),
        "gradients": gradients.tabulate(comparison),
    }
    in_the_end = [final.by_run() for final in finals]
    over_training = curves.means_over_training(recorded["learning_curves"], in_the_end[0])
    members = populations.summarise(comparison)
    scored = _table([*in_the_end, over_training, members])
    measured = [
        progress.summarise(recorded["progress"]),
        progress.summarise_batches(comparison),
        statistics.summarise(recorded["statistics"]),
        gradients.summarise(recorded["gradients"]),
    ]
    by_run = _table([*in_the_end, over_training, *measured, members])
    kinds = {
        "agent": [_over_runs(by_run)],
        "measured": [final.measured() for final in finals],
        "published": [final.published() for final in finals],
        "difference": [differences.summarise(scored)],
        "run": [by_run],
    }
    summary = _table([part.assign(kind=kind) for kind in kinds for part in kinds[kind]])
    return Chapter(comparison, finals, recorded, summary, name, directory)


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

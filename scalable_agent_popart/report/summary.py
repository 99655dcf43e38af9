"""The table of all numbers of a comparison: its columns, and runs averaged into agents."""

from collections.abc import Sequence

import pandas as pd

from scalable_agent_popart import scores

# The columns of the table of all numbers. `docs/formats.md` says what they mean.
COLUMNS = (
    "kind", "measure", "protocol", "task", "agent", "versus", "run", "seed", "runs", "source",
    "remark", "episodes", "fewest_frames", "most_frames", "value", "low", "high", "lowest",
    "highest", "median", "rerun_low", "rerun_high", "effect", "p",
)  # fmt: skip
_COUNTS = ("seed", "runs", "episodes", "fewest_frames", "most_frames")
_KEYS = ["measure", "protocol", "task", "agent"]


def tabulate(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Puts parts with any of the columns below each other."""
    whole = [part.reindex(columns=COLUMNS).astype(object) for part in parts if len(part)]
    table = pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=COLUMNS)
    numbers = COLUMNS[COLUMNS.index("value") :]
    return table.astype(dict.fromkeys(numbers, float) | dict.fromkeys(_COUNTS, "Int64"))


def over_runs(by_run: pd.DataFrame) -> pd.DataFrame:
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

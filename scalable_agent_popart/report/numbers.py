"""The table of all numbers of a comparison: its columns, and how rows of it are chosen."""

import pandas as pd

COLUMNS = (
    "kind",  # `agent` (of all runs), `measured` (of random play), `published`, `difference`, `run`.
    "measure",  # What the value is, see `docs/formats.md`.
    "protocol",  # The column of Table 1.
    "task",  # Also the name of an aggregate over tasks, or nothing.
    "agent",
    "versus",  # The agent whose value a difference takes away.
    "run",
    "seed",
    "runs",
    "source",  # `test` or `training`, where a score is from.
    "remark",  # What the level lacked, if anything.
    "episodes",  # The fewest of a level.
    "fewest_frames",
    "most_frames",
    "value",  # Over runs: their mean.
    "low",  # To `high`: the 95% interval. Of a single run's scores it is over episodes.
    "high",
    "lowest",  # To `highest`: the range of runs, or of a run's records.
    "highest",
    "median",
    "rerun_low",  # To `rerun_high`: where the mean of as many new runs should lie, with 95%.
    "rerun_high",
    "effect",  # Hedges' g of a difference.
    "p",  # The p of a difference by a permutation test.
)
RUN = ["agent", "run", "seed"]


def agents_numbers(summary: pd.DataFrame, measure: str, **where: str) -> pd.DataFrame:
    """Selects agents' numbers of a measure, over all their runs or published, and random play's."""
    rows = ~summary["kind"].isin(["difference", "run"]) & (summary["measure"] == measure)
    for name, value in where.items():
        rows &= summary[name] == value
    return summary[rows]


def scores_by_task(summary: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Selects agents' scores of each task: normalised, or the returns of those that have none."""
    own = summary[(summary["protocol"] == protocol) & summary["kind"].isin(["agent", "published"])]
    return own[(own["measure"] == "normalised") | unscored(own)]


def unscored(table: pd.DataFrame) -> pd.Series:
    """Marks the returns of tasks without normalised scores."""
    scored = table.loc[table["measure"] == "normalised", "task"]
    return (table["measure"] == "return") & ~table["task"].isin(scored)


def long(found: pd.DataFrame, name: str) -> pd.DataFrame:
    """Makes a row of each value that is known, with its column's name in the column `name`."""
    rows = found.melt(var_name=name, ignore_index=False)
    return rows.dropna(subset="value").reset_index()

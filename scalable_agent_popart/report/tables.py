"""The tables of a comparison: what its runs recorded, and its numbers with a row for each."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.report.compare import Agent
from scalable_agent_popart.report.read import Run

# The columns of the table of all numbers. `docs/formats.md` says what they mean.
COLUMNS = (
    "kind", "measure", "protocol", "task", "agent", "versus", "run", "seed", "runs", "source",
    "remark", "episodes", "fewest_frames", "most_frames", "value", "low", "high", "lowest",
    "highest", "median", "rerun_low", "rerun_high", "effect", "p",
)  # fmt: skip
RUN = ["agent", "run", "seed"]
RUN_COLUMNS = ("agent", "reward_clipping", "run", "seed")


def columns_of(agent: Agent, run: Run) -> dict[str, Any]:
    """Returns what each row of a run has in its `RUN_COLUMNS`."""
    values = (agent.label, run.config.reward_clipping, str(run.path), run.seed)
    return dict(zip(RUN_COLUMNS, values, strict=True))


def of_runs(
    runs: Sequence[tuple[Agent, Run]],
    columns: Sequence[str],
    read: Callable[[Run], pd.DataFrame],
) -> pd.DataFrame:
    """Makes one table of what `read` finds in each run; an empty one if it finds nothing."""
    parts = [read(run).assign(**columns_of(agent, run)) for agent, run in runs]
    whole, columns = [part for part in parts if len(part)], [*RUN_COLUMNS, *columns]
    return pd.concat(whole, ignore_index=True)[columns] if whole else pd.DataFrame(columns=columns)


def recent_means(run: Run, task: str, frames: np.ndarray) -> np.ndarray:
    """Averages a task's latest episodes up to each of `frames`; NaN before the first."""
    episodes = run.logs["episodes"]
    episodes = episodes[episodes["task"] == task]
    window = 1 if run.from_file else scores.RECENT_EPISODES
    means = episodes["episode_return"].rolling(window, min_periods=1).mean()
    ends = np.searchsorted(episodes["frames"].to_numpy(), frames, side="right")
    return np.append(means, np.nan)[ends - 1]


def long(wide: pd.DataFrame, name: str) -> pd.DataFrame:
    """Makes a row of each value that is known, with its column's name in the column `name`."""
    return wide.melt(var_name=name, ignore_index=False).dropna(subset="value").reset_index()


def agents_numbers(summary: pd.DataFrame, measure: str, **where: str) -> pd.DataFrame:
    """Selects agents' numbers of a measure, over all their runs or published, and random play's."""
    rows = ~summary["kind"].isin(["difference", "run"]) & (summary["measure"] == measure)
    for name, value in where.items():
        rows &= summary[name] == value
    return summary[rows]


def unscored(table: pd.DataFrame) -> pd.Series:
    """Marks the returns of tasks without normalised scores."""
    scored = table.loc[table["measure"] == "normalised", "task"]
    return (table["measure"] == "return") & ~table["task"].isin(scored)


def written(
    table: pd.DataFrame,
    rows: list[str],
    column: Any,
    names: Sequence[Any],
    write: Callable[[Any], str],
) -> dict[tuple, list[str]]:
    """Writes a table's numbers: a row by the values of `rows`, with a cell for each of `names`.

    A name is the value of a column, or of several. A cell without a number is empty.
    """
    lines = {}
    for key, group in table.groupby(rows, sort=False):
        entries = group.set_index(column, drop=False).to_dict("index")
        lines[key] = [write(entries[name]) if name in entries else "" for name in names]
    return lines

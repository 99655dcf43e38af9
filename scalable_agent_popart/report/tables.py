"""Makes tables of what a comparison's runs recorded, with a row for each run and record."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.report.compare import Agent, Comparison
from scalable_agent_popart.report.read import METRICS, Run

RUN_COLUMNS = ("agent", "reward_clipping", "run", "seed")


def logged(comparison: Comparison, name: str) -> pd.DataFrame:
    """Makes one table of a kind of metrics, as `read.Run.logs` has them of each run."""
    names = ["frames", *METRICS[name]]
    return of_runs(comparison.even_runs, names, lambda run: run.logs[name])


def of_runs(
    runs: Sequence[tuple[Agent, Run]],
    columns: Sequence[str],
    read: Callable[[Run], pd.DataFrame],
) -> pd.DataFrame:
    """Makes one table of what `read` finds of each run; an empty one if it finds nothing."""
    parts = [read(run).assign(**columns_of(agent, run)) for agent, run in runs]
    whole, columns = [part for part in parts if len(part)], [*RUN_COLUMNS, *columns]
    return pd.concat(whole, ignore_index=True)[columns] if whole else pd.DataFrame(columns=columns)


def columns_of(agent: Agent, run: Run) -> dict[str, Any]:
    values = (agent.label, run.config.reward_clipping, str(run.path), run.seed)
    return dict(zip(RUN_COLUMNS, values, strict=True))


def recent_means(run: Run, task: str, frames: np.ndarray) -> np.ndarray:
    """Averages a task's latest episodes up to each of `frames`; NaN before the first."""
    episodes = run.logs["episodes"]
    episodes = episodes[episodes["task"] == task]
    ends = np.searchsorted(episodes["frames"].to_numpy(), frames, side="right")
    begins = np.maximum(ends - scores.RECENT_EPISODES, 0)
    # Each window is summed by itself: differences of a running sum of large returns lose digits.
    padded = np.append(episodes["episode_return"].to_numpy(), 0.0)
    sums = np.add.reduceat(padded, np.stack([begins, ends], axis=1).ravel())[::2]
    return np.where(ends > 0, sums / np.maximum(ends - begins, 1), np.nan)

"""Scores and statistics over training: the tables behind Figures 1 to 5."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.report.comparison import Agent, Comparison
from scalable_agent_popart.report.records import RECENT_EPISODES
from scalable_agent_popart.report.runs import Run

_POINTS = 200  # From the start to the end of the longest run.
RUN_COLUMNS = ("agent", "reward_clipping", "run", "seed")


def learning_curves(comparison: Comparison) -> pd.DataFrame:
    """Aggregate scores over training, a row a run and point.

    A curve begins where every task has finished an episode; tasks whose random and human scores
    are not known are left out.
    """
    suite = comparison.suite
    tasks = [task for task in suite.tasks if task in suite.reference_scores]
    longest = max(run.frames for agent in comparison.agents for run in agent.runs)
    grid = np.linspace(0, longest, _POINTS + 1)[1:].astype(np.int64)
    rows = []
    for agent in comparison.agents:
        for run in agent.runs if tasks else ():
            frames = grid[grid <= run.frames]
            normalised = np.stack(
                [
                    scores.normalise(
                        _recent_returns(run, task, frames), suite.reference_scores[task]
                    )
                    for task in tasks
                ]
            )  # [tasks, points]
            for point in np.flatnonzero(np.isfinite(normalised).all(axis=0)):
                aggregate = scores.aggregate(normalised[:, point])._asdict()
                rows.append({**run_columns(agent, run), "frames": frames[point], **aggregate})
    return pd.DataFrame(rows, columns=[*RUN_COLUMNS, "frames", *scores.Aggregate._fields])


def statistics(comparison: Comparison) -> pd.DataFrame:
    """PopArt's statistics and the returns beside them, a row a run, task and record."""

    def read(run: Run) -> pd.DataFrame:
        parts = [
            own.assign(episode_return=_recent_returns(run, str(task), own["frames"].to_numpy()))
            for task, own in run.metrics.statistics.groupby("task", sort=False)
            if task in comparison.suite.tasks
        ]
        return pd.concat(parts) if parts else pd.DataFrame()

    return of_runs(comparison, ["task", "frames", "shift", "scale", "episode_return"], read)


def of_runs(
    comparison: Comparison, columns: Sequence[str], read: Callable[[Run], pd.DataFrame]
) -> pd.DataFrame:
    """One table of what `read` finds of each run; an empty one if it finds nothing anywhere."""
    parts = []
    for agent in comparison.agents:
        for run in agent.runs:
            if len(own := read(run)):
                parts.append(own.assign(**run_columns(agent, run)))
    columns = [*RUN_COLUMNS, *columns]
    return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)


def _recent_returns(run: Run, task: str, frames: np.ndarray) -> np.ndarray:
    """Mean return of a task's latest episodes up to each of `frames`; NaN before the first."""
    episodes = run.episodes[run.episodes["task"] == task]
    ends = np.searchsorted(episodes["frames"].to_numpy(), frames, side="right")
    begins = np.maximum(ends - RECENT_EPISODES, 0)
    total = np.concatenate([[0.0], np.cumsum(episodes["episode_return"].to_numpy())])
    with np.errstate(invalid="ignore"):
        return (total[ends] - total[begins]) / (ends - begins)


def run_columns(agent: Agent, run: Run) -> dict[str, object]:
    """The first columns of a table whose rows are of runs."""
    values = (agent.label, run.config.reward_clipping, str(run.path), run.seed)
    return dict(zip(RUN_COLUMNS, values, strict=True))

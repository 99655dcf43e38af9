"""Which tasks move the policy: the policy gradients that `--log_task_gradients` measures."""

import pandas as pd

from scalable_agent_popart.report.comparison import Comparison
from scalable_agent_popart.report.curves import of_runs
from scalable_agent_popart.report.runs import Run

_NUM_BINS = 40


def gradients(comparison: Comparison) -> pd.DataFrame:
    """Each task's policy gradient over training, a row a run, task and record that has it.

    `norm` is the length of the task's part of a batch's policy gradient, `share` the part of the
    whole gradient's squared length that is due to it; see `task_gradients.py`.
    """

    def read(run: Run) -> pd.DataFrame:
        table = run.metrics.gradients
        return table[table["task"].isin(comparison.suite.tasks)]

    return of_runs(comparison, ["task", "frames", "norm", "share"], read)


def by_agent(table: pd.DataFrame) -> pd.DataFrame:
    """A row an agent and task: the median norm and the mean share over all records of all runs.

    The median is over the batches that the task had rollouts in.
    """
    groups = table.groupby(["agent", "task"], sort=False)
    return groups.agg(norm=("norm", "median"), share=("share", "mean")).reset_index()


def over_frames(table: pd.DataFrame) -> pd.DataFrame:
    """The same for stretches of training, all as long; `frames` are those of their middles."""
    width = table["frames"].max() / _NUM_BINS
    place = ((table["frames"] - 1) // width).clip(0, _NUM_BINS - 1)
    groups = table.assign(frames=(place + 0.5) * width).groupby(
        ["agent", "task", "frames"], sort=False
    )
    means = groups.agg(norm=("norm", "median"), share=("share", "mean")).reset_index()
    return means.sort_values("frames", kind="stable", ignore_index=True)

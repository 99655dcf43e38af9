"""Which tasks move the agent: the gradients that `--log_task_gradients` measures."""

import pandas as pd

from scalable_agent_popart.report.comparison import Comparison
from scalable_agent_popart.report.curves import of_runs
from scalable_agent_popart.report.runs import Run

_NUM_BINS = 40
_MOST_PANELS = 8


def gradients(comparison: Comparison) -> pd.DataFrame:
    """Each task's gradient over training, a row a run, loss, task and record that has it.

    `loss` is "policy" or "total". `norm` is the length of the gradient that the task's rollouts in
    a batch have by themselves, see `task_gradients.py`; NaN where there were none. `part` is the
    norm over the sum of all tasks' norms: between 0 and 1, and 1 of a task that the others are
    nothing beside.
    """

    def read(run: Run) -> pd.DataFrame:
        table = run.metrics.gradients
        own = table[table["task"].isin(comparison.suite.tasks)]
        sums = own.groupby(["frames", "loss"])["norm"].transform("sum")
        return own.assign(part=(own["norm"] / sums.where(sums > 0)).fillna(0.0))

    return of_runs(comparison, ["loss", "task", "frames", "norm", "part"], read)


def by_agent(table: pd.DataFrame) -> pd.DataFrame:
    """A row an agent, loss and task: `norm` and `part`, and the least and most of single runs.

    Of each run the median norm, over the batches that the task had rollouts in, and the mean part,
    up to the frames that all runs have reached; then the median of the norms, which may differ by
    orders of magnitude between runs, and the mean of the parts.
    """
    common = table.groupby("run")["frames"].max().min()
    groups = table[table["frames"] <= common].groupby(["agent", "loss", "task", "run"], sort=False)
    runs = groups.agg(norm=("norm", "median"), part=("part", "mean"))
    both = runs.groupby(["agent", "loss", "task"], sort=False)
    means = both.agg(
        norm=("norm", "median"),
        least_norm=("norm", "min"),
        most_norm=("norm", "max"),
        part=("part", "mean"),
        least_part=("part", "min"),
        most_part=("part", "max"),
    )
    return means.reset_index()


def over_frames(table: pd.DataFrame) -> pd.DataFrame:
    """Median norm and mean part of the records of one loss for stretches of training.

    All stretches are as long; `frames` are those of their middles. `panel` is who they are of: an
    agent and seed, since runs may go different ways; or, where these are many, an agent.
    """
    width = table["frames"].max() / _NUM_BINS
    place = ((table["frames"] - 1) // width).clip(0, _NUM_BINS - 1)
    binned = table.assign(panel=_panels(table), frames=(place + 0.5) * width)
    groups = binned.groupby(["panel", "task", "frames"], sort=False)
    means = groups.agg(norm=("norm", "median"), part=("part", "mean")).reset_index()
    return means.sort_values("frames", kind="stable", ignore_index=True)


def _panels(table: pd.DataFrame) -> pd.Series:
    """Whom each row is shown with, as the title of a panel."""
    seeds = table["agent"] + "\nseed " + table["seed"].astype(str)
    one_each = seeds.nunique() == table["agent"].nunique()
    return table["agent"] if one_each or seeds.nunique() > _MOST_PANELS else seeds

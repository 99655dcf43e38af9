"""Which tasks move the agent: the gradients that `--log_task_gradients` measures."""

import pandas as pd
from pandas.api.typing import DataFrameGroupBy

from scalable_agent_popart import intervals
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
    """A row an agent, loss and task: `norm` and `part`.

    Of each run the median norm, over the batches that the task had rollouts in, and the mean part,
    up to the frames that all runs have reached. Then the median of the norms, which may differ by
    orders of magnitude between runs, with the least and the most; and the mean of the parts, with
    its 95% interval over runs, `low_part` to `high_part`.
    """
    common = table.groupby("run")["frames"].max().min()
    groups = table[table["frames"] <= common].groupby(["agent", "loss", "task", "run"], sort=False)
    runs = groups.agg(norm=("norm", "median"), part=("part", "mean"))
    both = runs.groupby(["agent", "loss", "task"], sort=False)
    means = both.agg(
        norm=("norm", "median"),
        least_norm=("norm", "min"),
        most_norm=("norm", "max"),
    )
    return pd.concat([means, _parts(both)], axis=1).reset_index()


def over_frames(table: pd.DataFrame) -> pd.DataFrame:
    """Median norm and mean part of the records of one loss for stretches of training.

    All stretches are as long; `frames` are those of their middles. `panel` is who they are of: an
    agent and seed, since runs may go different ways; or, where these are many, an agent. Then the
    part is the mean over its runs, and `low_part` to `high_part` the 95% interval of that.
    """
    width = table["frames"].max() / _NUM_BINS
    place = ((table["frames"] - 1) // width).clip(0, _NUM_BINS - 1)
    binned = table.assign(panel=_panels(table), frames=(place + 0.5) * width)
    keys = ["panel", "task", "frames"]
    norms = binned.groupby(keys, sort=False)[["norm"]].median()
    runs = binned.groupby([*keys, "run"], sort=False)[["part"]].mean()
    means = pd.concat([norms, _parts(runs.groupby(keys, sort=False))], axis=1).reset_index()
    return means.sort_values("frames", kind="stable", ignore_index=True)


def _parts(runs: DataFrameGroupBy) -> pd.DataFrame:
    """Mean over runs of each group's parts, a row a run, and the interval of that."""
    parts = runs["part"].agg(["mean", "std", "count"])
    low, high = intervals.students_t(parts["mean"], parts["std"], parts["count"])
    return pd.DataFrame({"part": parts["mean"], "low_part": low, "high_part": high})


def _panels(table: pd.DataFrame) -> pd.Series:
    """Whom each row is shown with, as the title of a panel."""
    seeds = table["agent"] + "\nseed " + table["seed"].astype(str)
    one_each = seeds.nunique() == table["agent"].nunique()
    return table["agent"] if one_each or seeds.nunique() > _MOST_PANELS else seeds

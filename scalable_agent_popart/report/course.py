"""How training went: speed, memory, the policy's entropy, and the tasks that batches were of."""

import pandas as pd

from scalable_agent_popart.report.comparison import Comparison
from scalable_agent_popart.report.curves import of_runs
from scalable_agent_popart.report.runs import Run


def course(comparison: Comparison) -> pd.DataFrame:
    """Each run's `Metrics.course`, a row a run and record."""
    columns = ["frames", "frames_per_second", "memory_mib", "entropy"]
    return of_runs(comparison, columns, lambda run: run.metrics.course)


def batches(comparison: Comparison) -> pd.DataFrame:
    """What was learned from: a row a run and task, of all tasks that the run was trained on.

    `share` is the mean over records of the task's share of the rollouts since the record before,
    `least` and `most` the smallest and the largest of these.
    """

    def read(run: Run) -> pd.DataFrame:
        groups = run.metrics.batches.groupby("task", sort=False)["share"]
        return groups.agg(share="mean", least="min", most="max").reset_index()

    return of_runs(comparison, ["task", "share", "least", "most"], read)


def by_run(course_table: pd.DataFrame, batches_table: pd.DataFrame) -> pd.DataFrame:
    """Both tables in short, a row a run; NaN where they do not tell.

    The medians of frames_per_second and of entropy, and the largest memory_mib. `tasks` is how many
    tasks have a share in the run's batches, `least` and `most` are the shares of two of them.
    """
    keys = ["run", "agent", "seed"]
    records = course_table.groupby(keys, sort=False)
    shares = batches_table.groupby(keys, sort=False)["share"]
    columns = {
        "frames_per_second": records["frames_per_second"].median(),
        "memory_mib": records["memory_mib"].max(),
        "entropy": records["entropy"].median(),
        "tasks": shares.agg(lambda share: (share > 0).sum()),
        "least": shares.min(),
        "most": shares.max(),
    }
    return pd.DataFrame(columns).reindex(columns["frames_per_second"].index).reset_index()

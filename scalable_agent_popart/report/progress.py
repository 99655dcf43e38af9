"""Training progress: speed, memory and entropy of runs, and tasks' shares of their batches."""

from typing import Any

import pandas as pd

from scalable_agent_popart.report.chapter import Chapter, records
from scalable_agent_popart.report.numbers import RUN, long

_MIN_PART_OF_RECORD = 0.5  # A record with fewer of the median record's frames is not whole.


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Returns each run's median frame rate and entropy (nats), and its largest memory (MiB)."""
    reduced = {"frames_per_second": "median", "memory_mib": "max", "entropy": "median"}
    return long(table.groupby(RUN, sort=False).agg(reduced), "measure")


def summarise_batches(table: pd.DataFrame) -> pd.DataFrame:
    """Returns each task's share of a run's rollouts, and the least and the most of a record's.

    A record counts by the frames since the one before. That of a first or last batch has no share
    worth comparing, and is not looked for the least and the most.
    """
    of_task = table.groupby(["run", "task"], sort=False)["frames"]
    frames = of_task.diff().fillna(table["frames"])
    sums = frames.groupby([table["run"], table["task"]]).transform("sum")
    whole = frames >= _MIN_PART_OF_RECORD * frames.groupby(table["run"]).transform("median")
    own = table.assign(value=table["share"] * frames / sums, whole=table["share"].where(whole))
    found = own.groupby([*RUN, "task"], sort=False).agg(
        value=("value", "sum"), lowest=("whole", "min"), highest=("whole", "max")
    )
    return found.reset_index().assign(measure="batch_share")


def content(chapter: Chapter) -> dict[str, Any] | None:
    """Writes the table of progress; returns what the template is given."""
    progress = chapter.recorded["progress"]
    if not len(progress):
        return None
    by_run = chapter.summary[chapter.summary["kind"] == "run"]
    behind = [
        f"{run.path}: at {run.frames:,} frames, and another run of {agent.label} is farther"
        for agent, run in chapter.comparison.runs
        if (agent, run) not in chapter.comparison.even_runs
    ]
    return {
        "rows": records(
            by_run.drop_duplicates(["run", "measure"]), ["agent", "run", "seed"], "measure"
        ),
        "shares": by_run[by_run["measure"] == "batch_share"].groupby("run")["value"],
        "file": chapter.file(progress, "progress"),
        "behind": behind,
    }

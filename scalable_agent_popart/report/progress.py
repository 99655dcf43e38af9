"""Training progress: speed, memory and entropy of runs, and tasks' shares of their batches."""

import numpy as np
import pandas as pd

from scalable_agent_popart.report.chapter import Chapter, long, written
from scalable_agent_popart.report.compare import RUN, Comparison
from scalable_agent_popart.report.read import Run

_MIN_PART_OF_RECORD = 0.5  # A record with fewer of the median record's frames is not whole.
_HEADS = (
    "Agent", "Seed", "Frames/s (median)", "Memory, at most (MiB)", "Entropy (median, nats)",
)  # fmt: skip
_STYLES = {"frames_per_second": ",.0f", "memory_mib": ",.0f", "entropy": ".3g"}
_WORDS = """
<details><summary>Training progress</summary>
{{ table(heads, rows) }}
<p>All of it is in {{ link(file) }}.</p>
{{ lines("Records that do not count here, in statistics and in gradients:", behind) }}
</details>
"""


def tabulate(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per run and record: time (seconds since 1970), speed, memory, entropy (nats)."""
    names = ["time", "frames_per_second", "memory_mib"]

    def read(run: Run) -> pd.DataFrame:
        table = run.numbers("metrics", [*names, "entropy_loss", "entropy_cost"])
        # The loss is a sum over a batch's steps.
        steps = [
            run.record.flag("unroll_length", frames) * run.record.flag("batch_size", frames)
            for frames in table["frames"]
        ]
        cost = table["entropy_cost"].replace(0.0, np.nan)
        table = table.assign(entropy=-table["entropy_loss"] / cost / steps)
        return table[["frames", *names, "entropy"]]

    return comparison.tabulate(read)


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Returns each run's median frame rate and entropy (nats), and its largest memory (MiB)."""
    reduced = {"frames_per_second": "median", "memory_mib": "max", "entropy": "median"}
    return long(table.groupby(RUN, sort=False).agg(reduced), "measure")


def summarise_batches(comparison: Comparison) -> pd.DataFrame:
    """Returns each task's share of a run's rollouts, and the least and the most of a record's.

    A record counts by the frames since the one before. That of a first or last batch has no share
    worth comparing, and is not looked for the least and the most.
    """
    table = comparison.tabulate(lambda run: run.numbers("task_metrics", ["batch_share"]))
    frames = table.groupby(["run", "task"], sort=False)["frames"].diff().fillna(table["frames"])
    sums = frames.groupby([table["run"], table["task"]]).transform("sum")
    whole = frames >= _MIN_PART_OF_RECORD * frames.groupby(table["run"]).transform("median")
    share = table["batch_share"]
    weighted = table.assign(value=share * frames / sums, whole=share.where(whole))
    shares = weighted.groupby([*RUN, "task"], sort=False).agg(
        value=("value", "sum"), lowest=("whole", "min"), highest=("whole", "max")
    )
    return shares.reset_index().assign(measure="batch_share")


def write(chapter: Chapter) -> str:
    """Writes the table of progress, and the section, if there are records."""
    progress = chapter.recorded["progress"]
    if not len(progress):
        return ""
    by_run = chapter.summary[chapter.summary["kind"] == "run"]
    cells = written(
        by_run.drop_duplicates(["run", "measure"]), RUN, "measure", [*_STYLES],
        lambda entry: f"{entry['value']:{_STYLES[entry['measure']]}}",
    )  # fmt: skip
    shares = by_run[by_run["measure"] == "batch_share"].groupby("run")["value"]
    share_of = {
        run: f"{(share > 0).sum()}, {share.min():.2%} to {share.max():.2%}" for run, share in shares
    }
    heads = [*_HEADS]
    rows = [[agent, seed, *texts] for (agent, _, seed), texts in cells.items()]
    if share_of:  # Older logs have none.
        heads.append("Tasks in its batches, and the share of each")
        for (_, run, _), row in zip(cells, rows, strict=True):
            row.append(share_of.get(run, ""))
    behind = [
        f"{run.path}: at {run.frames:,} frames, and another run of {agent.label} is farther"
        for agent, run in chapter.comparison.runs
        if (agent, run) not in chapter.comparison.even_runs
    ]
    file = chapter.file(progress, "progress")
    return chapter.render(_WORDS, heads=heads, rows=rows, file=file, behind=behind)

"""Gradients by task: their sizes over training, and each task's part of all sizes."""

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from scalable_agent_popart import scores
from scalable_agent_popart.report import drawing
from scalable_agent_popart.report.chapter import MAX_COLUMNS, Chapter, long, several_runs, written
from scalable_agent_popart.report.compare import RUN, Comparison
from scalable_agent_popart.report.drawing import Styles
from scalable_agent_popart.report.read import Run

_MAX_STRETCHES = 40  # Stretches of training in the figure of gradients.
_ORDERS_IN_VIEW = 6  # Orders of size; a nearly deterministic policy has next to no gradient.
# The name that a record has for the norms of a loss's gradients.
_LOSSES = {"policy_gradient_norm": "policy", "total_gradient_norm": "total"}
_WORDS = """
<h3>Gradients by task</h3>
{{ figures }}
<p>Gradients of the policy's loss. Top: their median size over all of an agent's records in each
stretch of training. Bottom: each task's part of all sizes
{{- ", in the mean over runs, with its 95% interval shaded" if several_runs else "" }}.</p>
{{ bars }}
{{ table(heads, rows) }}
<p>The gradient of a batch's loss is the sum of its tasks' gradients. It is taken of the policy's
loss alone, and of the total, whose value loss reaches the shared layers as well. Size is the length
of a task's gradient in batches with rollouts of it. Part is that length over the sum of all tasks',
which means little where all are next to zero. Each run counts by its median size and mean part, up
to the {{ frames }} frames that all runs have reached.
{% if several_runs %}
The table has the median size over runs with its range, and the mean part with its 95% interval by
Student's t.
{% endif %}
Clipping to <code>--max_grad_norm</code> and RMSProp's division come later. All records are in
{{ link(file) }}.</p>
"""


def tabulate(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per run, loss, task and record: each task's gradient over training.

    `norm` is of `Learner.gradient_norms`, and `part` that over the sum of all tasks' norms.
    """

    def read(run: Run) -> pd.DataFrame:
        table = run.logs["task_metrics"].reindex(columns=["task", "frames", *_LOSSES])
        table = table.rename(columns=_LOSSES).melt(["task", "frames"], None, "loss", "norm")
        # A task without a rollout in the batch has no norm, and a program's last record has none.
        known = table.groupby(["frames", "loss"])["norm"].transform("count") > 0
        return table.loc[known, ["loss", "task", "frames", "norm"]]

    table = comparison.tabulate(read)
    table = table[table["task"].isin(comparison.suite.tasks)]
    sums = table.groupby(["run", "frames", "loss"])["norm"].transform("sum")
    return table.assign(part=(table["norm"] / sums.where(sums > 0)).fillna(0.0))


def average_over_frames(table: pd.DataFrame) -> pd.DataFrame:
    """Averages the records of one loss over equal stretches of training: median norm, mean part.

    There are at most as many stretches as the run with the fewest records has, so that each holds
    about one of every run. `frames` are the stretches' middles.
    """
    stretches = min(_MAX_STRETCHES, table.groupby("run")["frames"].nunique().min())
    width = table["frames"].max() / stretches
    stretch = ((table["frames"] - 1) // width).clip(0, stretches - 1)
    binned = table.assign(frames=(stretch + 0.5) * width)
    keys = ["agent", "task", "frames"]
    norms = binned.groupby(keys, sort=False)[["norm"]].median()
    runs = binned.groupby([*keys, "run"], sort=False)["part"].mean()
    parts = runs.groupby(keys, sort=False).agg(["mean", "std", "count"])
    low, high = scores.students_t(parts["mean"], parts["std"], parts["count"])
    means = norms.assign(part=parts["mean"], low_part=low, high_part=high).reset_index()
    return means.sort_values("frames", kind="stable", ignore_index=True)


def draw(table: pd.DataFrame) -> Figure:
    """Draws each task's size of the policy gradient, and its part with the 95% interval filled."""
    table = average_over_frames(table[table["loss"] == "policy"])
    agents, tasks = (list(dict.fromkeys(table[name])) for name in ("agent", "task"))
    colours = drawing.VIRIDIS(np.linspace(0, 0.93, len(tasks)))
    width = (3.4 if len(agents) < 5 else 2.6) * len(agents) + 0.8
    columns = drawing.legend_columns(width, tasks)
    figure = Figure(figsize=(width, 5.4 + 0.2 * -(-len(tasks) // columns)), layout="constrained")
    grid = figure.subplots(2, len(agents), squeeze=False, sharex=True, sharey="row")
    unit = drawing.frames_axis(figure, table["frames"].max(), len(tasks))
    for (above, below), agent in zip(grid.T, agents, strict=True):
        of_agent = table[table["agent"] == agent]
        for task, colour in zip(tasks, colours, strict=True):
            line = of_agent[of_agent["task"] == task]
            frames = line["frames"] / unit
            above.plot(frames, line["norm"], color=colour, label=drawing.plain(task))
            below.plot(frames, line["part"], color=colour)
            ends = line["low_part"], line["high_part"]
            below.fill_between(frames, *ends, color=colour, alpha=0.12, lw=0)
        above.set_yscale("log")
        above.set_title(drawing.plain(agent), fontsize=9)
        below.set_ylim(0, 1)
        for axes in (above, below):
            axes.grid(alpha=0.3)
    largest = float(table["norm"].max())
    if largest > 0:
        smallest = max(float(table["norm"].min()), largest / 10**_ORDERS_IN_VIEW)
        grid[0, 0].set_ylim(smallest / 2, largest * 2)
    grid[0, 0].set_ylabel("size of the policy gradient")
    grid[1, 0].set_ylabel("part of all sizes")
    drawing.legend(figure, grid[0, 0])
    return figure


def draw_parts(table: pd.DataFrame, styles: Styles) -> Figure:
    """Draws each task's part of the policy gradient, the last agent's largest first."""
    by_task = 100 * table.pivot_table(index="task", columns="agent", values="value", sort=False)
    by_task = by_task.sort_values(by_task.columns[-1], ascending=False)
    figure = Figure(figsize=(1.5 + 0.2 * len(by_task), 4), layout="constrained")
    axes = figure.subplots()
    drawing.draw_bars(axes, by_task, styles)
    even = 100 / len(by_task)
    axes.axhline(even, color="black", lw=0.8, label="an even part")
    axes.set_yscale("log")
    axes.set_ylim(even / 1000, min(2 * by_task.max(axis=None), 100))
    names = [drawing.plain(str(task)) for task in by_task.index]
    axes.set_xticks(range(len(by_task)), names, rotation=90, fontsize=8)
    axes.set_xlim(-0.6, len(by_task) - 0.4)
    axes.set_ylabel("part of the policy gradient (%)")
    axes.grid(axis="y", alpha=0.3)
    drawing.legend(figure, axes)
    return figure


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Returns runs' median sizes and mean parts of gradients, up to frames that all reached."""
    common = table.groupby("run")["frames"].max().min()
    groups = table[table["frames"] <= common].groupby([*RUN, "loss", "task"], sort=False)
    rows = long(groups.agg(size=("norm", "median"), part=("part", "mean")), "what")
    return rows.assign(measure=rows["loss"] + "_gradient_" + rows["what"], most_frames=common)


def write(chapter: Chapter) -> str:
    """Writes the figures and the table of gradients, if there are any."""
    table = chapter.recorded["gradients"]
    if not len(table):
        return ""
    of_agents = chapter.summary.query("kind == 'agent' and measure.str.contains('_gradient_')")
    parts, bars = of_agents[of_agents["measure"] == "policy_gradient_part"], Markup()
    if parts["task"].nunique() > MAX_COLUMNS:
        says = "mean part of each task in the policy gradient"
        bars = chapter.figures("gradient-parts", parts, draw_parts, says, styles=chapter.styles)
    heads = {
        f"{loss}_gradient_{name}": f"{loss} loss: {head}"
        for loss in table["loss"].unique()
        for name, head in (("size", "size (median)"), ("part", "part of all sizes (mean)"))
    }
    rows = written(of_agents, ["agent", "task"], "measure", [*heads], _write)
    return chapter.render(
        _WORDS,
        figures=chapter.figures("gradients", table, draw, "size of tasks' policy gradients"),
        file=chapter.file(table, "gradients"),
        bars=bars,
        heads=["Agent", "Task", *heads.values()],
        rows=[[*key, *cells] for key, cells in rows.items()],
        frames=f"{of_agents['most_frames'].max():,}",
        several_runs=several_runs(table),
    )


def _write(entry: Any) -> str:
    """Writes a median size with its range over runs, or a mean part with its interval."""
    value, low, high, style = entry["value"], entry["low"], entry["high"], ".1%"
    if entry["measure"].endswith("size"):
        value, low, high, style = entry["median"], entry["lowest"], entry["highest"], ".3g"
    return f"{value:{style}}" + (f" [{low:{style}}, {high:{style}}]" if high > low else "")

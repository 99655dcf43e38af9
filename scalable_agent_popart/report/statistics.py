"""PopArt's statistics: each task's shift and scale over training."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from scalable_agent_popart import scores
from scalable_agent_popart.report.chapter import Chapter, interval, long, several_runs
from scalable_agent_popart.report.compare import RUN, Comparison
from scalable_agent_popart.report.drawing import VIRIDIS, Styles, frames_axis, legend, plain
from scalable_agent_popart.report.read import Run

_LARGE = 30  # A target of more sigmas is large.
_STATISTICS_A_ROW = 6
_NAMES = 5  # Tasks of the smallest scales, and of the largest, that are named.
_WORDS = """
<h3>Normalisation statistics</h3>
{{ scales }}
<p>Each task's scale &sigma;, and at the right what it is at the end
{{- ": means over runs, with 95% intervals by Student's t" if several_runs else "" }}.</p>
{{ figures }}
<p>Top: each task's shift, with its scale shaded around it. Bottom: the mean of its last
{{ recent }} raw returns. The numbers are in {{ link(file) }}.</p>
"""


def tabulate(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per run, task and record: PopArt's statistics and the returns next to them."""
    numbers = ["shift", "scale", "largest_target"]

    def read(run: Run) -> pd.DataFrame:
        table = run.numbers("task_metrics", numbers)
        parts = [
            rows.assign(episode_return=run.recent_means(str(task), rows["frames"].to_numpy()))
            for task, rows in table.groupby("task", sort=False)
            if task in comparison.suite.tasks
        ]
        return pd.concat([table[:0], *parts])

    return comparison.tabulate(read)


def draw(table: pd.DataFrame, styles: Styles) -> Figure:
    """Draws Figure 3: each task's shift with its scale shaded around it, and its returns below."""
    tasks = list(dict.fromkeys(table["task"]))
    columns = min(_STATISTICS_A_ROW, len(tasks))
    rows = -(-len(tasks) // columns)
    above_all = 0.6 + 0.22 * table["agent"].nunique()
    width, height = max(6, 2.6 * columns + 0.8), 3.4 * rows + 0.6 + above_all
    # Neither shared axes nor automatic layout: both take a second for every ten tasks.
    figure = Figure(figsize=(width, height))
    outer = figure.add_gridspec(
        rows, columns, left=0.7 / width, right=1 - 0.2 / width, bottom=0.6 / height,
        top=1 - above_all / height, wspace=0.25, hspace=0.2,
    )  # fmt: skip
    unit = frames_axis(figure, table["frames"].max(), len(tasks), y=0.1 / height)
    for i, (task, of_task) in enumerate(table.groupby("task", sort=False)):
        above, below = outer[i].subgridspec(2, 1, hspace=0.08).subplots(squeeze=False)[:, 0]
        for (agent, _), run in of_task.groupby(["agent", "run"], sort=False):
            colour, line, _ = styles[agent]
            frames, shift, scale = run["frames"] / unit, run["shift"], run["scale"]
            above.plot(frames, shift, ls=line, color=colour, lw=1, label=plain(agent))
            above.fill_between(frames, shift - scale, shift + scale, color=colour, alpha=0.2, lw=0)
            below.plot(frames, run["episode_return"], ls=line, color=colour, lw=1)
        above.set_title(plain(task), fontsize=9)
        for axes, ticks in ((above, NullLocator()), (below, MaxNLocator(4))):
            axes.tick_params(labelsize=7)
            # Each tick costs a millisecond, and there may be a hundred axes.
            axes.yaxis.set_major_locator(MaxNLocator(3))
            axes.yaxis.set_major_formatter(
                lambda y, _: f"{y / 1000:g}k" if abs(y) >= 1000 else f"{y:g}"
            )
            axes.grid(alpha=0.3)
            axes.set_xlim(0, table["frames"].max() / unit)
            axes.xaxis.set_major_locator(ticks)
        if i % columns == 0:
            above.set_ylabel(r"$\mu \pm \sigma$")
            below.set_ylabel("episode return")
    legend(figure, figure.axes[0], loc="upper left", fontsize="medium")
    return figure


def draw_scales(table: pd.DataFrame) -> Figure:
    """Draws tasks' scales on one axis an agent; of many, the smallest and the largest are named."""
    agents = list(dict.fromkeys(table["agent"]))
    ends = table.groupby(["agent", "run", "task"])["scale"].last()
    order = list(ends.groupby("task").mean().sort_values().index)
    colours = dict(zip(order, VIRIDIS(np.linspace(0, 0.93, len(order))), strict=True))
    figure = Figure(figsize=(5.8 * len(agents) + 0.8, 4.6), layout="constrained")
    grid = figure.subplots(1, len(agents), squeeze=False, sharex=True, sharey=True)[0]
    unit = frames_axis(figure, table["frames"].max(), len(order))
    for axes, agent in zip(grid, agents, strict=True):
        of_agent = table[table["agent"] == agent]
        for (task, _), line in of_agent.groupby(["task", "run"], sort=False):
            axes.plot(line["frames"] / unit, line["scale"], color=colours[task], lw=1)
        axes.set_yscale("log")
        axes.set_title(plain(agent), fontsize=9)
        axes.grid(alpha=0.3)
        last = ends[agent].dropna().groupby("task").agg(["mean", "std", "count"])
        low, high = scores.students_t(last["mean"], last["std"], last["count"])
        last = last.assign(value=last["mean"], low=low, high=high)
        last = last.sort_values("mean", ascending=False)
        many = len(last) > 2 * _NAMES
        named = pd.concat([last[:_NAMES], last[-_NAMES:]]) if many else last
        for task, row in named.iterrows():
            text = plain(f"{task}: {interval(row, '.3g')}")
            axes.plot([], [], color=colours[task], label=text)
        title = f"{_NAMES} largest and smallest at the end" if many else "at the end"
        axes.legend(
            fontsize=7, title=title, title_fontsize=7, loc="upper left", bbox_to_anchor=(1, 1)
        )
    grid[0].set_ylabel(r"$\sigma$ of each task")
    return figure


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Returns each run's last statistics of each task, and the size of its normalised targets."""
    largest = table["largest_target"]
    table = table.assign(large_targets=largest.gt(_LARGE).where(largest >= 0))
    reduced = {"shift": "last", "scale": "last", "largest_target": "max", "large_targets": "mean"}
    return long(table.groupby([*RUN, "task"], sort=False).agg(reduced), "measure")


def write(chapter: Chapter) -> str:
    """Writes the figures and the table of statistics, if there are any."""
    table = chapter.recorded["statistics"]
    if not len(table):
        return ""
    says = "top: shift and scale by task, bottom: returns"
    figures = chapter.figures("statistics", table, draw, says, styles=chapter.styles)
    scales = chapter.figures("scales", table, draw_scales, "scales of all tasks next to each other")
    file = chapter.file(table, "statistics")
    several = several_runs(table)
    return chapter.render(_WORDS, figures=figures, scales=scales, file=file, several_runs=several)

"""The paper's figures, drawn from the tables that the CSV files hold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from scalable_agent_popart import intervals
from scalable_agent_popart.report import published

# The paper's colours, in the palette of Okabe and Ito, which the colour-blind can tell apart.
_COLOURS = {
    "IMPALA": "#0072B2",
    "MultiHead-IMPALA": "#CC79A7",
    "PopArt-IMPALA": "#E69F00",
    "Pixel-IMPALA": "#009E73",
    "Pixel-PopArt-IMPALA": "#D55E00",
    published.IMPALA: "#7F7F7F",
}
# Variants of one agent share its colour. Dotted lines are published scores.
_LINES = ("-", "--", "-.", (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2, 2, 2, 2, 2)))
_HATCHES = ("", "////", "....", "xxxx", "----", "oo")
_AGGREGATES = {"mean": "Mean", "median": "Median", "mean_capped": "Mean capped"}
_MOST_LEVELS_A_PANEL = 32
_STATISTICS_A_ROW = 6
_LETTERS_AN_INCH = 12
# Tasks of the smallest scales, and of the largest, that are named.
_NAMES = 5
# Of a logarithmic axis for scores that may be negative: linear between minus and plus this.
_LINEAR_PERCENT = 10
# Of a logarithmic axis for sizes: a policy that chooses as if by rule has next to no gradient.
_ORDERS_IN_VIEW = 6


class Styles:
    """A colour, a line and a hatch for each agent, the same in all figures of a comparison."""

    def __init__(self, names: Sequence[tuple[str, str]]):
        """Args: names: name and label of each agent."""
        self._of: dict[str, tuple[str, int]] = {published.IMPALA: (_COLOURS[published.IMPALA], 0)}
        for name, label in names:
            colour = _COLOURS.get(name, "#000000")
            place = sum(colour == other for other, _ in self._of.values())
            self._of[label] = (colour, place)

    def colour(self, label: str) -> str:
        return self._of[label][0]

    def line(self, label: str) -> str | tuple:
        return _LINES[self._of[label][1] % len(_LINES)]

    def hatch(self, label: str) -> str:
        return _HATCHES[self._of[label][1] % len(_HATCHES)]


def learning_curves(
    curves: pd.DataFrame, headline: str, targets: dict[str, float], styles: Styles
) -> Figure:
    """Figures 1, 2, 4 and 5: an aggregate score against frames.

    A line a run; several runs of an agent have the mean as a thick line, and its 95% interval
    filled. Published final scores (`targets`, by agent) are dotted lines. The axis is chosen for
    the lines of runs; what is beyond it is cut off.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    unit, name = frames_unit(curves["frames"].max())
    bands = []
    for agent, own in curves.groupby("agent", sort=False):
        colour, line = styles.colour(agent), styles.line(agent)
        runs = own.pivot_table(index="frames", columns="run", values=headline)
        runs = runs[runs.notna().all(axis=1)] if runs.notna().all(axis=1).any() else runs
        count = own["run"].nunique()
        text = f"{agent}, {count} runs" if count > 1 else agent
        axes.plot(runs.index / unit, runs.mean(axis=1), ls=line, color=colour, lw=2, label=text)
        if count > 1:
            low, high = intervals.students_t(
                runs.mean(axis=1), runs.std(axis=1), runs.count(axis=1)
            )
            alpha = 0.2 if count > 2 else 0.08  # Of two runs it mostly fills the figure.
            bands.append((runs.index / unit, low, high, colour, alpha))
            for _, one in own.groupby("run"):
                axes.plot(
                    one["frames"] / unit, one[headline], ls=line, color=colour, lw=0.6, alpha=0.7
                )
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)
    for frames, low, high, colour, alpha in bands:
        axes.fill_between(frames, low, high, color=colour, alpha=alpha, lw=0)
    for agent, score in targets.items():
        text, colour = f"published {agent}: {score:.1f}%", _COLOURS.get(agent, "#000000")
        within = bottom <= score <= top
        label = text if within else f"{text} (not in view)"
        axes.plot([], [], ":", color=colour, label=label)
        if within:
            axes.axhline(score, ls=":", color=colour)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"Environment frames ({name}), summed over tasks")
    axes.set_ylabel(f"{_AGGREGATES[headline]} human-normalised score (%)")
    axes.grid(alpha=0.3)
    _legend(figure, axes, loc="outside upper left", fontsize="small")
    return figure


def statistics(table: pd.DataFrame, styles: Styles) -> Figure:
    """Figure 3: each task's shift with the scale shaded around it, above its returns."""
    tasks = list(dict.fromkeys(table["task"]))
    columns = min(_STATISTICS_A_ROW, len(tasks))
    rows = -(-len(tasks) // columns)
    num_agents = table["agent"].nunique()
    above_all = 0.6 + 0.22 * num_agents
    width, height = max(6, 2.6 * columns + 0.8), 3.4 * rows + 0.6 + above_all
    # Neither shared axes nor automatic layout: both take a second for every ten tasks.
    figure = Figure(figsize=(width, height))
    outer = figure.add_gridspec(
        rows, columns, left=0.7 / width, right=1 - 0.1 / width, bottom=0.6 / height,
        top=1 - above_all / height, wspace=0.25, hspace=0.2,
    )  # fmt: skip
    unit, name = frames_unit(table["frames"].max())
    for place, (task, own) in enumerate(table.groupby("task", sort=False)):
        above, below = outer[place].subgridspec(2, 1, hspace=0.08).subplots(squeeze=False)[:, 0]
        _draw_statistics(above, below, own, unit, styles)
        above.set_title(task, fontsize=9)
        for axes, ticks in ((above, NullLocator()), (below, MaxNLocator(4))):
            axes.set_xlim(0, table["frames"].max() / unit)
            axes.xaxis.set_major_locator(ticks)
        if place % columns == 0:
            above.set_ylabel(r"$\mu \pm \sigma$")
            below.set_ylabel("episode return")
    figure.supxlabel(
        f"Environment frames ({name}), summed over tasks", fontsize="medium", y=0.1 / height
    )
    _legend(figure, figure.axes[0], loc="upper left")
    return figure


def _draw_statistics(
    above: Axes, below: Axes, table: pd.DataFrame, unit: float, styles: Styles
) -> None:
    for (agent, _), run in table.groupby(["agent", "run"], sort=False):
        colour, line = styles.colour(agent), styles.line(agent)
        frames = run["frames"] / unit
        drawn = {artist.get_label() for artist in above.lines}
        label = "_again" if agent in drawn else agent
        above.plot(frames, run["shift"], ls=line, color=colour, lw=1, label=label)
        low, high = run["shift"] - run["scale"], run["shift"] + run["scale"]
        above.fill_between(frames, low, high, color=colour, alpha=0.2, lw=0)
        below.plot(frames, run["episode_return"], ls=line, color=colour, lw=1)
    for axes in (above, below):
        axes.tick_params(labelsize=7)
        # Each tick costs a millisecond, and there may be a hundred axes.
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
        axes.grid(alpha=0.3)


def scales(table: pd.DataFrame) -> Figure:
    """All tasks' scales on one axis, a column an agent and a line a run and task.

    Tasks are named with their scales at the end, of several runs the mean and its 95% interval; of
    many tasks, those with the smallest and the largest.
    """
    agents = list(dict.fromkeys(table["agent"]))
    ends = table.groupby(["agent", "run", "task"])["scale"].last()
    order = list(ends.groupby("task").mean().sort_values().index)
    colours = dict(zip(order, colormaps["viridis"](np.linspace(0, 0.93, len(order))), strict=True))
    figure = Figure(figsize=(5.8 * len(agents) + 0.8, 4.6), layout="constrained")
    grid = figure.subplots(1, len(agents), squeeze=False, sharex=True, sharey=True)[0]
    unit, name = frames_unit(table["frames"].max())
    for axes, agent in zip(grid, agents, strict=True):
        own = table[table["agent"] == agent]
        for (task, _), line in own.groupby(["task", "run"], sort=False):
            axes.plot(line["frames"] / unit, line["scale"], color=colours[task], lw=1)
        axes.set_yscale("log")
        axes.set_title(agent, fontsize=9)
        axes.grid(alpha=0.3)
        last = ends[agent].groupby("task").agg(["mean", "std", "count"])
        last = last.sort_values("mean", ascending=False)
        many = len(last) > 2 * _NAMES
        named = [*last.index[:_NAMES], *last.index[-_NAMES:]] if many else list(last.index)
        handles = [axes.plot([], [], color=colours[task])[0] for task in named]
        labels = [f"{task}: {_with_interval(*last.loc[task])}" for task in named]
        title = f"{_NAMES} largest and smallest at the end" if many else "at the end"
        axes.legend(
            handles, labels, fontsize=7, title=title, title_fontsize=7, loc="upper left",
            bbox_to_anchor=(1, 1),
        )  # fmt: skip
    grid[0].set_ylabel(r"$\sigma$ of each task")
    figure.supxlabel(f"Environment frames ({name}), summed over tasks", fontsize="medium")
    return figure


def gradients(table: pd.DataFrame) -> Figure:
    """Size of each task's policy gradient, and part of all sizes; a column a panel.

    The 95% interval of a part that is a mean over runs is filled.
    """
    panels, tasks = list(dict.fromkeys(table["panel"])), list(dict.fromkeys(table["task"]))
    colours = colormaps["viridis"](np.linspace(0, 0.93, len(tasks)))
    width = (3.4 if len(panels) < 5 else 2.6) * len(panels) + 0.8
    columns = max(1, int(width * _LETTERS_AN_INCH / (8 + max(map(len, tasks)))))
    height = 5.4 + 0.2 * -(-len(tasks) // columns)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row")
    unit, name = frames_unit(table["frames"].max())
    for (above, below), panel in zip(grid.T, panels, strict=True):
        own = table[table["panel"] == panel]
        for task, colour in zip(tasks, colours, strict=True):
            line = own[own["task"] == task]
            above.plot(line["frames"] / unit, line["norm"], color=colour, label=task)
            below.plot(line["frames"] / unit, line["part"], color=colour)
            low, high = line["low_part"], line["high_part"]
            below.fill_between(line["frames"] / unit, low, high, color=colour, alpha=0.12, lw=0)
        above.set_yscale("log")
        above.set_title(panel, fontsize=9)
        below.set_ylim(0, 1)
        for axes in (above, below):
            axes.grid(alpha=0.3)
    largest = float(table["norm"].max())
    if largest > 0:
        smallest = max(float(table["norm"].min()), largest / 10**_ORDERS_IN_VIEW)
        grid[0, 0].set_ylim(smallest / 2, largest * 2)
    grid[0, 0].set_ylabel("size of the policy gradient")
    grid[1, 0].set_ylabel("part of all sizes")
    figure.supxlabel(f"Environment frames ({name}), summed over tasks", fontsize="medium")
    _legend(figure, grid[0, 0], loc="outside upper left", fontsize="small")
    return figure


def breakdown(table: pd.DataFrame, logarithmic: bool, styles: Styles) -> Figure:
    """Figures 8 and 9: a bar a level and agent; the last of our agents' best levels come first.

    Of several runs the axis has room for the lowest and the highest, which are dots; their mean's
    interval may be cut off.
    """
    agents = list(dict.fromkeys(table["agent"]))
    scores = table.pivot_table(index="level", columns="agent", values="normalised", sort=False)
    ours = [agent for agent in agents if agent != published.IMPALA]
    levels = list(scores.sort_values(ours[-1], ascending=False).index)
    panels = np.array_split(np.array(levels), -(-len(levels) // _MOST_LEVELS_A_PANEL))
    height = max(3, 1.6 + max(map(len, panels)) * (0.11 * len(agents) + 0.12))
    figure = Figure(figsize=(6.5 * len(panels) + 1, height), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    for axes, own in zip(grid, panels, strict=True):
        _draw_bars(axes, table, list(own), agents, styles)
        if logarithmic:
            axes.set_xscale("symlog", linthresh=_LINEAR_PERCENT)
        axes.axvline(100, color="black", lw=0.8)
        axes.axvline(0, color="black", lw=0.8)
        axes.grid(axis="x", alpha=0.3)
    axis = f", logarithmic beyond ±{_LINEAR_PERCENT}%" if logarithmic else ""
    figure.supxlabel(f"Human-normalised score (%){axis}; 100% is a human's", fontsize="medium")
    _legend(figure, grid[0], loc="outside upper left")
    return figure


def _draw_bars(
    axes: Axes, table: pd.DataFrame, levels: list[str], agents: list[str], styles: Styles
) -> None:
    thickness = 0.84 / len(agents)
    for i, agent in enumerate(agents):
        own = table[table["agent"] == agent].set_index("level").reindex(levels)
        places = np.arange(len(levels)) + (i - (len(agents) - 1) / 2) * thickness
        axes.barh(
            places,
            own["normalised"],
            thickness,
            label=agent,
            facecolor=styles.colour(agent),
            hatch=styles.hatch(agent),
            edgecolor="white",
            linewidth=0,
        )
        ends = own[["low", "high", "lowest", "highest"]].astype(float).to_numpy()
        several = (own["runs"] > 1).fillna(False).to_numpy(bool)
        whiskers = [
            [(low, y), (high, y)] for (low, high), y in zip(ends[:, :2], places, strict=True)
        ]
        axes.add_collection(LineCollection(whiskers, colors="black", linewidths=0.7), autolim=False)
        axes.plot(ends[several, 2:], places[several], "o", color="black", ms=1.6)
        for x in np.where(several[:, None], ends[:, 2:], ends[:, :2]).T:
            axes.update_datalim(np.stack([x, places], axis=1)[np.isfinite(x)], updatey=False)
    axes.set_yticks(
        np.arange(len(levels)), [level.replace("_", " ") for level in levels], fontsize=8
    )
    axes.set_ylim(len(levels) - 0.4, -0.6)


def _legend(figure: Figure, axes: Axes, **where: Any) -> None:
    """A legend above all axes, in as many columns as the labels' length leaves room for."""
    handles, labels = axes.get_legend_handles_labels()
    columns = int(figure.get_figwidth() * _LETTERS_AN_INCH / (8 + max(map(len, labels))))
    figure.legend(handles, labels, ncols=max(1, columns), **where)


def _with_interval(mean: float, deviation: float, count: float) -> str:
    """The mean over runs, with its 95% interval if they are several."""
    low, high = intervals.students_t(mean, deviation, count)
    return f"{mean:.3g}" + (f" [{low:.3g}, {high:.3g}]" if count > 1 else "")


def _short(value: float, place: int | None) -> str:
    """A number as the label of a tick."""
    del place
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"


def frames_unit(most: float) -> tuple[float, str]:
    """What to count frames in, and its name."""
    for unit, name in ((1e9, "billions"), (1e6, "millions"), (1e3, "thousands")):
        if most >= unit:
            return unit, name
    return 1.0, "one by one"

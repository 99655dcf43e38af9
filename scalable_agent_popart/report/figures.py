"""Draws the paper's figures and a population's, from the tables that the CSV files hold."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogFormatter, MaxNLocator, NullLocator

from scalable_agent_popart import scores
from scalable_agent_popart.errors import one_line
from scalable_agent_popart.population.lineage import Segment
from scalable_agent_popart.report.final_scores import IMPALA, RANDOM
from scalable_agent_popart.report.read import Member, Population
from scalable_agent_popart.report.render import interval
from scalable_agent_popart.report.tables import gradients_over_frames
from scalable_agent_popart.suites import Suite

_VIRIDIS = matplotlib.colormaps["viridis"]
# The paper's colours, in the palette of Okabe and Ito, which the colour-blind can tell apart.
_COLOURS = {
    "IMPALA": "#0072B2",
    "MultiHead-IMPALA": "#CC79A7",
    "PopArt-IMPALA": "#E69F00",
    "Pixel-IMPALA": "#009E73",
    "Pixel-PopArt-IMPALA": "#D55E00",
    IMPALA: "#7F7F7F",
    RANDOM: "#C7C7C7",
}
_BLACK, _GREY = "#000000", "#B0B0B0"
# Members' scores: steps are equal to the eye, and yellow is left out as too light for lines.
_SCORES: Colormap = ListedColormap(_VIRIDIS(np.linspace(0.05, 0.92, 256)))
# Variants of one agent share its colour. Dotted lines are published scores.
_LINES = ("-", "--", "-.", (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2, 2, 2, 2, 2)))
_HATCHES = ("", "////", "....", "xxxx", "----", "oo")
_MAX_LEVELS_A_PANEL = 32
_STATISTICS_A_ROW = 6
_RETURNS_A_ROW = 4
_LETTERS_AN_INCH = 12
_NAMES = 5  # Tasks of the smallest scales, and of the largest, that are named.
_PUBLISHED = "published "
_LINEAR = 10  # A logarithmic axis of scores is linear between minus and plus this.
_ORDERS_IN_VIEW = 6  # Orders of size; a nearly deterministic policy has next to no gradient.
_COPY_SIZE = 3.5  # Points.


class Style(NamedTuple):
    """The colours and lines that tell agents apart in all figures of a comparison."""

    colour: str
    line: str | tuple
    hatch: str


Styles = Mapping[str, Style]


def styles_of(agents: Sequence[tuple[str, str, str]]) -> Styles:
    """Returns a style by label for each agent, given its name, reward clipping and label.

    Only bars show agents of several reward clippings together, so each has lines of its own.
    """
    found = {own: Style(_COLOURS[own], _LINES[0], _HATCHES[0]) for own in (IMPALA, RANDOM)}
    seen = Counter[Any]()
    for name, clipping, label in agents:
        line, hatch = seen[name, clipping] % len(_LINES), seen[name] % len(_HATCHES)
        found[label] = Style(_COLOURS.get(name, _BLACK), _LINES[line], _HATCHES[hatch])
        seen.update([name, (name, clipping)])
    return found


def learning_curves(
    curves: pd.DataFrame,
    suite: Suite,
    targets: dict[str, float],
    styles: Styles,
    random: Iterable[float] = (),
) -> Figure:
    """Draws Figures 1, 2, 4 and 5: an aggregate score against frames.

    Means over runs have their 95% interval filled; published final scores (`targets`) are dotted,
    and a thin line is the score of random play, if that was measured.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    unit = _frames_axis(figure, curves["frames"].max(), len(suite.tasks))
    _draw_runs(axes, curves, suite.headline, unit, styles)
    bottom, top = axes.get_ylim()
    fixed = [
        (_PUBLISHED + agent, score, _COLOURS.get(agent, _BLACK), ":", 1.5)
        for agent, score in targets.items()
    ]
    fixed += [(RANDOM, score, _BLACK, "-", 0.7) for score in random]
    for text, score, colour, line, width in fixed:
        within = bottom <= score <= top
        label = f"{text}: {score:.1f}%{' (not in view)' * (not within)}"
        axes.plot([], [], ls=line, lw=width, color=colour, label=label)
        if within:
            axes.axhline(score, ls=line, lw=width, color=colour)
    axes.set_xlim(left=0)
    axes.set_ylabel(_score_axis(suite, suite.headline))
    axes.grid(alpha=0.3)
    _legend(figure, axes, loc="outside upper left", fontsize="small")
    return figure


def returns(table: pd.DataFrame, styles: Styles) -> Figure:
    """Draws each task's returns against frames, as `learning_curves` draws scores."""
    tasks = list(dict.fromkeys(table["task"]))
    columns = min(_RETURNS_A_ROW, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.8, 2.8 * rows + 1), layout="constrained")
    unit = _frames_axis(figure, table["frames"].max(), len(tasks))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True).flat
    for axes, task in itertools.zip_longest(grid, tasks):
        if task is None:
            axes.axis("off")
            continue
        _draw_runs(axes, table[table["task"] == task], "return", unit, styles)
        axes.set_title(_plain(task), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    figure.supylabel("Episode return", fontsize="medium")
    _legend(figure, *figure.axes, loc="outside upper left", fontsize="small")
    return figure


def _draw_runs(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    unit: float,
    styles: Styles,
    step: Literal["post"] | None = None,
) -> None:
    """Draws a column of each run against frames, and agents' means with their 95% intervals."""
    bands = []
    for agent, own in table.groupby("agent", sort=False):
        colour, line, _ = styles[str(agent)]
        look: dict[str, Any] = {
            "ls": line,
            "color": colour,
            "drawstyle": f"steps-{step}" if step else "default",
        }
        every = own.pivot_table(index="frames", columns="run", values=column)
        whole = every.notna().all(axis=1)
        runs = every[whole] if whole.any() else every
        count, means = own["run"].nunique(), runs.mean(axis=1)
        text = _plain(f"{agent}, {count} runs" if count > 1 else str(agent))
        axes.plot(runs.index / unit, means, lw=2, label=text, **look)
        if count > 1:
            ends = scores.students_t(means, runs.std(axis=1), runs.count(axis=1))
            alpha = 0.2 if count > 2 else 0.08  # The area of two runs mostly fills the figure.
            bands.append((runs.index / unit, *ends, colour, alpha))
            axes.plot(every.index / unit, every, lw=0.6, alpha=0.7, **look)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)
    for frames, low, high, colour, alpha in bands:
        axes.fill_between(frames, low, high, color=colour, alpha=alpha, lw=0, step=step)


def statistics(table: pd.DataFrame, styles: Styles) -> Figure:
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
    unit = _frames_axis(figure, table["frames"].max(), len(tasks), y=0.1 / height)
    for i, (task, own) in enumerate(table.groupby("task", sort=False)):
        above, below = outer[i].subgridspec(2, 1, hspace=0.08).subplots(squeeze=False)[:, 0]
        for (agent, _), run in own.groupby(["agent", "run"], sort=False):
            colour, line, _ = styles[agent]
            frames, shift, scale = run["frames"] / unit, run["shift"], run["scale"]
            above.plot(frames, shift, ls=line, color=colour, lw=1, label=_plain(agent))
            above.fill_between(frames, shift - scale, shift + scale, color=colour, alpha=0.2, lw=0)
            below.plot(frames, run["episode_return"], ls=line, color=colour, lw=1)
        above.set_title(_plain(task), fontsize=9)
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
    _legend(figure, figure.axes[0], loc="upper left")
    return figure


def scales(table: pd.DataFrame) -> Figure:
    """Draws tasks' scales on one axis an agent; of many, the smallest and the largest are named."""
    agents = list(dict.fromkeys(table["agent"]))
    ends = table.groupby(["agent", "run", "task"])["scale"].last()
    order = list(ends.groupby("task").mean().sort_values().index)
    colours = dict(zip(order, _VIRIDIS(np.linspace(0, 0.93, len(order))), strict=True))
    figure = Figure(figsize=(5.8 * len(agents) + 0.8, 4.6), layout="constrained")
    grid = figure.subplots(1, len(agents), squeeze=False, sharex=True, sharey=True)[0]
    unit = _frames_axis(figure, table["frames"].max(), len(order))
    for axes, agent in zip(grid, agents, strict=True):
        own = table[table["agent"] == agent]
        for (task, _), line in own.groupby(["task", "run"], sort=False):
            axes.plot(line["frames"] / unit, line["scale"], color=colours[task], lw=1)
        axes.set_yscale("log")
        axes.set_title(_plain(agent), fontsize=9)
        axes.grid(alpha=0.3)
        last = ends[agent].dropna().groupby("task").agg(["mean", "std", "count"])
        low, high = scores.students_t(last["mean"], last["std"], last["count"])
        last = last.assign(value=last["mean"], low=low, high=high)
        last = last.sort_values("mean", ascending=False)
        many = len(last) > 2 * _NAMES
        for task, own in (pd.concat([last[:_NAMES], last[-_NAMES:]]) if many else last).iterrows():
            label = _plain(f"{task}: {interval(own, '.3g')}")
            axes.plot([], [], color=colours[task], label=label)
        title = f"{_NAMES} largest and smallest at the end" if many else "at the end"
        axes.legend(
            fontsize=7, title=title, title_fontsize=7, loc="upper left", bbox_to_anchor=(1, 1)
        )
    grid[0].set_ylabel(r"$\sigma$ of each task")
    return figure


def gradients(table: pd.DataFrame) -> Figure:
    """Draws each task's size of the policy gradient, and its part with the 95% interval filled."""
    table = gradients_over_frames(table[table["loss"] == "policy"])
    agents, tasks = (list(dict.fromkeys(table[name])) for name in ("agent", "task"))
    colours = _VIRIDIS(np.linspace(0, 0.93, len(tasks)))
    width = (3.4 if len(agents) < 5 else 2.6) * len(agents) + 0.8
    columns = _legend_columns(width, tasks)
    figure = Figure(figsize=(width, 5.4 + 0.2 * -(-len(tasks) // columns)), layout="constrained")
    grid = figure.subplots(2, len(agents), squeeze=False, sharex=True, sharey="row")
    unit = _frames_axis(figure, table["frames"].max(), len(tasks))
    for (above, below), agent in zip(grid.T, agents, strict=True):
        own = table[table["agent"] == agent]
        for task, colour in zip(tasks, colours, strict=True):
            line = own[own["task"] == task]
            frames = line["frames"] / unit
            above.plot(frames, line["norm"], color=colour, label=_plain(task))
            below.plot(frames, line["part"], color=colour)
            ends = line["low_part"], line["high_part"]
            below.fill_between(frames, *ends, color=colour, alpha=0.12, lw=0)
        above.set_yscale("log")
        above.set_title(_plain(agent), fontsize=9)
        below.set_ylim(0, 1)
        for axes in (above, below):
            axes.grid(alpha=0.3)
    largest = float(table["norm"].max())
    if largest > 0:
        smallest = max(float(table["norm"].min()), largest / 10**_ORDERS_IN_VIEW)
        grid[0, 0].set_ylim(smallest / 2, largest * 2)
    grid[0, 0].set_ylabel("size of the policy gradient")
    grid[1, 0].set_ylabel("part of all sizes")
    _legend(figure, grid[0, 0], loc="outside upper left", fontsize="small")
    return figure


def gradient_parts(table: pd.DataFrame, styles: Styles) -> Figure:
    """Draws each task's part of the policy gradient, the last agent's largest first."""
    by_task = 100 * table.pivot_table(index="task", columns="agent", values="value", sort=False)
    by_task = by_task.sort_values(by_task.columns[-1], ascending=False)
    figure = Figure(figsize=(1.5 + 0.2 * len(by_task), 4), layout="constrained")
    axes, thickness = figure.subplots(), 0.84 / len(by_task.columns)
    for i, agent in enumerate(by_task):
        x = np.arange(len(by_task)) + (i - (len(by_task.columns) - 1) / 2) * thickness
        style = styles[str(agent)]
        axes.bar(
            x, by_task[agent], thickness, label=_plain(str(agent)), facecolor=style.colour,
            hatch=style.hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
    even = 100 / len(by_task)
    axes.axhline(even, color="black", lw=0.8, label="an even part")
    axes.set_yscale("log")
    axes.set_ylim(even / 1000, min(2 * by_task.max(axis=None), 100))
    names = [_plain(str(task)) for task in by_task.index]
    axes.set_xticks(range(len(by_task)), names, rotation=90, fontsize=8)
    axes.set_xlim(-0.6, len(by_task) - 0.4)
    axes.set_ylabel("part of the policy gradient (%)")
    axes.grid(axis="y", alpha=0.3)
    _legend(figure, axes, loc="outside upper left", fontsize="small")
    return figure


def breakdown(table: pd.DataFrame, suite: Suite, styles: Styles) -> Figure:
    """Draws Figures 8 and 9: a bar per level and agent; the last of our agents' best levels first.

    The axis is logarithmic where the suite's headline is a median.
    """
    logarithmic = suite.headline == "median"
    agents = list(dict.fromkeys(table["agent"]))
    by_level = table.pivot_table(index="task", columns="agent", values="value", sort=False)
    ours = [agent for agent in agents if agent not in (IMPALA, RANDOM)]
    levels = list(by_level.sort_values(ours[-1], ascending=False).index)
    panels = np.array_split(np.array(levels), -(-len(levels) // _MAX_LEVELS_A_PANEL))
    height = max(3, 1.6 + max(map(len, panels)) * (0.11 * len(agents) + 0.12))
    figure = Figure(figsize=(6.5 * len(panels) + 1, height), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    for axes, names in zip(grid, panels, strict=True):
        thickness = 0.84 / len(agents)
        for i, agent in enumerate(agents):
            own = table[table["agent"] == agent].set_index("task").reindex(names)
            y = np.arange(len(names)) + (i - (len(agents) - 1) / 2) * thickness
            axes.barh(
                y, own["value"], thickness, label=_plain(agent), facecolor=styles[agent].colour,
                hatch=styles[agent].hatch, edgecolor="white", linewidth=0,
            )  # fmt: skip
            intervals = own[["low", "high"]].astype(float).to_numpy()
            ranges = own[["lowest", "highest"]].astype(float).to_numpy()
            several = (own["runs"] > 1).fillna(False).to_numpy(bool)
            whiskers = np.stack([intervals, np.stack([y, y], axis=1)], axis=2)
            lines = LineCollection(list(whiskers), colors="black", linewidths=0.7)
            axes.add_collection(lines, autolim=False)
            axes.plot(ranges[several], y[several], "o", color="black", ms=1.6)
            for x in np.where(several[:, None], ranges, intervals).T:
                axes.update_datalim(np.stack([x, y], axis=1)[np.isfinite(x)], updatey=False)
        axes.set_yticks(range(len(names)), [_plain(name) for name in names], fontsize=8)
        axes.set_ylim(len(names) - 0.4, -0.6)
        if logarithmic:
            axes.set_xscale("symlog", linthresh=_LINEAR)
        for score in (100, 0) if suite.normalised else (0,):
            axes.axvline(score, color="black", lw=0.8)
        axes.grid(axis="x", alpha=0.3)
    axis = _score_axis(suite)
    axis += f", logarithmic beyond ±{_LINEAR}{suite.unit}" * logarithmic
    axis += f"; 100% is {_plain(suite.full_score)}" * suite.normalised
    figure.supxlabel(axis, fontsize="medium")
    _legend(figure, grid[0], loc="outside upper left")
    return figure


def profiles(table: pd.DataFrame, suite: Suite, styles: Styles) -> Figure:
    """Draws the share of tasks in which an agent is above each score, as `learning_curves` does."""
    thresholds = np.unique(table["value"])
    shares = [
        pd.DataFrame({"frames": thresholds, "agent": agent, "run": run}).assign(
            share=scores.performance_profile(own["value"].to_numpy(), thresholds)
        )
        for (agent, run), own in table.groupby(["agent", "run"], sort=False)
    ]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    _draw_runs(axes, pd.concat(shares), "share", 1, styles, step="post")
    if suite.headline == "median":
        axes.set_xscale("symlog", linthresh=_LINEAR)
    axes.set_xlabel(f"{_score_axis(suite)}, τ")
    axes.set_ylabel("Tasks with a score above τ (%)")
    axes.grid(alpha=0.3)
    _legend(figure, axes, loc="outside upper left", fontsize="small")
    return figure


def population(shown: Population) -> Figure:
    """Draws fitness and each tuned hyperparameter of a population, against members' own frames.

    The colour is the present score; the black ancestry is what the report's curves follow.
    """
    members = sorted(shown.members.values(), key=lambda own: own.rank)  # The fittest on top.
    tuned, suite = shown.shown.config.tuned, shown.shown.config.suite
    panels = {flag: {own.number: _steps(own, flag) for own in members} for flag in tuned}
    fitness = {own.number: _fitness(own) for own in members}
    rated = not tuned or any(map(len, fitness.values()))
    if rated:
        panels = {f"fitness at comparisons ({suite.unit or 'return'})": fitness, **panels}
    # Panels come in pairs: where there is one too many, fitness has a row.
    wide = rated and len(panels) % 2
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(10, 1.1 + 2.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    farthest = max(member.frames for member in members)
    unit = _frames_axis(figure, farthest, len(suite.tasks), "A member's own environment frames")
    known = [member.score for member in members if member.score is not None]
    low, high = min(known, default=0.0), max(known, default=100.0)
    norm = Normalize(low, high) if high > low else Normalize(low - 1, low + 1)
    ancestry_of = f"ancestry of {shown.shown.name}{', the best' * (shown.shown is shown.best)}"
    black: dict[str, Any] = {"color": "black", "zorder": 4}
    halo = [withStroke(linewidth=3.2, foreground="white")]
    for i, (title, of_members) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[0, :] if wide and not i else grid[divmod(i + wide, 2)])
        axes.set_title(_plain(title), fontsize=10)
        steps = title in tuned
        draw: dict[str, Any] = {"drawstyle": "steps-post" if steps else "default"}
        for member in members:
            curve = of_members[member.number]
            colour = _GREY if member.score is None else _SCORES(norm(member.score))
            width = 0.35 if steps else 0.9  # What changes at once is paler than what stays.
            look = {"color": colour, "lw": width, "alpha": 0.8, "label": "a member"} | draw
            axes.plot(curve.index / unit, curve["value"], **look)
            if steps:
                ends = curve.index[:-1] / unit, curve.index[1:] / unit
                axes.hlines(curve["value"].iloc[:-1], *ends, color=colour, lw=1)
            copied = curve.loc[curve["copied"], "value"]
            axes.plot(
                copied.index / unit, copied, "o", color=colour, ms=_COPY_SIZE,
                mec="white", mew=0.4, label="resumes from a copy",
            )  # fmt: skip
        ancestry = [
            _cut_steps(of_members[own.member], own, shown.end(own))
            if steps
            else _cut_fitness(of_members[own.member], own, goes_on=n > 0)
            for n, own in enumerate(shown.segments)
        ]
        for own in ancestry:
            line = {"lw": 1.8, "path_effects": halo, "label": ancestry_of, **black, **draw}
            axes.plot(own.index / unit, own, **line)
        for before, after in itertools.pairwise(ancestry):
            if len(before) and len(after):
                link = pd.concat([before[-1:], after[:1]])
                between = "from the copied to the copy"
                axes.plot(link.index / unit, link, lw=1.2, ls=":", label=between, **black)
        values = pd.concat([curve["value"] for curve in of_members.values()]).dropna()
        if steps and len(values) and (values > 0).all():
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(LogFormatter())
            minor = LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5))
            axes.yaxis.set_minor_formatter(minor)
        axes.tick_params(labelsize=8, which="both")
        axes.grid(alpha=0.3)
        axes.set_xlim(0, max(farthest, 1) / unit * 1.01)
    text = f"{_score_axis(suite, 'mean_capped')} now"
    figure.colorbar(ScalarMappable(norm, _SCORES), ax=figure.axes, label=text, aspect=40)
    _legend(figure, figure.axes[0], loc="outside upper left", fontsize="small")
    return figure


def _curve(points: Sequence[tuple[int, float | None, bool]]) -> pd.DataFrame:
    """Makes a member's curve by frames: its values, and whether it resumes from a copy there."""
    table = pd.DataFrame(points, columns=["frames", "value", "copied"]).set_index("frames")
    return table.astype({"value": float, "copied": bool})


def _fitness(member: Member) -> pd.DataFrame:
    """Returns the fitness at each comparison, of the weights before it and of those copied."""
    points: list[tuple[int, float | None, bool]] = []
    for event in member.lineage:  # There is no fitness where training had diverged.
        if event.comparison:
            points.append((event.frames, event.fitness, False))
        if event.copied:
            points.append((event.frames, event.partner_fitness, True))
    return _curve(points)


def _cut_fitness(curve: pd.DataFrame, segment: Segment, goes_on: bool) -> pd.Series:
    """Cuts a fitness to a segment, from the copy on with which it `goes_on`."""
    frames, copied = curve.index.to_numpy(), curve["copied"].to_numpy()
    inside = segment.holds(frames)
    inside &= ~(copied & (frames == segment.last))  # What came of a comparison at the end.
    if goes_on:
        inside[np.flatnonzero(copied & (frames == segment.first))[-1:]] = True
    return curve.loc[inside, "value"]


def _steps(member: Member, flag: str) -> pd.DataFrame:
    """Returns a hyperparameter's values from the start, and from each comparison, until now."""
    points = [(own.frames, own.hyperparameters.get(flag), own.copied) for own in member.lineage]
    last = points[-1][1] if points else None
    return _curve([*points, (member.frames, last, False)])


def _cut_steps(curve: pd.DataFrame, segment: Segment, last: int) -> pd.Series:
    """Cuts a hyperparameter's steps to a segment, which ends at `last`."""
    at = curve.index.to_numpy()
    frames = np.array([segment.first, *at[(at > segment.first) & (at < last)], last])
    steps = np.searchsorted(at, frames[:-1], side="right") - 1
    values = curve["value"].to_numpy()[np.maximum(steps, 0)]
    return pd.Series([*values, values[-1]], frames)


def _score_axis(suite: Suite, aggregate: str = "") -> str:
    """Returns the name of an axis of scores, or of an aggregate of several, with its unit."""
    aggregate = aggregate.replace("_", " ") * (len(suite.tasks) > 1)
    name = f"{aggregate} {suite.score_name}".strip().capitalize()
    return name + f" ({suite.unit})" * suite.normalised


def _plain(text: str) -> str:
    """Returns text for a figure to show as it is, not as a formula.

    It does not begin with an underscore, by which a legend would leave it out.
    """
    return " " * text.startswith("_") + one_line(text).replace("$", r"\$")


def _frames_axis(
    figure: Figure, most: float, num_tasks: int, of: str = "Environment frames", **where: Any
) -> float:
    """Labels a figure's axis of frames, and returns the unit in which they are counted there."""
    units = {1e9: "billions", 1e6: "millions", 1e3: "thousands", 1.0: "one by one"}
    unit = next((unit for unit in units if most >= unit), 1.0)
    text = f"{of} ({units[unit]})" + ", summed over tasks" * (num_tasks > 1)
    figure.supxlabel(text, fontsize="medium", **where)
    return unit


def _legend(figure: Figure, *parts: Axes, **where: Any) -> None:
    """Adds a legend whose title has what all labels share; names of published scores are whole."""
    every = [axes.get_legend_handles_labels() for axes in parts]
    # Several lines may have the same, and a line may be in some of the axes only.
    handle_of = {text: line for own in every for line, text in zip(*own, strict=True)}
    fixed = (_PUBLISHED, IMPALA, RANDOM)
    words = {text: text.split(", ") for text in handle_of if not text.startswith(fixed)}
    every_word = [own for label in words.values() for own in label]
    shared = [own for own in dict.fromkeys(every_word) if every_word.count(own) == len(words)]
    if len(words) == 1:  # A single curve keeps its name.
        shared = shared[1:]
    short = {t: ", ".join(w for w in own if w not in shared) for t, own in words.items()}
    labels = [short.get(text, text) or words[text][0] for text in handle_of]
    columns = _legend_columns(figure.get_figwidth(), labels)
    title = ", ".join(shared) or None
    options = {"ncols": columns, "title": title, "alignment": "left", **where}
    figure.legend(handle_of.values(), labels, title_fontsize="small", **options)


def _legend_columns(width: float, labels: Sequence[str]) -> int:
    """Counts the columns of labels that fit into a figure's width in inches."""
    return max(1, int(width * _LETTERS_AN_INCH / (8 + max(map(len, labels)))))

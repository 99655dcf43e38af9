"""How fitness and hyperparameters went in a population, member by member."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogFormatter

from scalable_agent_popart.report.ancestry import Segment
from scalable_agent_popart.report.figures import frames_unit
from scalable_agent_popart.report.populations import Member, Population

_COLUMNS = 2
_PANEL_HEIGHT = 2.6  # Inches.
# Of equal steps to the eye, also to the colour-blind's; without the yellow, too light for lines.
_SCORES: Colormap = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.05, 0.92, 256)))
_NO_SCORE = "#B0B0B0"
_COPY_SIZE = 3.5
_HALO = withStroke(linewidth=3.2, foreground="white")


class _Curve(NamedTuple):
    """Something about a member over its own frames; `copied` where it goes on from a copy."""

    frames: np.ndarray
    values: np.ndarray
    copied: np.ndarray


def training(population: Population) -> Figure:
    """Fitness and each tuned hyperparameter, against the members' own frames.

    A line a member, coloured by its present score, with a dot where it goes on from a copy. In
    black the ancestry that the report's curves follow, dotted from the frames at which a
    member's checkpoint was taken to those at which another went on from it.
    """
    tuned, members = population.config.tuned, population.members
    fitness = {number: _fitness(member) for number, member in members.items()}
    compared = any(len(curve.frames) for curve in fitness.values())
    # With fitness, panels come in pairs: where there is one too many, fitness has a row.
    wide = compared and len(tuned) % _COLUMNS == 0
    panels = len(tuned) + compared + wide
    rows = -(-panels // _COLUMNS)
    figure = Figure(figsize=(10, 1.1 + _PANEL_HEIGHT * rows), layout="constrained")
    grid = figure.add_gridspec(rows, _COLUMNS)
    most = max(member.frames for member in members.values())
    unit, name = frames_unit(most)
    norm = _norm(population)
    if compared:
        axes = figure.add_subplot(grid[0, :] if wide else grid[0, 0])
        axes.set_title("fitness at comparisons (%)", fontsize=10)
        ancestry = [
            _fitness_along(fitness[segment.member], segment, goes_on=place > 0)
            for place, segment in enumerate(population.segments)
        ]
        _draw(axes, population, fitness, ancestry, norm, unit)
    for place, flag in enumerate(tuned, start=panels - len(tuned)):
        axes = figure.add_subplot(grid[divmod(place, _COLUMNS)])
        axes.set_title(flag, fontsize=10)
        curves = {number: _hyperparameter(member, flag) for number, member in members.items()}
        ancestry = [_along(curves[s.member], s, population) for s in population.segments]
        _draw(axes, population, curves, ancestry, norm, unit, steps=True)
    for axes in figure.axes:
        axes.set_xlim(0, max(most, 1) / unit * 1.01)
    figure.supxlabel(f"A member's own environment frames ({name}), summed over tasks", fontsize=10)
    scores = ScalarMappable(norm, _SCORES)
    figure.colorbar(
        scores, ax=figure.axes, label="score now: mean capped, human-normalised (%)", aspect=40
    )
    _legend(figure, population)
    return figure


def _fitness(member: Member) -> _Curve:
    """At each comparison, of the weights before it and, if they are copied, of those after."""
    points: list[tuple[int, float, bool]] = []
    for event in member.lineage:
        if event.comparison:
            points.append((event.frames, _percent(event.fitness), False))
        if event.copied:
            points.append((event.frames, _percent(event.partner_fitness), True))
    frames, values, copied = np.array(points, np.float64).reshape(-1, 3).T
    return _Curve(frames, values, copied > 0)


def _percent(fitness: float | None) -> float:
    """A fitness; NaN where there is none, as where training had diverged."""
    return np.nan if fitness is None else fitness


def _hyperparameter(member: Member, flag: str) -> _Curve:
    """From the start, or each comparison, on; until now."""
    events = member.lineage
    values = [event.hyperparameters.get(flag, np.nan) for event in events]
    return _Curve(
        np.array([*(event.frames for event in events), member.frames]),
        np.array([*values, *values[-1:]] or [np.nan]),
        np.array([*(event.copied for event in events), False]),
    )


def _along(curve: _Curve, segment: Segment, population: Population) -> tuple[np.ndarray, ...]:
    """The part of a step curve within a segment: frames and values."""
    last = population.members[segment.member].frames if segment.last is None else segment.last
    inside = (curve.frames > segment.first) & (curve.frames < last)
    frames = np.array([segment.first, *curve.frames[inside], last])
    places = np.searchsorted(curve.frames, frames[:-1], side="right") - 1
    values = curve.values[np.maximum(places, 0)]
    return frames, np.array([*values, values[-1]])


def _fitness_along(curve: _Curve, segment: Segment, goes_on: bool) -> tuple[np.ndarray, ...]:
    """The part of a fitness within a segment, from the copy on with which it `goes_on`."""
    last = np.inf if segment.last is None else segment.last
    inside = (curve.frames > segment.first) & (curve.frames <= last)
    inside &= ~(curve.copied & (curve.frames == last))  # What came of a comparison at the end.
    if goes_on:
        copies = np.flatnonzero(curve.copied & (curve.frames == segment.first))
        inside[copies[-1:]] = True
    return curve.frames[inside], curve.values[inside]


def _draw(
    axes: Axes,
    population: Population,
    curves: Mapping[int, _Curve],
    ancestry: Sequence[tuple[np.ndarray, ...]],
    norm: Normalize,
    unit: float,
    steps: bool = False,
) -> None:
    style = "steps-post" if steps else "default"
    order = sorted(population.members.values(), key=lambda member: member.standing)
    for member in order:  # The fittest on top.
        frames, values, copied = curves[member.number]
        colour = _colour(member, norm)
        width = 0.35 if steps else 0.9  # What changes at once is paler than what stays.
        axes.plot(frames / unit, values, color=colour, lw=width, alpha=0.8, drawstyle=style)
        if steps:
            axes.hlines(values[:-1], frames[:-1] / unit, frames[1:] / unit, color=colour, lw=1)
        axes.plot(
            frames[copied] / unit, values[copied], "o", color=colour, ms=_COPY_SIZE, mec="white",
            mew=0.4,
        )  # fmt: skip
    for frames, values in ancestry:
        axes.plot(
            frames / unit, values, color="black", lw=1.8, drawstyle=style, path_effects=[_HALO],
            zorder=4,
        )  # fmt: skip
    for (before, left), (after, taken) in itertools.pairwise(ancestry):
        if len(before) and len(after):
            x, y = np.array([before[-1], after[0]]) / unit, (left[-1], taken[0])
            axes.plot(x, y, color="black", lw=1.2, ls=":", zorder=4)
    shown = np.concatenate([curve.values for curve in curves.values()])
    shown = shown[np.isfinite(shown)]
    if steps and len(shown) and (shown > 0).all():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
    axes.tick_params(labelsize=8, which="both")
    axes.grid(alpha=0.3)


def _norm(population: Population) -> Normalize:
    """From the lowest score to the highest; some range if there is but one."""
    known = [member.score for member in population.members.values() if member.score is not None]
    low, high = min(known, default=0.0), max(known, default=100.0)
    return Normalize(low, high) if high > low else Normalize(low - 1, low + 1)


def _colour(member: Member, norm: Normalize) -> str | tuple[float, ...]:
    return _NO_SCORE if member.score is None else _SCORES(norm(member.score))


def _legend(figure: Figure, population: Population) -> None:
    best = ", the best" if population.shown is population.best else ""
    middle = _SCORES(0.5)
    handles = [
        Line2D([], [], color=middle, lw=0.9, label="a member"),
        Line2D([], [], color=middle, marker="o", ms=_COPY_SIZE, lw=0, label="goes on from a copy"),
        Line2D([], [], color="black", lw=1.8, label=f"ancestry of {population.shown.name}{best}"),
        Line2D([], [], color="black", lw=1.2, ls=":", label="from the copied to the copy"),
    ]
    figure.legend(handles=handles, ncols=len(handles), loc="outside upper left", fontsize="small")

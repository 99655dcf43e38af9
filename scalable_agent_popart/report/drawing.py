"""Draws what all figures of a report share: agents' looks, runs and their means, axes, legends."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalable_agent_popart import scores
from scalable_agent_popart.errors import one_line
from scalable_agent_popart.report.final_scores import IMPALA, RANDOM
from scalable_agent_popart.suites import Suite

VIRIDIS = matplotlib.colormaps["viridis"]
# The paper's colours, in the palette of Okabe and Ito, which the colour-blind can tell apart.
COLOURS = {
    "IMPALA": "#0072B2",
    "MultiHead-IMPALA": "#CC79A7",
    "PopArt-IMPALA": "#E69F00",
    "Pixel-IMPALA": "#009E73",
    "Pixel-PopArt-IMPALA": "#D55E00",
    IMPALA: "#7F7F7F",
    RANDOM: "#C7C7C7",
}
BLACK = "#000000"
_OTHERS = (BLACK, "#56B4E9", "#A6761D", "#7570B3")  # The colours of agents with other names.
# Variants of one agent share its colour. Dotted lines are published scores.
_LINES = ("-", "--", "-.", (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2, 2, 2, 2, 2)))
_HATCHES = ("", "////", "....", "xxxx", "----", "oo")
_LETTERS_AN_INCH = 12
PUBLISHED = "published "
LINEAR = 10  # A logarithmic axis of scores is linear between minus and plus this.


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
    styles = {name: Style(COLOURS[name], _LINES[0], _HATCHES[0]) for name in (IMPALA, RANDOM)}
    others = dict.fromkeys(name for name, *_ in agents if name not in COLOURS)
    colours = COLOURS | dict(zip(others, itertools.cycle(_OTHERS)))
    seen = Counter[Any]()
    for name, clipping, label in agents:
        line, hatch = seen[name, clipping] % len(_LINES), seen[name] % len(_HATCHES)
        styles[label] = Style(colours[name], _LINES[line], _HATCHES[hatch])
        seen.update([name, (name, clipping)])
    return styles


def draw_runs(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    unit: float,
    styles: Styles,
    step: Literal["post"] | None = None,
) -> None:
    """Draws a column of each run against frames, and agents' means with their 95% intervals."""
    bands = []
    for agent, of_agent in table.groupby("agent", sort=False):
        colour, line, _ = styles[str(agent)]
        drawstyle = f"steps-{step}" if step else "default"
        drawn: dict[str, Any] = {"ls": line, "color": colour, "drawstyle": drawstyle}
        every = of_agent.pivot_table(index="frames", columns="run", values=column)
        whole = every.notna().all(axis=1)
        runs = every[whole] if whole.any() else every
        drawn["marker"] = "o" if len(runs) == 1 else ""  # No line can be drawn through one point.
        count, means = len(every.columns), runs.mean(axis=1)
        text = plain(f"{agent}, {count} runs" if count > 1 else str(agent))
        axes.plot(runs.index / unit, means, lw=2, label=text, **drawn)
        if count > 1:
            ends = scores.students_t(means, runs.std(axis=1), runs.count(axis=1))
            alpha = 0.2 if count > 2 else 0.08  # The area of two runs mostly fills the figure.
            bands.append((runs.index / unit, *ends, colour, alpha))
            axes.plot(every.index / unit, every, lw=0.6, alpha=0.7, **drawn)
    axes.set_ylim(axes.get_ylim())
    for frames, low, high, colour, alpha in bands:
        axes.fill_between(frames, low, high, color=colour, alpha=alpha, lw=0, step=step)


def draw_bars(
    axes: Axes, table: pd.DataFrame, styles: Styles, horizontal: bool = False
) -> dict[str, np.ndarray]:
    """Draws a bar per row and agent, which are columns; returns the places of agents' bars."""
    thickness, middle = 0.84 / len(table.columns), (len(table.columns) - 1) / 2
    draw: Callable[..., Any] = axes.barh if horizontal else axes.bar
    places = {}
    for i, agent in enumerate(map(str, table)):
        places[agent] = np.arange(len(table)) + (i - middle) * thickness
        draw(
            places[agent], table[agent], thickness, label=plain(agent), edgecolor="white",
            linewidth=0, facecolor=styles[agent].colour, hatch=styles[agent].hatch,
        )  # fmt: skip
    return places


def score_axis(suite: Suite, aggregate: str = "") -> str:
    """Returns the name of an axis of scores, or of an aggregate of several, with its unit."""
    aggregate = aggregate.replace("_", " ") * (len(suite.tasks) > 1)
    name = f"{aggregate} {suite.score_name}".strip().capitalize()
    return name + f" ({suite.unit})" * suite.normalised


def plain(text: str) -> str:
    """Returns text for a figure to show as it is, without formulas and with its underscore."""
    return " " * text.startswith("_") + one_line(text).replace("$", r"\$")


def frames_axis(
    figure: Figure, most: float, num_tasks: int, of: str = "Environment frames", **where: Any
) -> float:
    """Labels a figure's axis of frames, and returns the unit in which they are counted there."""
    units = {1e9: "billions", 1e6: "millions", 1e3: "thousands", 1.0: "one by one"}
    unit = next((unit for unit in units if most >= unit), 1.0)
    text = f"{of} ({units[unit]})" + ", summed over tasks" * (num_tasks > 1)
    figure.supxlabel(text, fontsize="medium", **where)
    return unit


def legend(figure: Figure, *parts: Axes, **options: Any) -> None:
    """Adds a legend whose title has what all labels share; names of published scores are whole."""
    # Several lines may have the same label, and a line may be in some of the axes only.
    handles: dict[str, Any] = {}
    for axes in parts:
        lines, texts = axes.get_legend_handles_labels()
        handles |= dict(zip(texts, lines, strict=True))
    fixed = (PUBLISHED, IMPALA, RANDOM)
    words = {text: text.split(", ") for text in handles if not text.startswith(fixed)}
    counts = Counter(word for words_of_label in words.values() for word in words_of_label)
    shared = [word for word, count in counts.items() if count == len(words)]
    if len(words) == 1:  # A single curve keeps its name.
        shared = shared[1:]
    labels = []
    for text in handles:
        rest = [word for word in words.get(text, [text]) if word not in shared]
        labels.append(", ".join(rest) or words[text][0])
    given = {"loc": "outside upper left", "fontsize": "small", **options}
    figure.legend(
        handles.values(), labels, ncols=legend_columns(figure.get_figwidth(), labels),
        title=", ".join(shared) or None, title_fontsize="small", alignment="left", **given,
    )  # fmt: skip


def legend_columns(width: float, labels: Sequence[str]) -> int:
    """Counts the columns of labels that fit into a figure's width in inches."""
    return max(1, int(width * _LETTERS_AN_INCH / (8 + max(map(len, labels)))))

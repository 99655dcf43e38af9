"""Learning curves: scores over tasks, and each task's returns, against frames."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart import scores
from scalable_agent_popart.report import drawing
from scalable_agent_popart.report.chapter import (
    MAX_COLUMNS,
    Chapter,
    agents_numbers,
    long,
    several_runs,
)
from scalable_agent_popart.report.compare import RUN, Comparison
from scalable_agent_popart.report.drawing import Styles
from scalable_agent_popart.report.final_scores import RANDOM
from scalable_agent_popart.report.read import Run
from scalable_agent_popart.suites import Suite

_POINTS = 200  # Points of a learning curve, from the start to the end of the longest run.
_RETURNS_A_ROW = 4
_WORDS = """
<h3>Learning curves</h3>
{% if scores %}
{{ scores }}
<p>A line is the mean of each task's last {{ recent }} training episodes, once every task has one.
{% if several_runs %}
Thick lines are agents' means over runs, thin lines their runs, and areas the means' 95% intervals
by Student's t, cut off at the axis.
{% endif %}
The points are in {{ link(scores_file) }}.
{% if published %}
Dotted lines are published final scores, in the colours of their agents.
{% endif %}
</p>
{% else %}
<p>None yet: no run has finished an episode of every task that is scored.</p>
{% endif %}
{% if returns %}
{{ returns }}
<p>Raw returns of each task in training
{{- ", with lines and areas as in learning curves" if several_returns else "" }}.
The points are in {{ link(returns_file) }}.</p>
{% endif %}
"""


def tabulate_returns(comparison: Comparison, tasks: Sequence[str]) -> pd.DataFrame:
    """Makes a row per run, task and point from its first episode on: the mean of recent returns."""

    def read(run: Run) -> pd.DataFrame:
        table = long(_curves(comparison, run, tasks), "task").rename(columns={"value": "return"})
        return table[["task", "frames", "return"]]

    return comparison.tabulate(read, every_run=True)


def tabulate_scores(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per run and point, from where every task with reference scores has an episode."""
    references = comparison.suite.reference_scores
    tasks = [task for task in comparison.suite.tasks if task in references]

    def read(run: Run) -> pd.DataFrame:
        if not tasks:
            return pd.DataFrame(columns=["frames", *scores.Aggregate._fields])
        recent = _curves(comparison, run, tasks).dropna()
        normalised = [scores.normalise(recent[t].to_numpy(), references[t]) for t in tasks]
        aggregates = scores.aggregate(np.array(normalised))._asdict()  # From [tasks, points].
        return pd.DataFrame({"frames": recent.index, **aggregates})

    return comparison.tabulate(read, every_run=True)


def _curves(comparison: Comparison, run: Run, tasks: Sequence[str]) -> pd.DataFrame:
    """Makes a row per point of a run's learning curves, by frames: each task's recent returns."""
    runs = [other for _, other in comparison.runs if other.from_file == run.from_file]
    if run.from_file:
        grid = np.unique(np.concatenate([other.logs["episodes"]["frames"] for other in runs]))
    else:
        longest = max(other.frames for other in runs)
        grid = np.linspace(0, longest, _POINTS + 1)[1:].astype(np.int64)
    frames = grid[grid <= run.frames]
    returns = {task: run.recent_means(task, frames) for task in tasks}
    return pd.DataFrame(returns, index=pd.Index(frames, name="frames"))


def draw_scores(
    curves: pd.DataFrame,
    suite: Suite,
    targets: dict[str, float],
    styles: Styles,
    random: Iterable[float] = (),
) -> Figure:
    """Draws Figures 1, 2, 4 and 5: an aggregate score against frames, and published `targets`."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    unit = drawing.frames_axis(figure, curves["frames"].max(), len(suite.tasks))
    drawing.draw_runs(axes, curves, suite.headline, unit, styles)
    bottom, top = axes.get_ylim()
    lines: list[tuple[str, float, dict[str, Any]]] = []
    for agent, score in targets.items():
        colour = drawing.COLOURS.get(agent, drawing.BLACK)
        lines.append((drawing.PUBLISHED + agent, score, {"ls": ":", "lw": 1.5, "color": colour}))
    lines += [(RANDOM, score, {"lw": 0.7, "color": drawing.BLACK}) for score in random]
    for text, score, look in lines:
        hidden = "" if bottom <= score <= top else " (not in view)"
        axes.axhline(score, label=f"{text}: {score:.1f}%{hidden}", **look)
    axes.set_xlim(left=0)
    axes.set_ylabel(drawing.score_axis(suite, suite.headline))
    axes.grid(alpha=0.3)
    drawing.legend(figure, axes)
    return figure


def draw_returns(table: pd.DataFrame, styles: Styles) -> Figure:
    """Draws each task's returns against frames, as `draw_scores` draws scores."""
    tasks = list(dict.fromkeys(table["task"]))
    columns = min(_RETURNS_A_ROW, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.8, 2.8 * rows + 1), layout="constrained")
    unit = drawing.frames_axis(figure, table["frames"].max(), len(tasks))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True).flat
    for axes, task in itertools.zip_longest(grid, tasks):
        if task is None:
            axes.axis("off")
            continue
        drawing.draw_runs(axes, table[table["task"] == task], "return", unit, styles)
        axes.set_title(drawing.plain(task), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    figure.supylabel("Episode return", fontsize="medium")
    drawing.legend(figure, *figure.axes)
    return figure


def means_over_training(curves: pd.DataFrame, scored: pd.DataFrame) -> pd.DataFrame:
    """Returns the means of the learning curves' points, of the runs whose final scores count."""
    if not len(scored):
        return scored
    groups = curves[curves["run"].isin(scored["run"])].groupby(RUN, sort=False)
    frames = groups["frames"].agg(fewest_frames="max", most_frames="max")
    rows = long(groups[list(scores.Aggregate._fields)].mean(), "task").join(frames, on=RUN)
    protocol = scored["protocol"].iloc[0]
    return rows.assign(measure="mean_over_training", source="training", protocol=protocol)


def write(chapter: Chapter) -> str:
    """Writes the figures and the tables of scores, and of each task's returns."""
    suite, styles = chapter.suite, chapter.styles
    names = list(dict.fromkeys(agent.name for agent in chapter.comparison.agents))
    final = next(final for final in chapter.finals if final.column.trained_on)
    where = {"task": suite.headline, "protocol": final.column.name}
    random = agents_numbers(chapter.summary, "aggregate", kind="measured", **where)["value"]
    table = chapter.recorded["learning_curves"]
    clippings = filter(None, table["reward_clipping"].unique())
    targets = {clipping: final.targets(clipping, names) for clipping in clippings}

    def draw(rows: pd.DataFrame) -> Figure:
        (clipping,) = filter(None, rows["reward_clipping"].unique())
        return draw_scores(rows, suite, targets[clipping], styles, random)

    # Returns are those of few tasks, or of those without reference scores.
    few, known = len(suite.tasks) <= MAX_COLUMNS, suite.reference_scores
    tasks = [task for task in suite.tasks if few or task not in known]
    returns = tabulate_returns(chapter.comparison, tasks)
    says_scores = f"{chapter.headline} against frames"
    says_returns = "each task's returns against frames"
    return chapter.render(
        _WORDS,
        scores=chapter.figures("learning-curves", table, draw, says_scores),
        scores_file=chapter.file(table, "learning-curves"),
        returns=chapter.figures("returns", returns, draw_returns, says_returns, styles=styles),
        returns_file=chapter.file(returns, "returns"),
        several_runs=several_runs(table),
        several_returns=several_runs(returns),
        published=any(targets.values()),
    )

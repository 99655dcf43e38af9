"""Scores by level, next to random play and the published ones."""

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from scalable_agent_popart import scores
from scalable_agent_popart.report import drawing
from scalable_agent_popart.report.chapter import Chapter, interval, unscored, written
from scalable_agent_popart.report.drawing import Styles
from scalable_agent_popart.report.final_scores import IMPALA, RANDOM, FinalScores
from scalable_agent_popart.suites import Suite

_MAX_LEVELS_A_PANEL = 32
_MANY = 20  # So many levels are sorted by score; fewer keep the suite's order.
_WORDS = """
<h3>{{ "Scores by level, " ~ title }}</h3>
{% if agent %}
{{ figure }}
<p>Thin lines are 95% intervals, as those in brackets. They are cut off at the axis, which is chosen
for bars and runs.
{% if several_runs %}
Dots are the lowest and the highest run of an agent with several.
{% endif %}
{% if sorted %}
Levels are in the order of the scores of {{ agent }}.
{% endif %}
</p>
{% endif %}
{{ table(heads, rows) }}
"""


def draw(table: pd.DataFrame, suite: Suite, styles: Styles) -> Figure:
    """Draws Figures 8 and 9: a bar per level and agent; many are sorted by our last agent."""
    logarithmic = suite.headline == "median"
    agents = list(dict.fromkeys(table["agent"]))
    by_level = table.pivot_table(index="task", columns="agent", values="value", sort=False)
    ours = [agent for agent in agents if agent not in (IMPALA, RANDOM)]
    if len(by_level) >= _MANY:
        by_level = by_level.sort_values(ours[-1], ascending=False)
    levels = by_level[agents]
    panels = np.array_split(np.array(levels.index), -(-len(levels) // _MAX_LEVELS_A_PANEL))
    height = max(3, 1.6 + max(map(len, panels)) * (0.11 * len(agents) + 0.12))
    figure = Figure(figsize=(6.5 * len(panels) + 1, height), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    for axes, names in zip(grid, panels, strict=True):
        for agent, y in drawing.draw_bars(axes, levels.loc[names], styles, True).items():
            of_agent = table[table["agent"] == agent].set_index("task").reindex(names)
            intervals = of_agent[["low", "high"]].astype(float).to_numpy()
            ranges = of_agent[["lowest", "highest"]].astype(float).to_numpy()
            several = (of_agent["runs"] > 1).fillna(False).to_numpy(bool)
            whiskers = np.stack([intervals, np.stack([y, y], axis=1)], axis=2)
            lines = LineCollection(list(whiskers), colors="black", linewidths=0.7)
            axes.add_collection(lines, autolim=False)
            axes.plot(ranges[several], y[several], "o", color="black", ms=1.6)
            for x in np.where(several[:, None], ranges, intervals).T:
                axes.update_datalim(np.stack([x, y], axis=1)[np.isfinite(x)], updatey=False)
        axes.set_yticks(range(len(names)), [drawing.plain(name) for name in names], fontsize=8)
        axes.set_ylim(len(names) - 0.4, -0.6)
        if logarithmic:
            axes.set_xscale("symlog", linthresh=drawing.LINEAR)
        for score in (100, 0) if suite.normalised else (0,):
            axes.axvline(score, color="black", lw=0.8)
        axes.grid(axis="x", alpha=0.3)
    axis = drawing.score_axis(suite)
    axis += f", logarithmic beyond ±{drawing.LINEAR}{suite.unit}" * logarithmic
    axis += f"; 100% is {drawing.plain(suite.full_score)}" * suite.normalised
    figure.supxlabel(axis, fontsize="medium")
    drawing.legend(figure, grid[0], fontsize="medium")
    return figure


def write(chapter: Chapter) -> str:
    """Writes the figure and the table of scores by level, for each way to test."""
    return Markup().join(_write_test(chapter, final) for final in chapter.finals)


def _write_test(chapter: Chapter, final: FinalScores) -> str:
    protocol, title, summary = final.column.name, final.column.title, chapter.summary
    table = summary[summary["protocol"] == protocol]
    table = table[table["kind"].isin(["agent", "published"])]
    table = table[(table["measure"] == "normalised") | unscored(table)]
    if not (table["kind"] == "agent").any():  # Nothing is final yet.
        return ""

    def cell(entry: Any) -> str:
        unit = "" if entry["measure"] == "return" else chapter.suite.unit
        if entry["kind"] == "agent" and entry["runs"] > 1:
            return interval(entry, unit=unit)
        return f"{entry['value']:{scores.score_style(unit, entry['value'])}}{unit}"

    normalised = table[table["measure"] == "normalised"]
    remarks = dict.fromkeys(table.loc[table["measure"] == "return", "task"], "return")
    remarks |= table.dropna(subset="remark").set_index("task")["remark"].to_dict()
    agents = list(dict.fromkeys(table["agent"]))
    rows = written(table, ["task"], "agent", agents, cell)
    ours = normalised.loc[normalised["kind"] == "agent", "agent"]
    figure: str = ""
    if len(ours):
        drawn = draw(normalised, chapter.suite, chapter.styles)
        says = f"{chapter.suite.score_name} of each level, {title}"
        figure = chapter.figure(drawn, f"levels-{protocol}", says)
    return chapter.render(
        _WORDS,
        title=title,
        heads=["Level", *agents],
        rows=[
            [f"{task} ({remarks[task]})" if task in remarks else task, *cells]
            for (task,), cells in rows.items()
        ],
        agent=ours.iloc[-1] if len(ours) else None,
        sorted=normalised["task"].nunique() >= _MANY,
        figure=figure,
        several_runs=(table["runs"] > 1).any(),
    )

"""Final scores of each level, next to the published ones."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from scalable_agent_popart.report.chapter import MAX_DRAWN, SUMMARY, Chapter, records
from scalable_agent_popart.report.drawing import LINEAR, Styles, legend, plain, score_axis
from scalable_agent_popart.report.final_scores import IMPALA, RANDOM, FinalScores
from scalable_agent_popart.report.numbers import scores_by_task
from scalable_agent_popart.suites import Suite

_MAX_LEVELS_A_PANEL = 32


def draw(table: pd.DataFrame, suite: Suite, styles: Styles) -> Figure:
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
                y, own["value"], thickness, label=plain(agent), facecolor=styles[agent].colour,
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
        axes.set_yticks(range(len(names)), [plain(name) for name in names], fontsize=8)
        axes.set_ylim(len(names) - 0.4, -0.6)
        if logarithmic:
            axes.set_xscale("symlog", linthresh=LINEAR)
        for score in (100, 0) if suite.normalised else (0,):
            axes.axvline(score, color="black", lw=0.8)
        axes.grid(axis="x", alpha=0.3)
    axis = score_axis(suite)
    axis += f", logarithmic beyond ±{LINEAR}{suite.unit}" * logarithmic
    axis += f"; 100% is {plain(suite.full_score)}" * suite.normalised
    figure.supxlabel(axis, fontsize="medium")
    legend(figure, grid[0], loc="outside upper left")
    return figure


def content(chapter: Chapter, final: FinalScores) -> dict[str, Any] | None:
    """Draws one column's scores by level; returns what the template is given."""
    protocol, title = final.column.name, final.column.title
    table = scores_by_task(chapter.summary, protocol)
    if not (table["kind"] == "agent").any():  # Nothing is final yet.
        return None
    normalised = table[table["measure"] == "normalised"]
    ours = normalised.loc[normalised["kind"] == "agent", "agent"]
    says, drawn = f"{chapter.suite.score_name} of each level, {title}", []
    if len(ours) and normalised["task"].nunique() <= MAX_DRAWN:
        figure = draw(normalised, chapter.suite, chapter.styles)
        drawn = [chapter.figure(figure, f"levels-{protocol}", says)]
    return {
        "column": title,
        "agents": list(dict.fromkeys(table["agent"])),
        "rows": records(table, "task", "agent"),
        "remarks": table.dropna(subset="remark").set_index("task")["remark"].to_dict(),
        "agent": ours.iloc[-1] if len(ours) else None,
        "several_runs": (table["runs"] > 1).any(),
        "figures": drawn,
        "tasks": normalised["task"].nunique(),
        "says": says,
        "file": SUMMARY,
    }

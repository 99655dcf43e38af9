"""Final scores over tasks, and in how many tasks a run is above each score."""

import functools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart import scores
from scalable_agent_popart.report.chapter import Chapter, records
from scalable_agent_popart.report.drawing import LINEAR, Styles, draw_runs, legend, score_axis
from scalable_agent_popart.report.final_scores import FinalScores
from scalable_agent_popart.report.numbers import agents_numbers
from scalable_agent_popart.suites import Suite


def draw_profiles(table: pd.DataFrame, suite: Suite, styles: Styles) -> Figure:
    """Draws the share of tasks in which an agent is above each score, as curves are drawn."""
    thresholds = np.unique(table["value"])
    shares = [
        pd.DataFrame({"frames": thresholds, "agent": agent, "run": run}).assign(
            share=scores.performance_profile(own["value"].to_numpy(), thresholds)
        )
        for (agent, run), own in table.groupby(["agent", "run"], sort=False)
    ]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    draw_runs(axes, pd.concat(shares), "share", 1, styles, step="post")
    if suite.headline == "median":
        axes.set_xscale("symlog", linthresh=LINEAR)
    axes.set_xlabel(f"{score_axis(suite)}, τ")
    axes.set_ylabel("Tasks with a score above τ (%)")
    axes.grid(alpha=0.3)
    legend(figure, axes, loc="outside upper left", fontsize="small")
    return figure


def content(chapter: Chapter, final: FinalScores) -> dict[str, Any] | None:
    """Returns each agent's aggregates over tasks, the headline first, and their profiles."""
    column, suite = final.column, chapter.suite
    own = chapter.summary[chapter.summary["protocol"] == column.name]
    if not len(own) and not column.trained_on:
        return None
    several = suite.normalised and len(suite.tasks) > 1
    entries = agents_numbers(own, "aggregate")
    runs = {agent.label: len(agent.runs) for agent in chapter.comparison.agents}
    drawn = []
    of_runs = own[(own["kind"] == "run") & (own["measure"] == "normalised")]
    if several and len(of_runs):
        draw = functools.partial(draw_profiles, suite=suite, styles=chapter.styles)
        says = f"share of tasks above each score, {column.title}"
        table = of_runs.assign(reward_clipping=of_runs["agent"].map(chapter.clippings))
        drawn = chapter.figures(f"profiles-{column.name}", table, draw, says)
    return {
        "final": final,
        "names": list(dict.fromkeys([suite.headline, *(entries["task"] if several else ())])),
        "rows": {agent: {} for agent in runs} | records(entries, "agent", "task"),
        "runs": runs,
        "figures": drawn,
    }

"""Final scores over tasks, and in how many tasks a run is above each score."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart import scores
from scalable_agent_popart.report.chapter import Chapter
from scalable_agent_popart.report.drawing import LINEAR, Styles, draw_runs, legend, score_axis
from scalable_agent_popart.report.final_scores import PAPERS_MEAN, FinalScores
from scalable_agent_popart.report.render import interval, short
from scalable_agent_popart.report.tables import agents_numbers, written
from scalable_agent_popart.suites import Suite


def draw_profiles(table: pd.DataFrame, suite: Suite, styles: Styles) -> Figure:
    """Draws the share of tasks in which an agent is above each score, as curves are drawn."""
    thresholds = np.unique(table["value"])
    shares = [
        pd.DataFrame({"frames": thresholds, "agent": agent, "run": run}).assign(
            share=scores.performance_profile(of_run["value"].to_numpy(), thresholds)
        )
        for (agent, run), of_run in table.groupby(["agent", "run"], sort=False)
    ]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    draw_runs(axes, pd.concat(shares), "share", 1, styles, step="post")
    if suite.headline == "median":
        axes.set_xscale("symlog", linthresh=LINEAR)
    axes.set_xlabel(f"{score_axis(suite)}, τ")
    axes.set_ylabel("Tasks with a score above τ (%)")
    axes.grid(alpha=0.3)
    legend(figure, axes)
    return figure


def describe_runs(row: Mapping[str, Any], total: int = 0) -> str:
    """Describes how many runs a score is of, and whether of their tests or their training."""
    runs, source = row["runs"], "tested" if row["source"] == "test" else "in training"
    if pd.isna(row["episodes"]):
        source = "from a file"
    return f"{runs}{f' of {total}' * (total > runs)} run{'s' * (runs > 1)}, {source}"


def content(chapter: Chapter) -> dict[str, Any]:
    """Returns each agent's aggregates over tasks, for each way to test, and their profiles."""
    suite = chapter.suite
    tests = [test for final in chapter.finals if (test := _of_test(chapter, final))]
    returns = chapter.summary.query("kind == 'agent' and measure == 'return'")
    runs = returns["runs"]
    return {
        "tests": tests,
        "held_out": [task for task in suite.tasks if task in suite.test_versions],
        "one_run": ((runs == 1) & returns["episodes"].notna()).any(),
        "several_runs": (runs > 1).any(),
        "given": returns["episodes"].isna().any(),
        "scored": sum(task in suite.reference_scores for task in suite.tasks),
    }


def _of_test(chapter: Chapter, final: FinalScores) -> dict[str, Any] | None:
    """Returns the table of one way to test, with the headline first, and its profiles."""
    column, suite = final.column, chapter.suite
    of_column = chapter.summary[chapter.summary["protocol"] == column.name]
    if not len(of_column) and not column.trained_on:
        return None
    several = suite.normalised and len(suite.tasks) > 1
    numbers = agents_numbers(of_column, "aggregate")
    names = list(dict.fromkeys([suite.headline, *(numbers["task"] if several else ())]))
    write = functools.partial(interval, unit=suite.unit)
    runs = {agent.label: len(agent.runs) for agent in chapter.comparison.agents}
    rows = {agent: [agent, *[""] * (len(names) + 1)] for agent in runs}
    cells = written(numbers, ["agent"], "task", names, write)
    for entry in numbers[numbers["task"] == suite.headline].to_dict("records"):
        agent = entry["agent"]
        origin = "" if entry["kind"] == "published" else f"{entry['episodes']} episodes per task"
        if entry["kind"] == "agent":
            frames = dict.fromkeys(map(short, (entry["fewest_frames"], entry["most_frames"])))
            known = pd.notna(entry["episodes"])
            episodes = f", episodes per task: {entry['episodes']}" if known else ""
            origin = f"{describe_runs(entry, runs[agent])}{episodes}, {' to '.join(frames)} frames"
        rows[agent] = [agent, *cells[agent,], origin]
    figures = []
    of_runs = of_column[(of_column["kind"] == "run") & (of_column["measure"] == "normalised")]
    if several and len(of_runs):
        draw = functools.partial(draw_profiles, suite=suite, styles=chapter.styles)
        says = f"share of tasks above each score, {column.title}"
        figures = chapter.figures(f"profiles-{column.name}", of_runs, draw, says)
    return {
        "title": column.title,
        "heads": ["Agent", *(name.replace("_", " ") for name in names), "from"],
        "rows": rows.values(),
        "papers_mean": PAPERS_MEAN in names,
        "figures": figures,
        "left_out": final.left_out,
    }

"""Score profiles of Agarwal et al. (2021): in what part of tasks an agent exceeds each score."""

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from scalable_agent_popart.report.chapter import Chapter, several_runs
from scalable_agent_popart.report.drawing import LINEAR, Styles, draw_runs, legend, score_axis
from scalable_agent_popart.suites import Suite

_WORDS = """
<h3>Score profiles</h3>
{{ figures }}
<p>The part of tasks whose score exceeds τ, from all of them at the left to none at the right
{{- ", with lines and areas as in learning curves" if several_runs else "" }}.</p>
"""


def draw(table: pd.DataFrame, suite: Suite, styles: Styles) -> Figure:
    """Draws the share of tasks in which an agent exceeds each score, as curves are drawn."""
    thresholds = np.unique(table["value"])
    shares = []
    for (agent, run), of_run in table.groupby(["agent", "run"], sort=False):
        above = of_run["value"].to_numpy()[:, None] > thresholds  # [tasks, thresholds]
        columns = {"frames": thresholds, "share": 100 * above.mean(axis=0)}
        shares.append(pd.DataFrame({**columns, "agent": agent, "run": run}))
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


def write(chapter: Chapter) -> str:
    """Writes the profiles of each way to test, if there are several tasks with scores."""
    suite, summary = chapter.suite, chapter.summary
    of_runs = summary[(summary["kind"] == "run") & (summary["measure"] == "normalised")]
    if not suite.normalised or len(suite.tasks) == 1 or not len(of_runs):
        return ""
    figures, look = Markup(), {"suite": suite, "styles": chapter.styles}
    for final in chapter.finals:
        name, says = final.column.name, f"share of tasks above each score, {final.column.title}"
        if len(table := of_runs[of_runs["protocol"] == name]):
            figures += chapter.figures(f"profiles-{name}", table, draw, says, **look)
    return chapter.render(_WORDS, figures=figures, several_runs=several_runs(of_runs))

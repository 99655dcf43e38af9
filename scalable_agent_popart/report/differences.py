"""Differences between every two agents that have several runs each."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.report.chapter import MAX_COLUMNS, Chapter, interval, unscored, written
from scalable_agent_popart.report.compare import MIN_PART_OF_FRAMES

_WORDS = """
<h3>Differences between agents</h3>
{{ table(heads, rows) }}
<p>Differences of means over runs, in points, have 95% intervals by Welch's t. It takes runs to be
normally distributed, with a spread for each agent. g is Hedges' effect size, the difference in
standard deviations of runs. p is of a two-sided permutation test, in which runs change agents in
every possible way, and is not corrected for the number of comparisons. The test takes both agents
to have one distribution, of any shape, and so may find agents that differ in their spread alone.
Trust a difference of means where the interval excludes 0, too. p cannot be below 0.33 with two runs
each, 0.1 with three, 0.029 with four and 0.0079 with five. Only agents with as many frames, to a
tenth, are compared. "Over training" compares the means of the learning curves' points. The
probability of improvement is how often a run of the first agent beats one of the second in a task,
averaged over tasks, with ties counted as half.</p>
"""


def summarise(by_run: pd.DataFrame) -> pd.DataFrame:
    """Compares the scores of every two agents that have several runs and are about equally far.

    Both agents' scores are of tests, or both of training. Returns are compared of tasks without
    normalised scores. An optimality gap says no more than the mean capped, and is left out.
    """
    keys = ["measure", "protocol", "task", "source"]
    compared = by_run[(by_run["measure"] != "return") | unscored(by_run)]
    compared = compared[compared["task"] != "optimality_gap"]
    rows = []
    for key, of_task in compared.groupby(keys, sort=False, dropna=False):
        for first, second, about in _pairs(of_task):
            difference = scores.difference_over_seeds(
                first["value"].to_numpy(), second["value"].to_numpy()
            )
            rows.append(dict(zip(keys, key, strict=True)) | about | difference._asdict())
    every_task = by_run[by_run["measure"] == "normalised"]
    for (protocol, source), of_test in every_task.groupby(["protocol", "source"], sort=False):
        for *agents, about in _pairs(of_test):
            both = (agent.pivot(index="run", columns="task", values="value") for agent in agents)
            value, low, high = scores.probability_of_improvement(
                *(table.to_numpy() for table in both)
            )
            about |= {"protocol": protocol, "source": source, "measure": "aggregate"}
            about |= {"task": "probability_of_improvement", "low": low, "high": high}
            rows.append(about | {"mean": value})
    return pd.DataFrame(rows).rename(columns={"mean": "value"})


def _pairs(table: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]]:
    """Yields the rows of every two agents to be compared, and what a row says of both."""
    by_agent = dict(list(table.groupby("agent", sort=False)))
    for second, first in itertools.combinations(by_agent, 2):
        both = pd.concat([by_agent[first], by_agent[second]])
        fewest, most = both["fewest_frames"].min(), both["most_frames"].max()
        runs = both.groupby("agent")["run"].nunique().min()
        if fewest >= MIN_PART_OF_FRAMES * most and runs > 1:
            about = {"agent": first, "versus": second, "runs": runs, "fewest_frames": fewest}
            about |= {"most_frames": most, "episodes": both["episodes"].min()}
            yield by_agent[first], by_agent[second], about


def write(chapter: Chapter) -> str:
    """Writes how far apart every two agents are that have several runs each."""
    table = chapter.summary[chapter.summary["kind"] == "difference"]
    suite, headline = chapter.suite, chapter.suite.headline
    heads = {
        ("aggregate", headline): f"{headline} over tasks",
        ("aggregate", "probability_of_improvement"): "probability of improvement (%)",
    }
    if len(suite.tasks) > 1:
        heads["aggregate", "interquartile_mean"] = "interquartile mean"
    for final in chapter.finals:
        for level in final.column.levels if len(suite.tasks) <= MAX_COLUMNS else ():
            heads |= {("normalised", level): level, ("return", level): f"{level} (return)"}
        heads["mean_over_training", headline] = f"{headline} over tasks, over training"
    known = {*zip(table["measure"], table["task"], strict=True)}
    heads = {key: head for key, head in heads.items() if key in known}
    if not heads:
        return ""

    def cell(row: Any) -> str:
        """Writes a difference with its 95% interval, Hedges' g and p, where they are known."""
        percent = suite.normalised or row["task"] == "probability_of_improvement"
        style = ".1f" if percent and row["measure"] != "return" else ""
        effect, p = row["effect"], row["p"]
        text = interval(row, style) + ("" if math.isnan(effect) else f", g = {effect:.1f}")
        return text + ("" if math.isnan(p) else f", p = {p:.2g}")

    rows = written(table, ["protocol", "agent", "versus"], ["measure", "task"], [*heads], cell)
    titles = {final.column.name: final.column.title for final in chapter.finals}
    several = table["protocol"].nunique() > 1
    return chapter.render(
        _WORDS,
        heads=["Agents", *["Test"] * several, *heads.values()],
        rows=[
            [f"{agent} over {versus}", *[titles[protocol]] * several, *cells]
            for (protocol, agent, versus), cells in rows.items()
        ],
    )

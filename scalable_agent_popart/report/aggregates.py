"""Final scores over tasks."""

import functools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from scalable_agent_popart.report.chapter import Chapter
from scalable_agent_popart.report.final_scores import PAPERS_MEAN, FinalScores
from scalable_agent_popart.report.render import interval, short
from scalable_agent_popart.report.tables import agents_numbers, written


def describe_runs(row: Mapping[str, Any], total: int = 0) -> str:
    """Describes how many runs a score is of, and whether of their tests or their training."""
    runs, source = row["runs"], "tested" if row["source"] == "test" else "in training"
    if pd.isna(row["episodes"]):
        source = "from a file"
    return f"{runs}{f' of {total}' * (total > runs)} run{'s' * (runs > 1)}, {source}"


def content(chapter: Chapter) -> dict[str, Any]:
    """Returns each agent's aggregates over tasks, for each way to test."""
    suite = chapter.suite
    tests = [test for final in chapter.finals if (test := _of_test(chapter, final))]
    returns = chapter.summary.query("kind == 'agent' and measure == 'return'")
    runs = returns["runs"]
    return {
        "tests": tests,
        "held_out": [task for task in suite.tasks if task in suite.test_versions],
        "one_run": ((runs == 1) & returns["episodes"].notna()).any(),
        "several_runs": (runs > 1).any(),
        "from_file": returns["episodes"].isna().any(),
        "scored": sum(task in suite.reference_scores for task in suite.tasks),
    }


def _of_test(chapter: Chapter, final: FinalScores) -> dict[str, Any] | None:
    """Returns the table of one way to test, with the headline first."""
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
    return {
        "title": column.title,
        "heads": ["Agent", *(name.replace("_", " ") for name in names), "from"],
        "rows": rows.values(),
        "papers_mean": PAPERS_MEAN in names,
        "several": several and len(numbers),
        "left_out": final.left_out,
    }

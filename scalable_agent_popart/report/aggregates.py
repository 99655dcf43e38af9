"""Final scores over tasks."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from scalable_agent_popart.report.chapter import Chapter, agents_numbers, interval, short, written
from scalable_agent_popart.report.final_scores import IMPALA, PAPERS_MEAN, FinalScores

_WORDS = """
{% set suite = chapter.suite %}
{% set several_tests = tests | length > 1 %}
{% for test in tests %}
<h3>{{ "Final scores: " ~ chapter.headline ~ (", " ~ test.title if several_tests else "") }}</h3>
{{ table(test.heads, test.rows) }}
{% if test.papers_mean %}
<p>The mean by papers scores takes 0 as Video Pinball's random score and &minus;16.45 as Double
Dunk's human score. With these two the means of IMPALA's paper come out.</p>
{% endif %}
{{ lines("Returns that do not count here:", test.left_out) }}
{% endfor %}
{% if suite.test_versions and several_tests %}
<p>
{% if held_out %}
Test levels have the held-out version of {{ held_out | join(" and of ") }}. Any other level is the
same among train and test levels, and a test's episodes of it count for both.
{% else %}
None of these levels has a version that is held out from training. So a test has the same scores on
train and on test levels.
{% endif %}
</p>
{% endif %}
<p>{{ "In brackets are 95% intervals." if one_run or several_runs else "" }}
{% if one_run %}
Those of a single run are over its episodes: bootstraps, which compute the score many times, of
episodes drawn from the run's with replacement. They show how far chance in these episodes moves the
score of one policy, and say nothing about another seed.
{% endif %}
{% if several_runs %}
Those of several runs are Student's t for their mean, very wide for two runs.
{% endif %}
Runs that are not tested yet (<code>--mode=test</code>) count by the last {{ recent }} episodes of
each task. All numbers of this page, by run and by agent, are in {{ link(summary) }}.</p>
{% if from_file %}
<p>A run from a file (<code>--scores</code>) counts by its returns after its last frames.</p>
{% endif %}
{% if not scored %}
<p>Random and human scores of these levels are not known.</p>
{% elif tests | selectattr("several") | list %}
<p>An interquartile mean leaves out a quarter of the tasks at either end. An optimality gap is what
tasks lack to 100% in the mean.</p>
{% endif %}
{% if 0 < scored < suite.reference_scores | length %}
<p><strong>A subset</strong>: all scores are over {{ scored }} of
{{ suite.reference_scores | length }} tasks.
{% if chapter.published %}
Those of {{ impala }} are computed from its published scores of the same tasks.
{% endif %}
</p>
{% endif %}
"""


def describe_runs(row: Mapping[str, Any], total: int = 0) -> str:
    """Describes how many runs a score is of, and whether of their tests or their training."""
    runs, source = row["runs"], "tested" if row["source"] == "test" else "in training"
    if pd.isna(row["episodes"]):
        source = "from a file"
    return f"{runs}{f' of {total}' * (total > runs)} run{'s' * (runs > 1)}, {source}"


def write(chapter: Chapter) -> str:
    """Writes each agent's aggregates over tasks, for each way to test."""
    suite = chapter.suite
    returns = chapter.summary.query("kind == 'agent' and measure == 'return'")
    return chapter.render(
        _WORDS,
        impala=IMPALA,
        tests=[test for final in chapter.finals if (test := _of_test(chapter, final))],
        held_out=[task for task in suite.tasks if task in suite.test_versions],
        one_run=((returns["runs"] == 1) & returns["episodes"].notna()).any(),
        several_runs=(returns["runs"] > 1).any(),
        from_file=returns["episodes"].isna().any(),
        scored=sum(task in suite.reference_scores for task in suite.tasks),
    )


def _of_test(chapter: Chapter, final: FinalScores) -> dict[str, Any] | None:
    """Returns the table of one way to test, with the headline first."""
    column, suite = final.column, chapter.suite
    of_column = chapter.summary[chapter.summary["protocol"] == column.name]
    if not len(of_column) and not column.trained_on:
        return None
    several = suite.normalised and len(suite.tasks) > 1
    numbers = agents_numbers(of_column, "aggregate")
    names = list(dict.fromkeys([suite.headline, *(numbers["task"] if several else ())]))
    runs = {agent.label: len(agent.runs) for agent in chapter.comparison.agents}
    rows = {agent: [agent, *[""] * (len(names) + 1)] for agent in runs}
    cells = written(numbers, ["agent"], "task", names, lambda row: interval(row, unit=suite.unit))
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

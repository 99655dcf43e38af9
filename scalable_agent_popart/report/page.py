"""Computes what the report's templates are given, and writes it with its figures and tables."""

import errno
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from scalable_agent_popart.errors import UserError, one_line
from scalable_agent_popart.report import (
    aggregates,
    curves,
    differences,
    gradients,
    hyperparameters,
    levels,
    populations,
    progress,
    statistics,
)
from scalable_agent_popart.report.chapter import MAX_DRAWN, NUMBER, SUMMARY, Chapter
from scalable_agent_popart.report.compare import compare
from scalable_agent_popart.report.films import write_films
from scalable_agent_popart.report.final_scores import IMPALA, PAPERS_MEAN, FinalScores, columns
from scalable_agent_popart.report.numbers import agents_numbers
from scalable_agent_popart.report.read import Run, read_run
from scalable_agent_popart.report.render import interval, render_report
from scalable_agent_popart.report.summary import recorded, summarise
from scalable_agent_popart.scores import RECENT_EPISODES
from scalable_agent_popart.suites import Suite


class Written(NamedTuple):
    """Holds the lines that the terminal shows once a report is written."""

    left_out: list[str]  # A line for each run or table that is not in it, and why.
    outcome: list[str]  # The lines of a table of agents' scores for each comparison.


def write_report(
    paths: Sequence[str],
    report_dir: str,
    suite: Suite | None = None,
) -> Written:
    """Writes a report on the runs in some directories.

    What is in the directories may be anybody's. Its text is never markup in the page, and no file
    of them gets into the page but the pixels of films.

    Raises UserError if no run can be read, or nothing written.
    """
    runs, skipped = [], []
    for path in {os.path.realpath(path): path for path in paths}.values():
        try:
            runs.append(read_run(path))
            skipped += runs[-1].problems
        except UserError as error:
            skipped.append(f"{path} skipped: {error}")
    comparisons, left_out = compare(runs, suite)
    skipped += left_out
    for agent in (agent for comparison in comparisons for agent in comparison.agents):
        for seed, count in Counter(run.seed for run in agent.runs).items():
            if count > 1:
                message = f"{count} runs have seed {seed} and count as independent ones"
                skipped.append(f"{agent.label}: {message}; give each run once")
    if not comparisons:
        raise UserError(f"there is no run to report on: {'; '.join(skipped)}")
    directory = Path(report_dir)
    try:
        for folder in ("figures", "tables"):
            (directory / folder).mkdir(parents=True, exist_ok=True)
        chapters, names = [], Counter[str]()
        for comparison in comparisons:
            name = _name(comparison.suite)
            names[name] += 1
            name += f"-{names[name]}" if names[name] > 1 else ""
            finals = [FinalScores(comparison, own) for own in columns(comparison.suite)]
            logs = recorded(comparison)
            numbers = summarise(finals, logs)
            chapters.append(Chapter(comparison, finals, logs, numbers, name, directory))
        summary = pd.concat([own.summary.assign(comparison=own.name) for own in chapters])
        summary = summary.set_index("comparison")
        summary.to_csv(directory / SUMMARY, errors="replace", float_format=NUMBER)
        published = any(chapter.published for chapter in chapters)
        found = [own for comparison in comparisons for own in comparison.runs]
        content = {
            "title": "Comparison with the published results" if published else "Results",
            "runs": [(own.label, run, _dates(run)) for own, run in found],
            "skipped": skipped,
            "chapters": [_content(chapter) for chapter in chapters],
            "films": write_films(comparisons, directory, skipped),
            "summary": SUMMARY,
            "recent": RECENT_EPISODES,
            "most_drawn": MAX_DRAWN,
            "impala": IMPALA,
            "papers_mean": PAPERS_MEAN,
            "describe_runs": _runs,
        }
        # Names of files need not be text.
        file = directory / "report.html"
        file.write_text(render_report(content), encoding="utf-8", errors="replace")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(
            f"--report_dir={report_dir} cannot be written to ({error}); give another one"
        ) from error
    outcome = [line for chapter in chapters for line in _outcome(chapter)]
    return Written([one_line(line) for line in skipped], [one_line(line) for line in outcome])


def _name(suite: Suite) -> str:
    """Returns the name with which the files of a comparison begin."""
    if suite.whole:
        return suite.name
    several = len(suite.tasks) > 1
    part = f"{len(suite.tasks)}-tasks" if several else re.sub(r"[^\w.-]", "-", suite.tasks[0])
    return f"{suite.name}-{part}"


def _runs(row: Mapping[str, Any], total: int = 0) -> str:
    """Describes how many runs a score is of, and whether of their tests or their training."""
    number, source = row["runs"], "tested" if row["source"] == "test" else "in training"
    return f"{number}{f' of {total}' * (total > number)} run{'s' * (number > 1)}, {source}"


def _dates(run: Run) -> str:
    """Returns when a run began and ended, or got to by now, in UTC."""
    times = run.logs["progress"]["time"]
    times = times[times.between(0, 1e10)]  # What is later was no time.
    if not len(times):
        return ""
    ends = pd.to_datetime(times.agg(["min", "max"]), unit="s")
    first, last = (f"{time:%Y-%m-%d %H:%M}" for time in ends)
    return f"{first} to {last.removeprefix(first[:11])}"


def _outcome(chapter: Chapter) -> list[str]:
    """Lists the agents' scores, as a table for the terminal."""
    title = f"{chapter.headline.capitalize()} [95% interval], {chapter.comparison.title}"
    headline = {"task": chapter.suite.headline, "kind": "agent"}
    rows = agents_numbers(chapter.summary, "aggregate", **headline)
    several = rows["protocol"].nunique() > 1  # Such as no-op and human starts.
    cells = [
        (
            own["agent"],
            interval(own, unit=chapter.suite.unit),
            _runs(own) + f", {own['protocol']}" * several,
        )
        for own in rows.to_dict("records")
    ]
    if not cells:
        return [f"{title}: none yet, as no run has finished an episode of every task"]
    widths = [max(len(row[i]) for row in cells) for i in range(2)]
    return [title, *(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in cells)]


def _content(chapter: Chapter) -> dict[str, Any]:
    """Writes figures and tables; returns what the template is given. None has no part."""
    tables_of_levels = [levels.content(chapter, final) for final in chapter.finals]
    scores = [aggregates.content(chapter, final) for final in chapter.finals]
    runs = chapter.summary.query("kind == 'agent' and measure == 'return'")["runs"]
    return {
        "title": chapter.comparison.title,
        "suite": chapter.suite,
        "headline": chapter.headline,
        "published": chapter.published,
        "one_run": (runs == 1).any(),
        "several_runs": (runs > 1).any(),
        "scores": [own for own in scores if own],
        "differences": differences.content(chapter),
        "learning_curves": curves.scores_content(chapter),
        "returns": curves.returns_content(chapter),
        "progress": progress.content(chapter),
        "statistics": statistics.content(chapter),
        "gradients": gradients.content(chapter),
        "levels": [own for own in tables_of_levels if own],
        "populations": populations.content(chapter),
        "hyperparameters": hyperparameters.content(chapter),
    }

"""Writes a report: its page with the sections of each comparison, and the table of all numbers."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from scalable_agent_popart.errors import UserError, one_line
from scalable_agent_popart.report import (
    aggregates,
    curves,
    differences,
    films,
    gradients,
    hyperparameters,
    levels,
    overview,
    populations,
    profiles,
    progress,
    statistics,
    summary,
)
from scalable_agent_popart.report.chapter import (
    NUMBER,
    SUMMARY,
    Chapter,
    agents_numbers,
    interval,
    render,
)
from scalable_agent_popart.report.compare import Comparison, compare
from scalable_agent_popart.report.final_scores import FinalScores, columns, with_measured_zero
from scalable_agent_popart.report.read import read_runs
from scalable_agent_popart.report.scores_files import add_agents
from scalable_agent_popart.suites import Suite

# The sections of a chapter in the order of the page.
_SECTIONS = (
    overview, curves, statistics, aggregates, differences, levels, gradients, populations, progress,
    hyperparameters, profiles,
)  # fmt: skip
_PAGE = """
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 85rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.85rem; display: block; }
table { overflow-x: auto; }
td, p code { white-space: nowrap; }
td:last-child { white-space: normal; min-width: 8rem; }
summary { font-size: 1.17em; font-weight: bold; cursor: pointer; }
th, td { border: 1px solid #ccc; padding: 0.25rem 0.6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { background: #f2f2f2; }
img { max-width: 100%; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{{ runs }}
{{ lines("Skipped, or doubtful:", skipped) }}
{% for heading, sections in chapters %}
<h2>{{ heading }}</h2>
{{ sections | join }}
{% endfor %}
{{ films }}
</body>
</html>
"""


class Written(NamedTuple):
    """Holds the lines that the terminal shows once a report is written."""

    left_out: list[str]  # A line for each run or table that is not in it, and why.
    outcome: list[str]  # The lines of a table of agents' scores for each comparison.


def write_report(
    paths: Sequence[str],
    report_dir: str,
    suite: Suite | None = None,
    scores_files: Sequence[str] = (),
    measured_zero: bool = False,
) -> Written:
    """Writes a report on the runs in some directories.

    What is in the directories may be anybody's. Its text is never markup in the page, and no file
    of them gets into the page but the pixels of films.

    Raises UserError if no run or not every file of scores can be read, if random play was not
    measured and is to be zero, or if nothing can be written.
    """
    runs, skipped = read_runs(paths)
    comparisons, left_out = compare(runs, suite)
    skipped += left_out
    for agent in (agent for comparison in comparisons for agent in comparison.agents):
        for seed, count in Counter(run.seed for run in agent.runs).items():
            if count > 1:
                message = f"{count} runs have seed {seed} and count as independent ones"
                skipped.append(f"{agent.label}: {message}; give each run once")
    if not comparisons:
        raise UserError(f"there is no run to report on: {'; '.join(skipped)}")
    for path in scores_files:
        comparisons, left_out = add_agents(comparisons, path)
        skipped += left_out
    if measured_zero:
        comparisons = [with_measured_zero(comparison) for comparison in comparisons]
    directory = Path(report_dir)
    try:
        for folder in ("figures", "tables"):
            (directory / folder).mkdir(parents=True, exist_ok=True)
        chapters, names = [], Counter[str]()
        for comparison in comparisons:
            names[comparison.name] += 1
            number = names[comparison.name]
            name = comparison.name if number == 1 else f"{comparison.name}-{number}"
            chapters.append(open_chapter(comparison, name, directory))
        numbers = pd.concat({chapter.name: chapter.summary for chapter in chapters})
        numbers = numbers.droplevel(1).rename_axis("comparison")
        numbers.to_csv(directory / SUMMARY, errors="replace", float_format=NUMBER)
        published = any(chapter.published for chapter in chapters)
        page = render(
            _PAGE,
            title="Comparison with the published results" if published else "Results",
            runs=overview.write_runs([run for each in comparisons for run in each.runs]),
            chapters=[
                (chapter.comparison.title, [section.write(chapter) for section in _SECTIONS])
                for chapter in chapters
            ],
            films=films.write(comparisons, directory, skipped),
            skipped=skipped,
        )
        # Names of files need not be text.
        (directory / "report.html").write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"--report_dir={report_dir} cannot be written to ({error}); give another one"
        ) from error
    outcome = [line for chapter in chapters for line in _outcome(chapter)]
    return Written([one_line(line) for line in skipped], [one_line(line) for line in outcome])


def open_chapter(comparison: Comparison, name: str = "", directory: Path = Path()) -> Chapter:
    """Tabulates what runs recorded, and sums it up with a row for each number.

    Numbers are agents' over their runs, differences, and each run's. Runs that lag far behind are
    left out of all but learning curves and populations.
    """
    finals = [FinalScores(comparison, column) for column in columns(comparison.suite)]
    recorded = {
        "learning_curves": curves.tabulate_scores(comparison),
        "progress": progress.tabulate(comparison),
        "statistics": statistics.tabulate(comparison),
        "gradients": gradients.tabulate(comparison),
    }
    in_the_end = [final.by_run() for final in finals]
    over_training = curves.means_over_training(recorded["learning_curves"], in_the_end[0])
    members = populations.summarise(comparison)
    scored = summary.tabulate([*in_the_end, over_training, members])
    measured = [
        progress.summarise(recorded["progress"]),
        progress.summarise_batches(comparison),
        statistics.summarise(recorded["statistics"]),
        gradients.summarise(recorded["gradients"]),
    ]
    by_run = summary.tabulate([*in_the_end, over_training, *measured, members])
    kinds = {
        "agent": [summary.over_runs(by_run)],
        "measured": [final.measured() for final in finals],
        "published": [final.published() for final in finals],
        "difference": [differences.summarise(scored)],
        "run": [by_run],
    }
    numbers = summary.tabulate([part.assign(kind=kind) for kind in kinds for part in kinds[kind]])
    return Chapter(comparison, finals, recorded, numbers, name, directory)


def _outcome(chapter: Chapter) -> list[str]:
    """Lists the agents' scores, as a table for the terminal."""
    title = f"{chapter.headline.capitalize()} [95% interval], {chapter.comparison.title}"
    headline = {"task": chapter.suite.headline, "kind": "agent"}
    rows = agents_numbers(chapter.summary, "aggregate", **headline)
    several = rows["protocol"].nunique() > 1  # Such as no-op and human starts.
    cells = [
        (
            row["agent"],
            interval(row, unit=chapter.suite.unit),
            aggregates.describe_runs(row) + f", {row['protocol']}" * several,
        )
        for row in rows.to_dict("records")
    ]
    if not cells:
        return [f"{title}: none yet, as no run has finished an episode of every task"]
    widths = [max(len(row[i]) for row in cells) for i in range(2)]
    return [title, *(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in cells)]

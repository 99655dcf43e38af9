"""`--mode=report`: runs beside each other and beside the published results.

Reads run directories, finished or not, and writes `report.md`, the same as a self-contained
`report.html`, its figures, and a CSV file for each table and figure.
"""

import errno
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report import (
    course,
    curves,
    figures,
    gradients,
    page,
    population_figures,
    population_tables,
)
from scalable_agent_popart.report.comparison import Comparison, compare
from scalable_agent_popart.report.finals import Column, columns, final_returns
from scalable_agent_popart.report.records import RECENT_EPISODES
from scalable_agent_popart.report.runs import read_run
from scalable_agent_popart.report.tables import FinalScores
from scalable_agent_popart.suites import Suite

_DOTS_PER_INCH = 110
_NUMBER = "%.9g"  # Of a float32 all there is, and half the digits of what is computed from it.


class _Writer:
    """Files of a report, and the Markdown that refers to them."""

    def __init__(self, directory: Path):
        self._directory = directory
        self.figures = directory / "figures"
        self._tables = directory / "tables"
        for folder in (directory, self.figures, self._tables):
            folder.mkdir(parents=True, exist_ok=True)

    def figure(self, figure: Figure, name: str, says: str) -> str:
        figure.savefig(self.figures / f"{name}.png", dpi=_DOTS_PER_INCH)
        return f"![{says}]({self.figures.name}/{name}.png)"

    def table(self, table: pd.DataFrame, name: str) -> str:
        path = self._tables / f"{name}.csv"
        table.to_csv(path, index=False, errors="replace", float_format=_NUMBER)
        return f"`{self._tables.name}/{name}.csv`"

    def text(self, text: str) -> None:
        html = page.as_html(text, self.figures)
        for name, content in (("report.md", text + "\n"), ("report.html", html)):
            # Names of files need not be text.
            (self._directory / name).write_text(content, encoding="utf-8", errors="replace")


def write_report(
    paths: Sequence[str],
    report_dir: str,
    suite: Suite | None = None,
    ignored: Collection[str] = (),
) -> list[str]:
    """Writes a report on runs.

    Args:
      paths: of run directories.
      report_dir: where to write; made if need be.
      suite: with the tasks to compare; by default those that each run was trained on.
      ignored: flags that do not tell agents apart.

    Returns:
      A line for each thing that could not be read and was passed over.

    Raises:
      UserError: if no run can be read, or nothing written, or flags cannot be ignored.
    """
    runs, skipped = [], []
    for path in {Path(path).resolve(): path for path in paths}.values():
        try:
            runs.append(read_run(path))
            skipped += runs[-1].problems
        except UserError as error:
            skipped.append(f"{path} skipped: {error}")
    comparisons, left_out = compare(runs, suite, ignored)
    skipped += left_out
    if not comparisons:
        raise UserError(f"there is no run to report on: {'; '.join(skipped)}")
    try:
        _write(comparisons, skipped, _Writer(Path(report_dir)))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(
            f"--report_dir={report_dir} cannot be written to ({error}); give another one"
        ) from error
    return skipped


def _write(comparisons: Sequence[Comparison], skipped: Sequence[str], writer: _Writer) -> None:
    names: list[str] = []
    sections = [page.runs_section(comparisons, skipped)]
    for comparison in comparisons:
        name = _name(comparison)
        names.append(name)
        number = names.count(name)
        sections.append(_section(comparison, name if number == 1 else f"{name}-{number}", writer))
    writer.text("\n\n".join(sections))


def _name(comparison: Comparison) -> str:
    """Begins the names of a comparison's files."""
    suite = comparison.suite
    return suite.name if suite.whole else f"{suite.name}-{len(suite.tasks)}-tasks"


def _section(comparison: Comparison, name: str, writer: _Writer) -> str:
    """One comparison's part of the report; its files are written, their names beginning so."""
    styles = figures.Styles([(agent.name, agent.label) for agent in comparison.agents])
    finals = {c: final_returns(comparison, c) for c in columns(comparison.suite)}
    scores = {c: FinalScores(comparison, c, found) for c, found in finals.items()}
    tables = {c: found.table_1() for c, found in scores.items()}
    files = [writer.table(table, f"{name}-table-1-{c.name}") for c, table in tables.items()]
    parts = [f"## {comparison.title}"]
    parts.append(page.table_1_section(comparison, tables, finals, scores))
    parts.append(
        "All aggregates, the lowest and the highest run, and where the mean of as many new runs "
        f"should lie (`rerun_low` to `rerun_high`): {', '.join(files)}."
    )
    trained_on = next(found for c, found in scores.items() if c.trained_on)
    parts += _learning_curves(comparison, trained_on, name, styles, writer)
    parts += _course(comparison, name, writer)
    parts += _statistics(comparison, name, styles, writer)
    parts += _gradients(comparison, name, writer)
    for column, found in scores.items():
        parts += _breakdown(comparison, column, found.breakdown(), name, styles, writer)
    parts += _populations(comparison, name, writer)
    return "\n\n".join(parts)


def _learning_curves(
    comparison: Comparison, scores: FinalScores, name: str, styles: figures.Styles, writer: _Writer
) -> list[str]:
    """A figure for each reward clipping, as in the paper."""
    table = curves.learning_curves(comparison)
    parts = ["### Learning curves"]
    if not len(table):
        return [
            *parts,
            "None yet: no run has finished an episode of every task with a known score.",
        ]
    names = list(dict.fromkeys(agent.name for agent in comparison.agents))
    for clipping, own in table.groupby("reward_clipping", sort=False):
        targets = scores.published(str(clipping), names)
        figure = figures.learning_curves(own, comparison.suite.headline, targets, styles)
        says = f"{comparison.title}, rewards {clipping}: score against frames"
        parts.append(writer.figure(figure, f"{name}-learning-curves-{clipping}", says))
    return [
        *parts,
        f"Training scores: the mean of each task's last {RECENT_EPISODES} episodes, from "
        "where every task has finished one. Of several runs of an agent, the thick line is the "
        "mean, each thin line a run, and the area the mean's 95% interval by Student's t, cut off "
        "beyond the axis, which is chosen for the runs. Dotted: published final scores, in the "
        "colours of their agents. "
        f"{writer.table(table, f'{name}-learning-curves')}",
    ]


def _course(comparison: Comparison, name: str, writer: _Writer) -> list[str]:
    records, shares = course.course(comparison), course.batches(comparison)
    if not len(records):
        return []
    table = course.by_run(records, shares)
    files = [writer.table(records, f"{name}-course")]
    if len(shares):
        files.append(writer.table(shares, f"{name}-batches"))
    return ["### Course of training", page.course_table(table), f"All of it: {', '.join(files)}."]


def _statistics(
    comparison: Comparison, name: str, styles: figures.Styles, writer: _Writer
) -> list[str]:
    table = curves.statistics(comparison)
    if not len(table):
        return []
    parts = ["### Normalisation statistics"]
    for clipping, own in table.groupby("reward_clipping", sort=False):
        says = f"{comparison.title}, rewards {clipping}: shift and scale by task, above returns"
        figure = figures.statistics(own, styles)
        parts.append(writer.figure(figure, f"{name}-statistics-{clipping}", says))
    parts.append(
        "Above, each task's shift with the scale shaded around it; below, the mean of its last "
        f"{RECENT_EPISODES} returns (raw). {writer.table(table, f'{name}-statistics')}"
    )
    for clipping, own in table.groupby("reward_clipping", sort=False):
        says = f"{comparison.title}, rewards {clipping}: scales of all tasks beside each other"
        parts.append(writer.figure(figures.scales(own), f"{name}-scales-{clipping}", says))
    if table.groupby("agent")["run"].nunique().max() > 1:
        parts.append("Of several runs, means at the end with their 95% intervals by Student's t.")
    return parts


def _gradients(comparison: Comparison, name: str, writer: _Writer) -> list[str]:
    table = gradients.gradients(comparison)
    if not len(table):
        return []
    parts = ["### Gradients by task"]
    of_policy = table[table["loss"] == "policy"]
    for clipping, own in of_policy.groupby("reward_clipping", sort=False):
        figure = figures.gradients(gradients.over_frames(own))
        says = f"{comparison.title}, rewards {clipping}: size of tasks' policy gradients"
        parts.append(writer.figure(figure, f"{name}-gradients-{clipping}", says))
    return [
        *parts,
        page.gradients_section(gradients.by_agent(table)),
        writer.table(table, f"{name}-gradients"),
    ]


def _breakdown(
    comparison: Comparison,
    column: Column,
    table: pd.DataFrame,
    name: str,
    styles: figures.Styles,
    writer: _Writer,
) -> list[str]:
    if table["normalised"].isna().all():  # Nothing final yet, or no reference scores.
        return []
    figure = figures.breakdown(table, comparison.suite.headline == "median", styles)
    file = writer.table(table, f"{name}-levels-{column.name}")
    return [
        f"### Scores by level, {column.title}",
        writer.figure(figure, f"{name}-levels-{column.name}", "Human-normalised scores"),
        "Thin lines: 95% intervals, of a single run over its episodes; of several, in brackets "
        "below, of their mean by Student's t, cut off where they leave the axis, which is chosen "
        "for bars and runs. Dots: the lowest and the highest run. Levels stand in the order of the "
        "last agent before the published.",
        page.levels_table(table),
        f"Raw returns and intervals: {file}",
    ]


def _populations(comparison: Comparison, name: str, writer: _Writer) -> list[str]:
    found = population_tables.populations(comparison)
    if not found:
        return []
    files = [
        writer.table(population_tables.events(comparison), f"{name}-populations"),
        writer.table(population_tables.ancestries(comparison), f"{name}-ancestries"),
    ]
    parts = []
    for number, (_, _, population) in enumerate(found, start=1):
        says = f"{comparison.title}: hyperparameters and fitness of a population's members"
        figure = population_figures.training(population)
        drawn = writer.figure(figure, f"{name}-population-{number}", says)
        parts.append(page.population_section(population, drawn, files))
    return parts

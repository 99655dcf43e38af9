"""`--mode=report`: runs beside each other and beside the published results.

Reads run directories, finished or not, and writes `report.md`, the same as a self-contained
`report.html`, its figures, and a CSV file for each table and figure.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report import curves, figures, page, published
from scalable_agent_popart.report.comparison import Comparison, compare
from scalable_agent_popart.report.finals import Column, Finals, columns
from scalable_agent_popart.report.runs import read_run
from scalable_agent_popart.suites import Suite

_DOTS_PER_INCH = 110


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
        table.to_csv(self._tables / f"{name}.csv", index=False)
        return f"`{self._tables.name}/{name}.csv`"

    def text(self, text: str) -> None:
        (self._directory / "report.md").write_text(text + "\n", encoding="utf-8")
        html = page.as_html(text, self.figures)
        (self._directory / "report.html").write_text(html, encoding="utf-8")


def write_report(paths: Sequence[str], report_dir: str, suite: Suite | None = None) -> list[str]:
    """Writes a report on runs.

    Args:
      paths: of run directories.
      report_dir: where to write; made if need be.
      suite: with the tasks to compare; by default those that each run was trained on.

    Returns:
      A line for each thing that could not be read and was passed over.

    Raises:
      UserError: if no run can be read, or nothing written.
    """
    _check_writable(Path(report_dir))
    runs, skipped = [], []
    for path in dict.fromkeys(paths):
        try:
            runs.append(read_run(path))
            skipped += runs[-1].problems
        except UserError as error:
            skipped.append(f"{path} skipped: {error}")
    comparisons, left_out = compare(runs, suite)
    skipped += left_out
    if not comparisons:
        raise UserError(f"there is no run to report on: {'; '.join(skipped)}")
    writer = _Writer(Path(report_dir))
    names: list[str] = []
    sections = [page.runs_section(comparisons, skipped)]
    for comparison in comparisons:
        name = _name(comparison)
        names.append(name)
        number = names.count(name)
        sections.append(_section(comparison, name if number == 1 else f"{name}-{number}", writer))
    writer.text("\n\n".join(sections))
    return skipped


def _check_writable(directory: Path) -> None:
    nearest = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"--report_dir={directory} cannot be written to; give another one")


def _name(comparison: Comparison) -> str:
    """Begins the names of a comparison's files."""
    suite = comparison.suite
    whole = suite.level_name == suite.name
    return suite.name if whole else f"{suite.name}-{len(suite.tasks)}-tasks"


def _section(comparison: Comparison, name: str, writer: _Writer) -> str:
    """One comparison's part of the report; its files are written, their names beginning so."""
    suite = comparison.suite
    styles = figures.Styles([(agent.name, agent.label) for agent in comparison.agents])
    finals = {column: Finals(comparison, column) for column in columns(suite)}
    tables = {column: found.table_1() for column, found in finals.items()}
    complete = {column: found.complete for column, found in finals.items()}
    files = [
        writer.table(table, f"{name}-table-1-{column.name}")
        for column, table in tables.items()
        if len(table)
    ]
    parts = [f"## {comparison.title}", page.table_1_section(comparison, tables, complete)]
    parts.append(
        f"All aggregates, the lowest and the highest run: {', '.join(files) or 'none yet'}."
    )
    trained_on = next(table for column, table in tables.items() if column.trained_on)
    parts += _learning_curves(comparison, trained_on, name, styles, writer)
    parts += _statistics(comparison, name, styles, writer)
    for column, found in finals.items():
        parts += _breakdown(suite, column, found.breakdown(), name, styles, writer)
    return "\n\n".join(parts)


def _learning_curves(
    comparison: Comparison,
    table_1: pd.DataFrame,
    name: str,
    styles: figures.Styles,
    writer: _Writer,
) -> list[str]:
    """A figure for each reward clipping, as in the paper."""
    suite = comparison.suite
    table = curves.learning_curves(comparison)
    parts = ["### Learning curves"]
    if not len(table):
        return [*parts, "None yet: no run has finished an episode of every task."]
    of_all = table_1[table_1["agent"] == published.IMPALA]  # Computed on the same tasks.
    for clipping, own in table.groupby("reward_clipping", sort=False):
        theirs = table_1[table_1["agent"].isin([*own["agent"], *of_all["agent"]])]
        targets = theirs.dropna(subset="published").set_index("agent")["published"].to_dict()
        figure = figures.learning_curves(own, suite.headline, targets, styles)
        says = f"{comparison.title}, rewards {clipping}: score against frames"
        parts.append(writer.figure(figure, f"{name}-learning-curves-{clipping}", says))
    says = (
        f"Training scores: the mean of each task's last {curves.RECENT_EPISODES} episodes, from "
        "where every task has finished one. Dotted: published final scores"
    )
    return [*parts, f"{says}. {writer.table(table, f'{name}-learning-curves')}"]


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
    return [
        *parts,
        "Above, each task's shift with the scale shaded around it; below, the mean of its last "
        f"{curves.RECENT_EPISODES} returns (raw). {writer.table(table, f'{name}-statistics')}",
    ]


def _breakdown(
    suite: Suite,
    column: Column,
    table: pd.DataFrame,
    name: str,
    styles: figures.Styles,
    writer: _Writer,
) -> list[str]:
    if table["normalised"].isna().all():  # Nothing final yet, or no reference scores.
        return []
    figure = figures.breakdown(table, suite.headline == "median", styles)
    parts = [f"### Scores by level, {column.title}"]
    parts.append(writer.figure(figure, f"{name}-levels-{column.name}", "Human-normalised scores"))
    file = writer.table(table, f"{name}-levels-{column.name}")
    return [*parts, page.levels_table(table), f"Raw returns and intervals: {file}"]

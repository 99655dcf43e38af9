"""Renders the Markdown pages that have tables and numbers of files: each PAGE.md of its PAGE.md.j2.

A source is a Jinja2 template, in which `load` reads a CSV or JSON file by its path from the root of
the repository, and `fields` are all settings. The functions below are its filters:

  {% set catch5 = load("results/catch5/summary.csv") %}
  IMPALA scores {{ catch5 | score("mean", "IMPALA") | interval }}, and PopArt-IMPALA's lead
  is {{ catch5 | lead("mean", "PopArt-IMPALA", "IMPALA") | difference }}.

A value that is missing, or a row that is not there, is an error.
"""

if __name__ == "__main__":
    import start  # noqa: F401

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import jinja2
import pandas as pd
from absl import flags

import experiment
from scalable_agent_popart import scores, settings
from scalable_agent_popart.report.final_scores import PAPERS_MEAN
from scalable_agent_popart.runs.config import describe_default
from scalable_agent_popart.system import program

_ROOT = Path(__file__).resolve().parents[1]
_AGGREGATES = {*scores.reported_aggregates([0.0]), PAPERS_MEAN, "probability_of_improvement"}


def where(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Keeps the rows with these values, or with one of a list of values, by column."""
    for name, value in values.items():
        table = table[table[name].isin(value if isinstance(value, list) else [value])]
    if table.empty:
        raise ValueError(f"no row has {values}")
    return table


def score(table: pd.DataFrame, task: str, agent: str, measure: str = "") -> pd.DataFrame:
    """Selects an agent's score of a task or aggregate, or another measure, of a summary."""
    return where(table, kind="agent", task=task, agent=agent, measure=measure or _measure(task))


def lead(
    table: pd.DataFrame, task: str, agent: str, versus: str, measure: str = ""
) -> pd.DataFrame:
    """Selects an agent's score minus another's, whichever way round the summary has it.

    A measure of no task, such as a population's `median_member`, has the task "".
    """
    about = {"kind": "difference", "measure": measure or _measure(task)}
    pair = [agent, versus]
    leads = where(table, agent=pair, versus=pair, **about, **({"task": task} if task else {}))
    if leads.agent.iloc[0] != agent:
        # The one's chance of beating the other is the rest of 100%.
        value = 100 * (leads.task == "probability_of_improvement") - leads.value
        leads = leads.assign(value=value, low=-leads.high, high=-leads.low, effect=-leads.effect)
    return leads.assign(agent=agent, versus=versus)


def _measure(task: str) -> str:
    return "aggregate" if task in _AGGREGATES else "normalised"


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Lists the rows by column, for a loop."""
    return table.to_dict("records")


def named(records: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    """Returns the record of this name."""
    (record,) = [record for record in records if record["name"] == name]
    return record


def says(row: Any, text: str) -> str:
    """Puts the values of a row, or of a table's only one, into a text as `str.format` does."""
    if isinstance(row, pd.DataFrame):
        (row,) = rows(row)
    written = text.format_map(row)
    if re.search(r"\bnan\b", written):
        raise ValueError(f"{text} lacks a value of {row}")
    return written


def interval(row: Any, style: str = ".1f", bold: bool = False) -> str:
    """Writes a row's value with its 95% interval, which for a single run is a bootstrap."""
    if isinstance(row, pd.DataFrame):
        (row,) = rows(row)
    stars, ends = "**" * bold, f"[{{low:{style}}}, {{high:{style}}}]"
    if row.get("kind") == "run" or row.get("runs") == 1:
        ends = scores.write_interval(row["low"], row["high"], style)
    return says(row, f"{stars}{{value:{style}}}{stars} {ends}")


def difference(row: Any, effect: bool = False) -> str:
    """Writes a row's value with its 95% interval, Hedges' g if asked for, and p."""
    size = "g = {effect:.1f}, " * effect
    return f"{interval(row)}, {says(row, size + 'p = {p:.2g}')}"


def number(value: float, style: str, missing: str | None = None) -> str:
    """Writes a number, or of NaN what stands for a missing one."""
    if not math.isnan(value):
        return f"{value:{style}}"
    if missing is None:
        raise ValueError("a number is missing")
    return missing


def span(values: Iterable[float], style: str) -> str:
    """Writes the least and the greatest of some numbers."""
    numbers = list(values)
    return f"{number(min(numbers), style)} to {number(max(numbers), style)}"


def mean_interval(values: Iterable[float], style: str) -> str:
    """Writes the mean of some numbers with its 95% interval by Student's t."""
    numbers = pd.Series(list(values))
    mean = numbers.mean()
    low, high = scores.students_t(mean, numbers.std(), numbers.count())
    return interval({"value": mean, "low": low, "high": high}, style)


def render(source: Path, root: Path = _ROOT) -> str:
    """Renders the page of a source with the files under `root`."""

    def load(path: str) -> Any:
        file = root / path
        return pd.read_csv(file) if file.suffix == ".csv" else json.loads(file.read_text())

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"load": load, "fields": settings.FIELDS, "groups": experiment.GROUPS}
    filters: list[Any] = [where, score, lead, rows, named, says, interval, difference, number, span]
    filters += [mean_interval, median, experiment.describe, describe_default]
    environment.filters |= {each.__name__: each for each in filters} | {"mean": fmean}
    page = environment.from_string(source.read_text()).render()
    return f"<!-- Made of {source.name} by tools/render_pages.py. -->\n\n{page}"


def sources() -> list[Path]:
    """Lists the sources of the repository's pages."""
    places = ("*", "docs/*", "results/**/*")
    return sorted(path for place in places for path in _ROOT.glob(f"{place}.md.j2"))


def main(argv: Sequence[str]) -> None:
    """Writes the pages, and names those that change."""
    for source in sources():
        page, text = source.with_suffix(""), render(source)
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
            print(page.relative_to(_ROOT))


if __name__ == "__main__":
    program.run(main, flags.FLAGS)

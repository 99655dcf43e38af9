"""A comparison's part of a report: what its sections are computed from, and how they write it."""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from scalable_agent_popart import scores
from scalable_agent_popart.errors import one_line
from scalable_agent_popart.report.compare import Comparison, in_words
from scalable_agent_popart.report.drawing import Styles, styles_of
from scalable_agent_popart.report.final_scores import FinalScores
from scalable_agent_popart.suites import Suite

NUMBER = "%.9g"  # Nine digits are all a float32 holds.
SUMMARY = "summary.csv"
MAX_COLUMNS = 8  # Tasks in a table with a column for each.
_MACROS = """
{% macro link(file) %}<a href="{{ file }}"><code>{{ file }}</code></a>{% endmacro %}
{% macro lines(head, texts) %}
{% if texts %}
<p>{{ head }}</p>
<ul>{% for text in texts %}<li><code>{{ text }}</code></li>{% endfor %}</ul>
{% endif %}
{% endmacro %}
{% macro table(heads, rows) %}
<table>
<thead><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
{% endmacro %}
"""
_FIGURE = '<p><img alt="{{ says }}" src="data:image/png;base64,{{ data }}"></p>'
_ENVIRONMENT = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=lambda value: value if isinstance(value, Markup) else one_line(str(value)),
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals |= {"recent": scores.RECENT_EPISODES, "summary": SUMMARY}


def several_runs(table: pd.DataFrame) -> bool:
    """Returns whether any agent of a table with a row per run, or more, has several runs."""
    return bool(table.groupby("agent")["run"].nunique().max() > 1)


@dataclass(frozen=True)
class Chapter:
    """One comparison's part of a report in a directory, with its files."""

    comparison: Comparison
    finals: Sequence[FinalScores]  # One for each way to test.
    recorded: Mapping[str, pd.DataFrame]  # What its runs recorded, by section.
    summary: pd.DataFrame  # All numbers, see `page.open_chapter`.
    name: str  # The chapter's files begin with it.
    directory: Path

    @property
    def suite(self) -> Suite:
        return self.comparison.suite

    @property
    def headline(self) -> str:
        """The name of the aggregate over tasks that agents are compared by first."""
        return f"{self.suite.headline.replace('_', ' ')} {self.suite.score_name}"

    @property
    def published(self) -> bool:
        """Returns whether the summary has published scores next to the agents' own."""
        return bool((self.summary["kind"] == "published").any())

    @property
    def clippings(self) -> dict[str, str]:
        """Each agent's reward clipping, by label; that of a file of scores is empty."""
        agents = self.comparison.agents
        return {agent.label: agent.runs[0].config.reward_clipping for agent in agents}

    @property
    def styles(self) -> Styles:
        """Each agent's look in figures, by label."""
        agents, clippings = self.comparison.agents, self.clippings
        return styles_of([(agent.name, clippings[agent.label], agent.label) for agent in agents])

    def render(self, template: str, **values: Any) -> Markup:
        """Renders a section's words, as `render`; they know the chapter, too."""
        return render(template, chapter=self, **values)

    def figure(self, figure: Figure, name: str, says: str) -> Markup:
        """Writes a figure; returns it as the page embeds it."""
        path = self.directory / f"figures/{self.name}-{name}.png"
        figure.savefig(path, dpi=110)
        return render(_FIGURE, says=says, data=base64.b64encode(path.read_bytes()).decode())

    def figures(
        self, name: str, table: pd.DataFrame, draw: Callable[..., Figure], says: str, **given: Any
    ) -> Markup:
        """Writes a figure for each reward clipping, as in the paper; files' agents are in all."""
        drawn, clippings = Markup(), table["agent"].map(self.clippings)
        for clipping in filter(None, clippings.unique()):
            figure = draw(table[clippings.isin([clipping, ""])], **given)
            agents = in_words("reward_clipping", clipping)
            caption = f"{self.comparison.title}, {agents}: {says}"
            drawn += self.figure(figure, f"{name}-{clipping}", caption)
        return drawn

    def file(self, table: pd.DataFrame, name: str) -> str:
        """Writes a table that has any rows; returns its path in the report's directory."""
        file = f"tables/{self.name}-{name}.csv"
        if len(table):
            path = self.directory / file
            table.to_csv(path, index=False, errors="replace", float_format=NUMBER)
        return file


def render(template: str, **values: Any) -> Markup:
    """Renders a template as HTML with the macros; anybody's text is shown as it is."""
    return Markup(_ENVIRONMENT.from_string(_MACROS + template).render(values))


def interval(row: Mapping[str, Any], style: str = "", unit: str = "") -> str:
    """Writes a row's value, with its 95% interval where that is known."""
    low, high = row["low"], row["high"]
    style = style or scores.score_style(unit, row["value"], low, high)
    text = f"{row['value']:{style}}{unit}"
    if math.isnan(low):
        return text
    if row.get("kind") == "agent" and row["runs"] == 1:  # It is a bootstrap over episodes.
        return f"{text} {scores.write_interval(low, high, style)}"
    return f"{text} [{low:{style}}, {high:{style}}]"


def short(count: float) -> str:
    """Writes a count with three digits at most."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * unit:  # A little less is rounded to it.
            return f"{count / unit:.3g}{letter}"
    return f"{count:.0f}"


def long(wide: pd.DataFrame, name: str) -> pd.DataFrame:
    """Makes a row of each value that is known, with its column's name in the column `name`."""
    # The values' name must be no task's, so it is a number at first.
    table = wide.melt(var_name=name, value_name=0, ignore_index=False).dropna(subset=0)
    return table.reset_index().rename(columns={0: "value"})


def agents_numbers(summary: pd.DataFrame, measure: str, **where: str) -> pd.DataFrame:
    """Selects agents' numbers of a measure, over all their runs or published, and random play's."""
    rows = ~summary["kind"].isin(["difference", "run"]) & (summary["measure"] == measure)
    for name, value in where.items():
        rows &= summary[name] == value
    return summary[rows]


def unscored(table: pd.DataFrame) -> pd.Series:
    """Marks the returns of tasks without normalised scores."""
    scored = table.loc[table["measure"] == "normalised", "task"]
    return (table["measure"] == "return") & ~table["task"].isin(scored)


def written(
    table: pd.DataFrame,
    rows: list[str],
    column: Any,
    names: Sequence[Any],
    write: Callable[[Any], str],
) -> dict[tuple, list[str]]:
    """Writes a table's numbers: a row by the values of `rows`, with a cell for each of `names`.

    A name is the value of a column, or of several. A cell without a number is empty.
    """
    lines = {}
    for key, group in table.groupby(rows, sort=False):
        entries = group.set_index(column, drop=False).to_dict("index")
        lines[key] = [write(entries[name]) if name in entries else "" for name in names]
    return lines

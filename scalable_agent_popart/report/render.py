"""Writes numbers and words as reports show them; templates may get anybody's text."""

import math
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from scalable_agent_popart import scores
from scalable_agent_popart.errors import one_line

MAX_DRAWN = 60  # Tasks in a figure with a part for each; those of Atari-57 can be read.
_MACROS = """
{% macro link(file) %}<a href="{{ file }}"><code>{{ file }}</code></a>{% endmacro %}
{% macro lines(head, texts) %}
{% if texts %}
<p>{{ head }}</p>
<ul>
{% for text in texts %}
<li><code>{{ text }}</code></li>
{% endfor %}
</ul>
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
{% macro drawn(part) %}
{# Shows figures and what is called with, or names the figure that has too many parts. #}
{% if part.tasks > most_drawn %}
<p>
The figure "{{ part.says }}" is left out. It would have a part for each of {{ part.tasks }} tasks,
and with more than {{ most_drawn }} it cannot be read. Its numbers are in {{ link(part.file) }}.
</p>
{% else %}
{{ part.figures }}
<p>{{ caller() }}</p>
{% endif %}
{% endmacro %}
"""
_ENVIRONMENT = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=lambda value: value if isinstance(value, Markup) else one_line(str(value)),
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals |= {"recent": scores.RECENT_EPISODES, "most_drawn": MAX_DRAWN}


def render(template: str, **values: Any) -> Markup:
    """Renders a template as HTML, in which all values are shown as they are; macros serve it."""
    return Markup(_ENVIRONMENT.from_string(_MACROS + template).render(values))


def interval(row: Mapping[str, Any], style: str = "", unit: str = "") -> str:
    """Writes a row's value, with its 95% interval where that is known.

    By default the digits are those of `scores.score_style`.
    """
    low, high = row["low"], row["high"]
    style = style or scores.score_style(unit, row["value"], low, high)
    text = f"{row['value']:{style}}{unit}"
    if math.isnan(low):
        return text
    if row.get("kind") == "agent" and row["runs"] == 1:  # It is a bootstrap over episodes.
        return f"{text} {scores.write_interval(low, high, style)}"
    return f"{text} [{low:{style}}, {high:{style}}]"


def with_ends(value: float, low: float, high: float, style: str) -> str:
    """Writes a value over runs with the ends of its interval or range, if it has any width."""
    return f"{value:{style}}" + (f" [{low:{style}}, {high:{style}}]" if high > low else "")


def short(count: float) -> str:
    """Writes a count with three digits at most."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * unit:  # A little less is rounded to it.
            return f"{count / unit:.3g}{letter}"
    return f"{count:.0f}"

"""Writes numbers as reports show them, and renders the templates, which may get anybody's text."""

import math
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from scalable_agent_popart import scores
from scalable_agent_popart.errors import one_line


def render_report(content: dict[str, Any]) -> str:
    """Returns the report as an HTML page, in which all text is shown as it is."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else one_line(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(content)


def number(value: float, style: str, missing: str | None = None) -> str:
    """Writes a number, or of NaN what stands for a missing one."""
    if not math.isnan(value):
        return f"{value:{style}}"
    if missing is None:
        raise ValueError("a number is missing")
    return missing


def interval(row: Mapping[str, Any], style: str = "", unit: str = "") -> str:
    """Writes a row's value, with its 95% interval where that is known.

    By default the digits are those of `scores.score_style`.
    """
    low, high = row["low"], row["high"]
    style = style or scores.score_style(unit, row["value"], low, high)
    text = f"{number(row['value'], style)}{unit}"
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

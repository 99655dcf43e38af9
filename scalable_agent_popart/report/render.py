"""Renders the report's templates, which get text that may be anybody's and show it as it is."""

import html
import math
import re
from collections.abc import Callable
from typing import Any

import jinja2
from markupsafe import Markup

# What Markdown or HTML would take for markup; within words underscores are none.
_MARKUP = re.compile(r"([\\`*|]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))")


def render_report(content: dict[str, Any]) -> dict[str, str]:
    """Returns the report as an HTML page and as Markdown, by the ending of the file's name."""
    environment = _environment(one_line)
    page = environment.get_template("report.html.j2").render(content)
    environment = _environment(_markdown)
    environment.filters["as_code"] = _markdown_code
    environment.filters["in_one_line"] = lambda text: Markup(str(text).strip().replace("\n", " "))
    text = environment.get_template("report.md.j2").render(content)
    return {"html": page, "md": re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"}


def number(value: float, style: str, missing: str | None = None) -> str:
    """Writes a number, or of NaN what stands for a missing one."""
    if not math.isnan(value):
        return f"{value:{style}}"
    if missing is None:
        raise ValueError("a number is missing")
    return missing


def one_line(text: str) -> str:
    """Returns text without line breaks, and without what a terminal would act upon."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _environment(shown: Callable[[str], str]) -> jinja2.Environment:
    """Makes an environment for the templates, in which all text but markup passes `shown`."""

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else shown(str(value))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment


def _markdown(text: str) -> Markup:
    """Returns Markdown that shows a text as it is."""
    return Markup(_MARKUP.sub(r"\\\1", html.escape(one_line(text), quote=False)))


def _markdown_code(value: Any) -> Markup:
    """Returns Markdown that shows a value's text as it is, as code."""
    return Markup("`" + one_line(str(value)).replace("`", "'") + "`")

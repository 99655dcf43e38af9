"""Reads a report's page as text, in lines that tests can search."""

from html.parser import HTMLParser
from pathlib import Path

_LINES = {"h1": "# ", "h2": "## ", "h3": "### ", "summary": "### ", "p": "", "li": "* ", "tr": "|"}
_BEGINS = {"code": "`", "td": " ", "th": " ", "table": "\0\0", "style": "\0\0"}
_ENDS = {"code": "`", "td": " |", "th": " |"}


def read_report(directory: Path) -> str:
    """Returns headings, paragraphs, items and rows of tables, each with its mark of Markdown."""
    parts = read_page(directory).parts
    lines = (" ".join(line.split()) for line in "".join(parts).split("\0"))
    return "\n".join(filter(None, lines)) + "\n"


def read_page(directory: Path) -> "PageReader":
    """Reads the page of a report."""
    reader = PageReader()
    reader.feed((directory / "report.html").read_text())
    return reader


class PageReader(HTMLParser):
    """Collects the parts of a page's text, and each tag's attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_cell |= tag in ("td", "th")
        self.parts.append("\0" + _LINES[tag] if tag in _LINES else _BEGINS.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._in_cell &= tag not in ("td", "th")
        self.parts.append("\0" if tag in _LINES else _ENDS.get(tag, ""))

    def handle_data(self, data: str) -> None:
        self.parts.append(data.replace("|", "\\|") if self._in_cell else data)

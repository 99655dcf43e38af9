"""Reads a report's page as text, in lines that tests can search."""

from html.parser import HTMLParser
from pathlib import Path

_LINES = {"h1": "# ", "h2": "## ", "h3": "### ", "summary": "### ", "p": "", "li": "* ", "tr": "|"}


def read_report(directory: Path) -> str:
    """Returns headings, paragraphs, items and rows of tables, each with its mark of Markdown."""
    reader = _Reader()
    reader.feed((directory / "report.html").read_text())
    lines = (" ".join(line.split()) for line in "".join(reader.parts).split("\0"))
    return "\n".join(filter(None, lines)) + "\n"


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _LINES:
            self.parts.append("\0" + _LINES[tag])
        elif tag == "code":
            self.parts.append("`")
        elif tag in ("td", "th"):
            self.parts.append(" ")
            self._in_cell = True
        elif tag in ("table", "style"):
            self.parts.append("\0\0")

    def handle_endtag(self, tag: str) -> None:
        if tag in _LINES:
            self.parts.append("\0")
        elif tag == "code":
            self.parts.append("`")
        elif tag in ("td", "th"):
            self.parts.append(" |")
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.parts.append(data.replace("|", "\\|") if self._in_cell else data)

"""The mechanical part of the project's English: openings in Python, and lengths of sentences."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.text.repository import ROOT, files_named, name_of

_MAX_WORDS = 30
_OPENING = re.compile(r"(Of|That|Which|Where|Until|As|Or|For|Tells|Gives|Says)\b")
_MODULES = [path for path in files_named(".py") if "_pb2" not in path.name]
_PAGES = [ROOT / "README.md", *files_named(".md", "docs")]
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _texts(module: Path) -> Iterator[str]:
    """Yields the docstrings, and the first line of each comment."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, _DOCUMENTED):
            yield ast.get_docstring(node) or ""
    last = -1
    with tokenize.open(module) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                alone = token.line.lstrip().startswith("#")
                if not alone or last != token.start[0] - 1:
                    yield token.string.lstrip("# ")
                last = token.start[0] * alone


@pytest.mark.parametrize("module", _MODULES, ids=name_of)
def test_comments_and_docstrings_open_as_sentences_do(module: Path) -> None:
    assert not [text for text in _texts(module) if _OPENING.match(text)]


def _sentences(page: str) -> list[str]:
    """Returns the sentences; headings, items of lists and cells of tables are texts, too."""
    page = re.sub(r"```.*?```|\$\$.*?\$\$|<[^>]+>", "", page, flags=re.DOTALL)
    page = re.sub(r"`[^`]*`|\$[^$]*\$", "CODE", page)
    # Links keep their texts.
    page = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", page)
    texts = re.split(r"\n\s*\n|\n\s*(?:[-*#]+|\d+\.) |(?<!\\)\|", page)
    return [part for text in texts for part in re.split(r"[.:?!]['\")*]*\s+(?=\W*[A-Z])", text)]


@pytest.mark.parametrize("page", _PAGES, ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    sentences = _sentences(page.read_text())
    assert not [sentence for sentence in sentences if len(sentence.split()) > _MAX_WORDS]

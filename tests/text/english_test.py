"""The mechanical part of the project's English: openings in Python, and lengths of sentences."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_MAX_WORDS = 30
_OPENING = re.compile(r"(Of|That|Which|Where|Until|As|Or|For|Tells|Gives|Says)\b")
_FOLDERS = ("scalable_agent_popart", "bazel", "benchmarks", "docs", "tests", "tools")
_MODULES = [
    *_ROOT.glob("*.py"),
    *(path for folder in _FOLDERS for path in _ROOT.glob(f"{folder}/**/*.py")),
]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _id(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _texts(module: Path) -> Iterator[str]:
    """Yields the docstrings, and the first line of each comment."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, _DOCUMENTED):
            yield ast.get_docstring(node) or ""
    last = 0
    with tokenize.open(module) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                alone = token.line.lstrip().startswith("#")
                if not alone or last != token.start[0] - 1:
                    yield token.string.lstrip("# ")
                last = token.start[0] * alone


@pytest.mark.parametrize("module", [path for path in _MODULES if "_pb2" not in path.name], ids=_id)
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


@pytest.mark.parametrize("page", _PAGES, ids=_id)
def test_sentences_are_short(page: Path) -> None:
    sentences = _sentences(page.read_text())
    assert not [sentence for sentence in sentences if len(sentence.split()) > _MAX_WORDS]

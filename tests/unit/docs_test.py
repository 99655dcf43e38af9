"""The pages: links lead somewhere, names of code exist, and tables are those of the CSV files."""

import ast
import re
from pathlib import Path

import pytest

from tools import write_tables

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = write_tables.pages(_ROOT)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_NAME = re.compile(r"`([\w/]+\.py)(?::([\w.]+))?`")


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def _defines(path: Path, name: str) -> bool:
    """Returns whether a module defines a function, class, method, field or constant."""
    body = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = None
        for node in body:
            targets = [getattr(node, "target", None), *getattr(node, "targets", [])]
            names = [getattr(node, "name", None), *(getattr(t, "id", None) for t in targets)]
            found = node if part in names else found
        if found is None:
            return False
        body = getattr(found, "body", [])
    return True


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.relative_to(_ROOT).as_posix())
def test_links_lead_somewhere_and_tables_are_those_that_the_csv_files_make(page: Path) -> None:
    text = page.read_text()
    for target, anchor in _LINK.findall(text):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), f"{target}#{anchor}"
    assert write_tables.fill(text, _ROOT) == text, "run tools/write_tables.py"
    assert not re.search(r"^\s*([*-] )?<!-- value:", text, re.M), "would be a block of HTML"


@pytest.mark.parametrize("name", ["paper.md", "contributing.md"])
def test_names_of_code_exist(name: str) -> None:
    found = _NAME.findall((_ROOT / "docs" / name).read_text())
    assert found
    for file, thing in found:
        (path,) = [each for each in (_ROOT / file, *_ROOT.glob(f"*/**/{file}")) if each.is_file()][
            :1
        ]
        assert not thing or _defines(path, thing), f"{file}:{thing}"

"""The pages: links lead somewhere, names of code exist, and numbers are those of the files."""

import ast
import re
from pathlib import Path

import pytest

from tools import render_pages

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = [
    f"{name}/**/*" for name in ("agents", "bazel", "benchmarks", "configs", "docs", "results")
]
_CODE = ("scalable_agent_popart", "bazel", "benchmarks", "tests", "tools")
_PAGES = [page for place in ("*", *_FOLDERS) for page in _ROOT.glob(f"{place}.md")]
_SOURCES = render_pages.sources()
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_NAME = re.compile(r"`([\w/]+\.py)(?::([\w.]+))?`")


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def _defines(path: Path, name: str) -> bool:
    """Returns whether a module defines a function, class, method, field or constant."""
    body = ast.parse(path.read_text()).body
    for part in name.split("."):
        names = {}
        for node in body:
            targets = [node, getattr(node, "target", None), *getattr(node, "targets", [])]
            names |= {getattr(t, "name", None) or getattr(t, "id", None): node for t in targets}
        if part not in names:
            return False
        body = getattr(names[part], "body", [])
    return True


def _id(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


@pytest.mark.parametrize("page", _PAGES, ids=_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("source", _SOURCES, ids=_id)
def test_pages_are_those_that_their_sources_and_the_files_make(source: Path) -> None:
    page = source.with_suffix("").read_text()
    assert render_pages.render(source) == page, "run tools/render_pages.py"


@pytest.mark.parametrize("name", ["paper.md", "code_tour.md", "contributing.md", "verification.md"])
def test_names_of_code_exist(name: str) -> None:
    names = _NAME.findall((_ROOT / "docs" / name).read_text())
    assert names
    for file, thing in names:
        below = (path for folder in _CODE for path in _ROOT.glob(f"{folder}/**/{file}"))
        path = next(filter(Path.is_file, (_ROOT / file, *below)), None)
        assert path, file
        assert not thing or _defines(path, thing), f"{file}:{thing}"

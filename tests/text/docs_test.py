"""The pages: links lead somewhere, names of code exist, and numbers are those of the files."""

import ast
import re
from pathlib import Path

import pytest

from scalable_agent_popart.suites import suite
from tests.text.repository import ROOT, files_named, name_of
from tools import render_pages

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


@pytest.mark.parametrize("page", files_named(".md"), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("source", render_pages.sources(), ids=name_of)
def test_pages_are_those_that_their_sources_and_the_files_make(source: Path) -> None:
    page = source.with_suffix("").read_text()
    assert render_pages.render(source) == page, "run tools/render_pages.py"


@pytest.mark.parametrize("name", ["paper.md", "code_tour.md", "contributing.md", "verification.md"])
def test_names_of_code_exist(name: str) -> None:
    names = _NAME.findall((ROOT / "docs" / name).read_text())
    assert names
    for file, name_in_file in names:
        modules = [path for path in files_named(".py") if f"/{name_of(path)}".endswith(f"/{file}")]
        assert modules, file
        assert not name_in_file or any(_defines(path, name_in_file) for path in modules), (
            f"{file}:{name_in_file}"
        )


def test_the_page_on_own_suites_gives_their_defaults() -> None:
    page = " ".join((ROOT / "docs" / "own_suite.md").read_text().split())
    for name, value in suite._DEFAULTS.items():
        if name != "pbt_burn_in_frames":  # Set by `make_suite`.
            assert f"`{name}` {value}" in page

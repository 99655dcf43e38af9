"""Hooks of MkDocs: pages of `results/`, links, formulas and the order of search results.

Pages are written for the repository, where links to other folders are paths of files. On the site
`results/` stands next to the other pages, and a link to any other file becomes plain text.
"""

import html
import os
import re
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parents[1]
_KINDS = (".md", ".png", ".csv", ".json")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FORMULA = re.compile(r'(<(span|div) class="arithmatex">)\\[(\[](.*?)\\[)\]]', re.DOTALL)
# A search shows the reference first, and records of what was tried last.
_SEARCH_BOOSTS = {
    "configuration.md": 8.0,
    "formats.md": 2.0,
    "details.md": 0.5,
    "verification.md": 0.25,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, figures and tables of `results/`."""
    for path in sorted((_ROOT / "results").rglob("*")):
        if path.suffix in _KINDS:
            source = path.relative_to(_ROOT).as_posix()
            files.append(File.generated(config, source, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns the links of a page in the repository into those of a page on the site.

    Drops the comment above the title of a rendered page, below which MkDocs would not look for it.
    """
    name = Path(page.file.src_uri).name
    page.meta["search"] = {"boost": _SEARCH_BOOSTS.get(name, 1.0)}
    markdown = re.sub(r"\A<!--.*?-->\s*", "", markdown)
    of_results = page.file.src_uri.startswith("results/")
    folder = (_ROOT if of_results else _ROOT / "docs") / Path(page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups()
        path = Path(os.path.normpath(folder / target))
        if ":" in target or not path.is_relative_to(_ROOT):
            return found[0]
        target_uri = path.relative_to(_ROOT).as_posix().removeprefix("docs/")
        if files.get_file_from_path(target_uri) is None:
            # Not a page of the site. A path that does not exist is left for MkDocs to report.
            return text if path.exists() and not image else found[0]
        here = Path(page.file.src_uri).parent
        return f"{image}[{text}]({os.path.relpath(target_uri, here)}{anchor or ''})"

    return _LINK.sub(link, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turns formulas into MathML, which browsers draw without a script.

    Searches leave them out, because their letters would be words there.
    """

    def formula(found: re.Match[str]) -> str:
        start, tag, latex = found.groups()
        display = "block" if tag == "div" else "inline"
        mathml = latex2mathml.converter.convert(html.unescape(latex).strip(), display=display)
        return start + mathml.replace("<math", '<math data-search-exclude="true"', 1)

    return _FORMULA.sub(formula, content)

"""Kept results have pages, are small, and say nothing of folders where they were made."""

import re

from tests.text.repository import ROOT, files_named


def test_results_say_nothing_of_the_machine_they_were_made_on_but_what_it_is() -> None:
    paths = [ROOT / "README.md"]
    for ending in (".md", ".csv", ".json", ".jsonl", ".flags"):
        paths += files_named(ending, "results", "configs")
    for path in paths:
        assert not re.search(r"/(tmp|root|home|work|workspace)/", path.read_text()), path


def test_experiments_have_a_page_and_a_summary_and_no_large_file() -> None:
    kept = [path.relative_to(ROOT / "results") for path in files_named("", "results")]
    pages = "".join(path.read_text() for path in files_named(".md", "results"))
    for name in {path.parts[0] for path in kept if len(path.parts) > 1}:
        folder = ROOT / "results" / name
        page_of_another = f"](../{name}/summary.csv)" in pages
        assert (folder / "README.md").is_file() or page_of_another, folder
        assert (folder / "summary.csv").is_file() or not (folder / "runs.json").is_file(), folder
    assert all((ROOT / "results" / path).stat().st_size < 1_000_000 for path in kept)

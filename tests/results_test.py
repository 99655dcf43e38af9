"""The README's tables of results are those of the reports under `results/`."""

import re
from pathlib import Path

import pandas as pd
import pytest

_ROOT = Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "results"
_README = (_ROOT / "README.md").read_text()


def rows(tables: Path, prefix: str) -> list[str]:
    """A line of Markdown for each agent: its score on each level, and over all with an interval."""
    whole = pd.read_csv(tables / f"{prefix}-table-1-noop.csv")
    levels = pd.read_csv(tables / f"{prefix}-levels-noop.csv")
    lines = []
    for entry in whole.dropna(subset="score").to_dict("records"):
        own = levels[levels["agent"] == entry["agent"]]
        cells = [f"{score:.0f}" for score in own["normalised"]]
        over_all = f"**{entry['score']:.1f}** [{entry['low']:.1f}, {entry['high']:.1f}]"
        lines.append(f"| {entry['agent']} | {' | '.join(cells)} | {over_all} |")
    return lines


@pytest.mark.parametrize(("experiment", "prefix"), [("catch5", "catch5")])
def test_tables_are_those_of_the_reports(experiment: str, prefix: str) -> None:
    expected = rows(_RESULTS / experiment / "tables", prefix)
    assert len(expected) > 2
    for row in expected:
        assert row in _README


def test_what_the_readme_and_the_results_refer_to_is_there() -> None:
    pages = [_ROOT / "README.md", *_RESULTS.glob("**/*.md"), *_ROOT.glob("configs/*.md")]
    for page in pages:
        for name in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in name or (page.parent / name).exists(), f"{page}: {name}"
    figures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", _README)
    assert all(name.startswith("results/") for name in figures)


def test_results_say_nothing_of_the_machine_they_were_made_on_but_what_it_is() -> None:
    for path in _RESULTS.glob("**/*"):
        if path.suffix in (".md", ".csv", ".json", ".jsonl"):
            assert not re.search(r"/(tmp|root|home|work|workspace)/", path.read_text()), path

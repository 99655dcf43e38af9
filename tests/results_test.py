"""What the README and the pages under `results/` say is what the files beside them hold."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from absl import flags
from absl.testing import flagsaver

import experiment
from scalable_agent_popart.config import Config

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


@pytest.mark.parametrize(
    ("folder", "prefix"), [("catch5", "catch5"), ("atari4", "atari57-4-tasks")]
)
def test_tables_are_those_of_the_reports(folder: str, prefix: str) -> None:
    expected = rows(_RESULTS / folder / "tables", prefix)
    assert len(expected) > 2
    for row in expected:
        assert row in _README


def test_parts_of_gradients_are_those_of_the_measurements() -> None:
    page = (_RESULTS / "atari4" / "README.md").read_text()
    table = pd.read_csv(_RESULTS / "atari4" / "tables" / "atari57-4-tasks-gradients.csv")
    half = table[(table["loss"] == "policy") & (table["frames"] > 5_000_000)]
    assert len(half["run"].unique()) > 2
    for (agent, seed), own in half.groupby(["agent", "seed"]):
        parts = own.groupby("task", sort=False)["part"].mean()
        cells = " | ".join(f"{part:.0%}" for part in parts)
        assert f"| {agent.removesuffix(' (unclipped)')}, seed {seed} | {cells} |" in page


def _records() -> list[Any]:
    return [
        pytest.param(record, id=record["run"])
        for path in sorted(_RESULTS.glob("**/runs.json"))
        for record in json.loads(path.read_text())["runs"]
    ]


@pytest.mark.parametrize("record", _records())
def test_runs_were_made_with_the_flags_of_their_files(record: dict[str, Any]) -> None:
    path = _ROOT / "configs" / record["flag_file"]
    with flagsaver.flagsaver():
        flags.FLAGS(["experiment.py", f"--flagfile={path}", f"--seed={record['seed']}"])
        config = dataclasses.asdict(Config.from_flags(experiment.given_flags()))
    made = record["flags"]
    # Flags may have been added since, but none is another now.
    assert {"level_name", "reward_clipping", "use_popart", "seed"} <= made.keys() <= config.keys()
    # How often records are made changes nothing else.
    assert {**config, **made, "log_seconds": None} == {**config, "log_seconds": None}


def test_pages_are_whole() -> None:
    """No line is a mere name for what was to be put there."""
    for page in [_ROOT / "README.md", *_RESULTS.glob("**/*.md")]:
        assert not re.search(r"^[A-Z@_]{3,}$", page.read_text(), re.MULTILINE), page


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

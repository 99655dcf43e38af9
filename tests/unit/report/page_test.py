"""Whole reports through `experiment.main`: what is written, and what is refused."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from absl import flags
from absl.testing import flagsaver
from PIL import Image

import experiment
from scalable_agent_popart.report.page import write_report
from scalable_agent_popart.report.tables import IMPALA
from tests.fakes.synthetic_runs import make_population, make_run

_ROOT = Path(__file__).resolve().parents[3]
_THREE = "pong,boxing,crazy_climber"
_NAME = "<b>_bold_ *run* | 1"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several agents on three games, one of another suite, and what is no run."""
    root, games = tmp_path_factory.mktemp("runs"), {"level_name": _THREE}
    popart = {**games, "use_popart": True}
    for seed in (1, 2):
        make_run(root / f"popart-{seed}", 80.0, seed=seed, log_task_gradients=True, **popart)
    make_run(root / "unclipped", 60.0, reward_clipping="none", **popart)
    impala = make_run(root / "impala", 20.0, tests={"noop": 3, "human": 3}, **games)
    config = impala.read_config()
    assert config is not None
    impala.record(config, 0, {"processor": "EPYC", "cores": 2, "gpus": []})
    make_run(root / "unfinished", 10.0, episodes=3, tests={}, multi_head=True, **games)
    make_run(root / _NAME, 90.0, level_name="catch5")
    damaged = make_run(root / "damaged", pixel_control=True, **popart)
    damaged.evaluation.write_bytes(b"\x00\xff")
    damaged.metrics.write_bytes(damaged.metrics.read_bytes()[:5000])
    (root / "empty").mkdir()
    return root


def _report(out: Path, *directories: Path, **given: Any) -> str:
    """Writes a report and returns its Markdown."""
    flags.FLAGS(["experiment.py"])
    names = [str(path) for path in directories]
    with flagsaver.flagsaver(mode="report", runs=names, report_dir=str(out), **given):
        experiment.main(["experiment.py"])
    return (out / "report.md").read_text()


def _refusal(**given: Any) -> str:
    flags.FLAGS(["experiment.py"])
    with flagsaver.flagsaver(mode="report", **given), pytest.raises(SystemExit) as info:
        experiment.main(["experiment.py"])
    message = str(info.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def _table(markdown: str, head: str) -> dict[str, dict[str, str]]:
    """The rows of the first Markdown table whose first column is called so, by that column."""
    rows = re.search(rf"^\| {head} \|.*?(?=\n\n|\Z)", markdown, re.DOTALL | re.MULTILINE)
    assert rows
    lines = rows[0].replace("\\|", "¦").splitlines()
    heads, _, *cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return {row[0]: dict(zip(heads, row, strict=True)) for row in cells}


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on all of them, one of them named three times."""
    out = tmp_path_factory.mktemp("report") / "new"
    (out.parent / "link").symlink_to(runs / "impala")
    _report(out, *sorted(runs.iterdir()), out.parent / "link", runs / "empty" / ".." / "impala")
    return out


def test_a_report_names_every_run_and_file_and_what_was_left_out(
    runs: Path, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (written / "report.md").read_text()
    shown = re.findall(rf"`{runs}/([^`]+)` \| \d", text.replace("\\|", "¦"))
    expected = {path.name.replace("|", "¦") for path in runs.iterdir()} - {"empty", "impala"}
    assert sorted(shown) == sorted([*expected, "empty/../impala"])
    named = re.findall(r"(?:figures|tables)/[^)`]+", text)
    assert {str(p.relative_to(written)) for p in written.glob("*/*")} == set(named)
    assert "## Atari-57, a subset of 3 of 57 tasks: boxing, crazy_climber, pong" in text
    assert "## Catch-5" in text
    assert "| 2 cores of EPYC |" in text
    # Skipped lines are in the page and among the errors.
    text = _report(tmp_path, runs / "empty", runs / "damaged", runs / "nowhere")
    errors = capsys.readouterr().err
    for name in ("empty", "damaged/evaluation.json", "damaged/metrics.jsonl", "nowhere"):
        assert f"* `{runs / name}" in text
        assert f"note: {runs / name}" in errors


def test_tables_are_those_of_the_files(written: Path) -> None:
    text = (written / "report.md").read_text().split("## Atari")[1]
    rows, cells = _table(text, "Agent"), _table(text, "Level")
    popart = "PopArt-IMPALA"
    variants = [popart, f"{popart} (unclipped)", f"Pixel-{popart}"]
    assert list(rows) == ["IMPALA", "MultiHead-IMPALA", *variants, IMPALA]
    noop = pd.read_csv(written / "tables" / "atari57-3-tasks-table-1-noop.csv").set_index("agent")
    for agent, row in noop.drop(IMPALA).iterrows():
        cell = rows[str(agent)]["random starts: ours"]
        assert cell.startswith(f"{row['score']:.1f}% [{row['low']:.1f}, {row['high']:.1f}]")
        assert ("†" in cell) == (row["source"] == "training")
    published = f"{noop['published'][IMPALA]:.1f}%"
    assert rows[IMPALA]["random starts: published"] == published
    assert rows[popart]["random starts: from"] == "2 runs, 5 episodes a task, 120k frames"
    assert rows[popart]["human starts: ours"] == "" != rows["IMPALA"]["human starts: ours"]
    levels = pd.read_csv(written / "tables" / "atari57-3-tasks-levels-noop.csv")
    for entry in levels[levels["agent"] == popart].to_dict("records"):
        cell = f"{entry['normalised']:.1f}% [{entry['low']:.1f}, {entry['high']:.1f}]"
        assert cells[entry["level"]][popart] == cell
    assert "| IMPALA | 1 | 1,000 | 550 | 0.5 | 3, 33.33% to 33.33% |" in text
    # Task k of 3 has sizes k/10, 2k/10, ..., 49k/10, and of the total loss the squares of that.
    assert f"| {popart} | policy loss: part of all sizes (mean) | 16.7% | 33.3% | 50.0% |" in text
    assert f"| {popart} | total loss: size (median) | 6.25 | 25 | 56.2 |" in text


def test_the_page_needs_no_other_file_and_its_figures_are_no_empty_pictures(written: Path) -> None:
    page = (written / "report.html").read_text()
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == len(list((written / "figures").iterdir()))
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.findall(r'href="|url\(|<script|<link', page)
    heads = re.findall(r"^\| --- \|", (written / "report.md").read_text(), re.MULTILINE)
    assert page.count("<table>") == len(heads)
    assert "&lt;b&gt;_bold_ *run*" in page
    assert "<b>" not in page
    for path in (written / "figures").iterdir():
        with Image.open(path) as image:
            assert min(image.size) >= 300
            assert len(image.convert("RGB").getcolors(2**24)) > 20


def test_a_whole_benchmark_has_the_papers_rows_even_where_ours_are_missing(tmp_path: Path) -> None:
    for rate in ("0.001", "0.01"):
        given = {"level_name": "atari57", "learning_rate": float(rate)}
        make_run(tmp_path / rate, episodes=1, tests={"noop": 1}, **given)
    text = _report(tmp_path / "out", tmp_path / "0.001", tmp_path / "0.01")
    rows = _table(text.split("## Atari-57")[1], "Agent")
    assert rows["PopArt-IMPALA"]["random starts: published"] == "110.7%"
    assert rows["IMPALA (learning_rate=0.01)"]["random starts: ours"] != ""
    assert rows["IMPALA (unclipped)"]["human starts: published"] == "1.0%"
    assert rows["IMPALA (unclipped)"]["human starts: ours"] == ""
    assert rows[IMPALA]["random starts: published"] == "59.7%"
    assert "A subset" not in text


def test_levels_and_ignored_flags_that_are_named_shape_the_comparison(
    runs: Path, tmp_path: Path
) -> None:
    make_run(tmp_path / "other", level_name=_THREE, precision="bfloat16")
    names = (runs / "impala", tmp_path / "other", runs / _NAME)
    given = {"level_name": "boxing,pong", "ignore_flags": ["precision"]}
    text = _report(tmp_path / "out", *names, **given)
    assert "a subset of 2 of 57 tasks: boxing, pong" in text
    assert f"{runs / _NAME} skipped: it was not trained on boxing,pong" in text
    assert _table(text, "Level").keys() == {"boxing", "pong"}
    assert _table(text.split("### Table 1")[1], "Agent").keys() == {"IMPALA", IMPALA}


def test_what_cannot_be_reported_or_written_is_one_line(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given: dict[str, Any] = {"runs": [str(runs / "impala")], "report_dir": str(out)}
    nothing = _refusal(**{**given, "runs": [str(runs / "empty"), "nowhere"]})
    assert str(runs / "empty") in nothing
    assert "nowhere" in nothing
    assert "--ignore_flags=speed is no flag" in _refusal(**given, ignore_flags=["speed"])
    assert not out.exists()
    for taken in ("out", "figures", "report.md", "report.html"):
        folder = tmp_path / f"no {taken}"
        folder.mkdir()
        (folder / taken).mkdir() if "." in taken else (folder / taken).touch()
        target = folder / taken if taken == "out" else folder
        message = _refusal(runs=[str(runs / _NAME)], report_dir=str(target))
        assert "cannot be written to" in message
        assert taken in message


def test_a_report_loads_no_tensorflow(runs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "experiment.py", "--mode=report"]
    command += [f"--runs={runs / 'impala'}", f"--report_dir={tmp_path / 'out'}"]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    lines = result.stderr.splitlines()
    imported = {line.rsplit("|", 1)[1].strip() for line in lines if "|" in line}
    assert "matplotlib" in imported
    assert not {"tensorflow", "sonnet", "keras"} & imported
    assert result.stdout.splitlines()[-1].endswith("report.html")


def test_populations_have_sections_and_tables_and_are_one_run_in_the_others(
    tmp_path: Path,
) -> None:
    for seed in (5, 10):
        make_population(tmp_path / str(seed), seed=seed)
    make_run(tmp_path / "run", level_name="catch5", use_popart=True)
    paths = [str(tmp_path / name) for name in ("5", "10", "run", "5/member-01")]
    assert write_report(paths, str(tmp_path / "out")) == []
    text = (tmp_path / "out" / "report.md").read_text()
    assert f"`{paths[0]}`, population of 5, best: member-03, 1 not begun |" in text
    assert f"`{paths[0]}/member-01`, of a population of 5 |" in text
    assert "| PopArt-IMPALA (population of 5) |" in text
    assert text.count("### Population-based training") == 2
    assert "ancestry of member-03, through 3 copies" in text
    assert next(iter(_table(text, "Member"))) == "member-03"
    for name in ("population-1.png", "population-2.png", "populations.csv", "ancestries.csv"):
        (file,) = (tmp_path / "out").glob(f"*/catch5-{name}")
        assert file.name in text
    folder = tmp_path / "out" / "tables"
    assert len(pd.read_csv(folder / "catch5-populations.csv")) == 2 * 15
    assert set(pd.read_csv(folder / "catch5-learning-curves.csv")["seed"]) == {1, 5, 10}

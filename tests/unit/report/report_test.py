"""Whole reports through `experiment.main`: what is written, and what is refused."""

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from absl import flags
from absl.testing import flagsaver
from PIL import Image

import experiment
from scalable_agent_popart import intervals
from scalable_agent_popart.report import figures, gradients, published
from tests.fakes.synthetic_runs import make_run

_ROOT = Path(__file__).resolve().parents[3]
_THREE = "pong,boxing,crazy_climber"


@pytest.fixture(autouse=True, scope="module")
def _parsed_flags() -> None:
    flags.FLAGS(["experiment.py"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several agents on three games."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        make_run(
            root / f"popart-{seed}", 80.0 * seed, level_name=_THREE, use_popart=True, seed=seed
        )
    make_run(root / "unclipped", 60.0, level_name=_THREE, use_popart=True, reward_clipping="none")
    make_run(root / "impala", 20.0, level_name=_THREE, tests={"noop": 3, "human": 3})
    make_run(root / "unfinished", 10.0, episodes=3, tests={}, level_name=_THREE, multi_head=True)
    make_run(root / "catch", 90.0, level_name="catch5")
    return root


def report(out: Path, *directories: Path, **given: Any) -> str:
    """Writes a report and returns its Markdown."""
    names = [str(path) for path in directories]
    with flagsaver.flagsaver(mode="report", runs=names, report_dir=str(out), **given):
        experiment.main(["experiment.py"])
    return (out / "report.md").read_text()


def _refusal(**given: Any) -> str:
    with flagsaver.flagsaver(mode="report", **given), pytest.raises(SystemExit) as exit_info:
        experiment.main(["experiment.py"])
    message = str(exit_info.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def _table(markdown: str, head: str) -> list[dict[str, str]]:
    """The rows of the Markdown table whose first column is called so."""
    lines = markdown.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    end = next((i for i, line in enumerate(lines[start:]) if not line.startswith("|")), len(cells))
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:end]]


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on all of them."""
    out = tmp_path_factory.mktemp("report") / "new"
    flags.FLAGS(["experiment.py"])
    report(out, *sorted(runs.iterdir()))
    return out


def test_markdown_names_every_run_and_every_file(runs: Path, written: Path) -> None:
    text = (written / "report.md").read_text()
    names = {row["Run"].strip("`") for row in _table(text, "Agent")}
    assert names == {str(path) for path in runs.iterdir()}
    named = re.findall(r"(?:figures|tables)/[^)`]+", text)
    assert {str(p.relative_to(written)) for p in written.glob("*/*")} == set(named)
    assert "## Atari-57, a subset of 3 of 57 tasks: boxing, crazy_climber, pong" in text
    assert "## Catch-5" in text
    assert "A subset" in text


def test_table_1_has_ours_beside_the_published(written: Path) -> None:
    rows = {
        row["Agent"]: row
        for row in _table((written / "report.md").read_text().split("## Atari")[1], "Agent")
    }
    assert list(rows) == [
        "IMPALA",
        "MultiHead-IMPALA",
        "PopArt-IMPALA",
        "PopArt-IMPALA (unclipped)",
        published.IMPALA,
    ]
    noop = pd.read_csv(written / "tables" / "atari57-3-tasks-table-1-noop.csv").set_index("agent")
    for agent, row in noop.iterrows():
        if agent == published.IMPALA:
            assert rows[str(agent)]["random starts: published"] == f"{row['published']:.1f}%"
            continue
        cell = rows[str(agent)]["random starts: ours"]
        assert cell.startswith(f"{row['score']:.1f}% [{row['low']:.1f}, {row['high']:.1f}]")
        assert ("†" in cell) == (row["source"] == "training") == (agent == "MultiHead-IMPALA")
    assert rows["PopArt-IMPALA"]["random starts: from"] == "2 runs, 5 episodes a task, 120k frames"
    assert rows["PopArt-IMPALA"]["human starts: ours"] == ""
    assert rows["IMPALA"]["human starts: ours"] != ""


def test_page_needs_no_other_file(written: Path) -> None:
    page = (written / "report.html").read_text()
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == len(list((written / "figures").iterdir()))
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.findall(r'href="|url\(|<script|<link', page)
    tables = re.findall(r"^\| --- \|", (written / "report.md").read_text(), re.MULTILINE)
    assert page.count("<table>") == len(tables)


def test_figures_are_pictures_of_a_readable_size(written: Path) -> None:
    for path in (written / "figures").iterdir():
        with Image.open(path) as image:
            assert image.width >= 500
            assert image.height >= 300
            assert len(image.convert("RGB").getcolors(2**24)) > 20, "not blank"


def test_whole_benchmark_has_the_papers_rows_even_where_ours_are_missing(tmp_path: Path) -> None:
    make_run(tmp_path / "run", episodes=2, level_name="atari57", use_popart=True)
    text = report(tmp_path / "out", tmp_path / "run")
    rows = {row["Agent"]: row for row in _table(text.split("## Atari-57")[1], "Agent")}
    assert rows["PopArt-IMPALA"]["random starts: published"] == "110.7%"
    assert rows["PopArt-IMPALA"]["random starts: ours"] != ""
    assert rows["IMPALA (unclipped)"]["human starts: published"] == "1.0%"
    assert rows["IMPALA (unclipped)"]["human starts: ours"] == ""
    assert rows[published.IMPALA]["random starts: published"] == "59.7%"
    assert "A subset" not in text


def test_a_run_named_twice_is_one_run(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs / "impala")
    text = report(
        tmp_path / "out", runs / "impala", runs / "catch" / ".." / "impala", tmp_path / "link"
    )
    assert len(_table(text, "Agent")) == 1


def test_names_of_runs_are_shown_as_they_are(tmp_path: Path) -> None:
    name = "<b>_bold_ *run* | 1"
    make_run(tmp_path / name, episodes=2, level_name="catch_1")
    report(tmp_path / "out", tmp_path / name)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;_bold_ *run*" in page
    assert "<b>" not in page


@pytest.mark.parametrize("taken", ["figures", "tables", "report.md", "report.html"])
def test_a_report_that_cannot_be_written_is_one_line(
    runs: Path, tmp_path: Path, taken: str
) -> None:
    if taken.startswith("report"):
        (tmp_path / taken).mkdir()
    else:
        (tmp_path / taken).touch()
    message = _refusal(runs=[str(runs / "catch")], report_dir=str(tmp_path))
    assert taken in message
    assert "cannot be written to" in message


def test_published_scores_are_drawn_beside_variants_of_their_agents(tmp_path: Path) -> None:
    for i, rate in enumerate((1e-3, 1e-2)):
        make_run(tmp_path / str(i), episodes=1, level_name="atari57", tests={}, learning_rate=rate)
    text = report(tmp_path / "out", tmp_path / "0", tmp_path / "1")
    assert "IMPALA (learning_rate=0.001)" in text
    assert (tmp_path / "out" / "figures" / "atari57-learning-curves-abs_one.png").exists()


def test_levels_named_restrict_the_comparison(runs: Path, tmp_path: Path) -> None:
    text = report(tmp_path / "out", runs / "impala", runs / "catch", level_name="boxing,pong")
    assert "a subset of 2 of 57 tasks: boxing, pong" in text
    assert f"{runs / 'catch'} skipped: it was not trained on boxing,pong" in text
    levels = {row["Level"] for row in _table(text, "Level")}
    assert levels == {"boxing", "pong"}


def test_what_cannot_be_read_is_named_and_the_rest_reported(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    directory = make_run(tmp_path / "damaged", level_name=_THREE, use_popart=True)
    directory.evaluation.write_bytes(b"\x00\xff")
    directory.metrics.write_bytes(directory.metrics.read_bytes()[:5000])
    bad = (tmp_path / "empty", tmp_path / "damaged", tmp_path / "nowhere")
    text = report(tmp_path / "out", runs / "impala", *bad)
    errors = capsys.readouterr().err
    for path in (bad[0], directory.evaluation, directory.metrics, bad[2]):
        assert f"* `{path}" in text
        assert f"note: {path}" in errors
    assert {row["Agent"] for row in _table(text, "Agent")} == {"IMPALA", "PopArt-IMPALA"}


def test_no_readable_run_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    names = [str(tmp_path / "empty"), str(tmp_path / "nowhere")]
    message = _refusal(runs=names, report_dir=str(tmp_path / "out"))
    assert all(name in message for name in names)
    assert not (tmp_path / "out").exists()


def test_precision_and_device_of_every_run_are_named(tmp_path: Path) -> None:
    for name, precision in (("old", "auto"), ("new", "bfloat16")):
        directory = make_run(tmp_path / name, episodes=2, level_name="catch_1", precision=precision)
    config = directory.read_config()
    assert config is not None
    directory.record(config, 0, {"processor": "EPYC", "cores": 2, "gpus": []})
    runs = (tmp_path / "old", tmp_path / "new")
    rows = {row["Agent"]: row for row in _table(report(tmp_path / "out", *runs), "Agent")}
    old, new = rows["IMPALA (precision=auto)"], rows["IMPALA (precision=bfloat16)"]
    assert (old["Precision"], old["Device"]) == ("auto", "not recorded")
    assert (new["Precision"], new["Device"]) == ("bfloat16", "2 cores of EPYC")
    text = report(tmp_path / "out", *runs, ignore_flags=["precision"])
    assert [row["Agent"] for row in _table(text, "Agent")] == ["IMPALA", "IMPALA"]
    message = _refusal(
        runs=[str(path) for path in runs], report_dir=str(tmp_path / "out"), ignore_flags=["speed"]
    )
    assert "--ignore_flags=speed is no flag" in message


def test_flags_of_other_modes_are_refused(runs: Path, tmp_path: Path) -> None:
    out, names = str(tmp_path / "out"), [str(runs / "impala")]
    assert "--runs is missing" in _refusal(report_dir=out)
    assert "--report_dir is missing" in _refusal(runs=names)
    assert "--use_popart is for" in _refusal(runs=names, report_dir=out, use_popart=True)
    assert "'pongg'" in _refusal(runs=names, report_dir=out, level_name="pongg")
    (tmp_path / "file").touch()
    taken = _refusal(runs=names, report_dir=str(tmp_path / "file" / "out"))
    assert "cannot be written to" in taken
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with flagsaver.flagsaver(level_name="catch5", runs=names), pytest.raises(SystemExit) as info:
        experiment.main(["experiment.py"])
    assert "--runs is for --mode=report" in str(info.value.code)


def test_report_loads_no_tensorflow(runs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "experiment.py", "--mode=report"]
    command += [f"--runs={runs / 'impala'},{runs / 'catch'}", f"--report_dir={tmp_path / 'out'}"]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    imported = {
        line.rsplit("|", 1)[1].strip() for line in result.stderr.splitlines() if "|" in line
    }
    assert "matplotlib" in imported
    assert not {"tensorflow", "sonnet", "keras"} & imported
    assert result.stdout.splitlines()[-1].endswith("report.html")
    assert not [line for line in result.stderr.splitlines() if not line.startswith("import time:")]


# Figures against the tables behind them.


def test_levels_are_drawn_as_their_table_says(written: Path) -> None:
    table = pd.read_csv(written / "tables" / "atari57-3-tasks-levels-noop.csv")
    styles = figures.Styles(
        [(agent.split(" (")[0], agent) for agent in dict.fromkeys(table["agent"])]
    )
    (axes,) = figures.breakdown(table, logarithmic=True, styles=styles).axes
    names = [text.get_text().replace(" ", "_") for text in axes.get_yticklabels()]
    assert set(names) == set(table["level"])
    assert axes.get_xscale() == "symlog"
    for bars in axes.containers:
        own = table[table["agent"] == bars.get_label()].set_index("level")
        drawn = {names[round(bar.get_y() + bar.get_height() / 2)]: bar.get_width() for bar in bars}
        assert drawn == pytest.approx(own["normalised"].to_dict())


def test_57_levels_have_room_for_their_names() -> None:
    rows = [
        {
            "agent": agent,
            "level": f"level_{i:02}",
            "runs": 1,
            "normalised": float(i),
            **dict.fromkeys(("low", "lowest"), i - 1.0),
            **dict.fromkeys(("high", "highest"), i + 1.0),
        }
        for i in range(57)
        for agent in ("IMPALA", "PopArt-IMPALA", published.IMPALA)
    ]
    styles = figures.Styles([("IMPALA", "IMPALA"), ("PopArt-IMPALA", "PopArt-IMPALA")])
    figure = figures.breakdown(pd.DataFrame(rows), logarithmic=True, styles=styles)
    figure.canvas.draw()
    assert len(figure.axes) == 2
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.get_yticklabels()]
        tops = sorted((box.y0, box.y1) for box in boxes)
        assert all(below[1] < above[0] for below, above in itertools.pairwise(tops))
        assert min(box.x0 for box in boxes) >= 0


def test_curves_are_drawn_as_their_table_says(written: Path) -> None:
    table = pd.read_csv(written / "tables" / "atari57-3-tasks-learning-curves.csv")
    clipped = table[table["reward_clipping"] == "abs_one"]
    labels = list(dict.fromkeys(clipped["agent"]))
    styles = figures.Styles([(label, label) for label in labels])
    targets = {"PopArt-IMPALA": 55.0, "IMPALA": 1e6}
    (axes,) = figures.learning_curves(clipped, "median", targets, styles).axes
    lines = {line.get_label(): line for line in axes.lines}
    impala = clipped[clipped["agent"] == "IMPALA"]
    np.testing.assert_allclose(lines["IMPALA"].get_ydata(), impala["median"])
    np.testing.assert_allclose(lines["IMPALA"].get_xdata(), impala["frames"] / 1e3)
    assert "thousands" in axes.get_xlabel()
    band = clipped[clipped["agent"] == "PopArt-IMPALA"].groupby("frames")["median"]
    np.testing.assert_allclose(lines["PopArt-IMPALA, 2 runs"].get_ydata(), band.mean())
    assert "published PopArt-IMPALA: 55.0%" in lines
    assert "published IMPALA: 1000000.0% (not in view)" in lines
    assert axes.get_ylim()[1] < 1000


def test_bands_and_whiskers_are_intervals_of_the_mean_in_axes_chosen_for_the_runs(
    written: Path,
) -> None:
    table = pd.read_csv(written / "tables" / "atari57-3-tasks-learning-curves.csv")
    popart = table[table["agent"] == "PopArt-IMPALA"]
    styles = figures.Styles([("PopArt-IMPALA", "PopArt-IMPALA")])
    (axes,) = figures.learning_curves(popart, "median", {}, styles).axes
    by_frames = popart.groupby("frames")["median"]
    expected = [intervals.over_seeds(own.tolist()) for _, own in by_frames]
    (band,) = axes.collections
    corners = pd.DataFrame(band.get_paths()[0].vertices).groupby(0)[1]
    np.testing.assert_allclose(np.transpose([corners.min(), corners.max()]), expected)
    runs = [own["median"].tolist() for _, own in popart.groupby("run")]
    assert all(run in [list(line.get_ydata()) for line in axes.lines] for run in runs)
    # That of two runs is much wider than what they differ by.
    bottom, top = axes.get_ylim()
    assert np.min(expected) < bottom < np.min(runs)
    assert np.max(runs) < top < np.max(expected)
    levels = pd.read_csv(written / "tables" / "atari57-3-tasks-levels-noop.csv")
    own = levels[levels["agent"] == "PopArt-IMPALA"]
    (axes,) = figures.breakdown(own, logarithmic=False, styles=styles).axes
    (lines,) = axes.collections
    drawn = sorted(tuple(segment[:, 0]) for segment in lines.get_segments())
    np.testing.assert_allclose(drawn, sorted(zip(own["low"], own["high"], strict=True)))
    low, high = axes.get_xlim()
    assert own["low"].min() < low <= min(own["lowest"].min(), 0)
    assert own["highest"].max() < high < own["high"].max()


def test_levels_of_several_runs_are_listed_with_their_intervals(written: Path) -> None:
    text = (written / "report.md").read_text().split("## Atari")[1]
    rows = {row["Level"]: row for row in _table(text, "Level")}
    levels = pd.read_csv(written / "tables" / "atari57-3-tasks-levels-noop.csv")
    for entry in levels.to_dict("records"):
        cell = f"{entry['normalised']:.1f}%"
        if entry["agent"] == "PopArt-IMPALA":
            cell += f" [{entry['low']:.1f}, {entry['high']:.1f}]"
        assert rows[entry["level"]][entry["agent"]] == cell


def test_statistics_are_drawn_as_their_table_says(written: Path) -> None:
    table = pd.read_csv(written / "tables" / "atari57-3-tasks-statistics.csv")
    table = table[(table["reward_clipping"] == "none")]
    styles = figures.Styles([("PopArt-IMPALA", "PopArt-IMPALA (unclipped)")])
    above, below, *_ = figures.statistics(table, styles).axes
    own = table[table["task"] == above.get_title()]
    np.testing.assert_allclose(above.lines[0].get_ydata(), own["shift"])
    np.testing.assert_allclose(below.lines[0].get_ydata(), own["episode_return"])
    corners = above.collections[0].get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx((own["shift"] + own["scale"]).max())
    assert corners.min() == pytest.approx((own["shift"] - own["scale"]).min())


def test_the_course_of_training_is_reported(tmp_path: Path) -> None:
    flags = {"level_name": "atari57", "use_popart": True}
    make_run(tmp_path / "run", episodes=2, tests={}, **flags)
    text = report(tmp_path / "report", tmp_path / "run")
    assert "| PopArt-IMPALA | 1 | 1,000 | 550 | 0.5 | 57, 1.75% to 1.75% |" in text
    tables = tmp_path / "report" / "tables"
    assert list(pd.read_csv(tables / "atari57-course.csv")["memory_mib"]) == list(range(501, 551))
    shares = pd.read_csv(tables / "atari57-batches.csv").set_index("task")
    assert len(shares) == 57
    np.testing.assert_allclose(shares.iloc[0][["least", "most"]].astype(float) * 57, [0.9, 1.1])


def test_scales_of_all_tasks_share_an_axis(tmp_path: Path) -> None:
    for seed in (1, 2):
        flags = {"level_name": "atari57", "use_popart": True, "reward_clipping": "none"}
        make_run(tmp_path / f"run-{seed}", episodes=2, tests={}, seed=seed, **flags)
    text = report(tmp_path / "report", tmp_path / "run-1", tmp_path / "run-2")
    assert "figures/atari57-scales-none.png" in text
    table = pd.read_csv(tmp_path / "report" / "tables" / "atari57-statistics.csv")
    (axes,) = figures.scales(table).axes
    assert axes.get_yscale() == "log"
    lines = [line for line in axes.lines if len(line.get_ydata())]
    assert len(lines) == 2 * 57
    drawn = {tuple(line.get_ydata()) for line in lines}
    assert drawn == {tuple(own["scale"]) for _, own in table.groupby(["run", "task"])}
    ends = table.groupby(["task", "run"])["scale"].last().groupby("task")
    last = ends.mean().sort_values()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    low, high = intervals.over_seeds(ends.get_group(last.index[-1]).tolist()) or (0, 0)
    assert labels[0].endswith(f": {last.iloc[-1]:.3g} [{low:.3g}, {high:.3g}]")
    named = [label.split(":")[0] for label in labels]
    assert named == [*last.index[:-6:-1], *last.index[4::-1]]


def test_gradients_are_reported_where_they_were_measured(tmp_path: Path) -> None:
    for agent in ("impala", "popart"):
        given = {"level_name": "catch_1,catch_10", "use_popart": agent == "popart"}
        make_run(tmp_path / agent, log_task_gradients=True, tests={}, **given)
    text = report(tmp_path / "report", tmp_path / "impala", tmp_path / "popart")
    assert "| PopArt-IMPALA | policy loss: part of all sizes (mean) | 33.3% | 66.7% |" in text
    assert "| PopArt-IMPALA | policy loss: size (median) | 2.5 | 5 |" in text
    assert "| PopArt-IMPALA | total loss: part of all sizes (mean) | 20.0% | 80.0% |" in text
    assert "| PopArt-IMPALA | total loss: size (median) | 6.25 | 25 |" in text
    (name,) = re.findall(r"figures/(\S+-gradients-none.png)", text)
    assert Image.open(tmp_path / "report" / "figures" / name).size[0] > 500
    (table,) = (tmp_path / "report" / "tables").glob("*-gradients.csv")
    both = pd.read_csv(table)
    smooth = gradients.over_frames(both[both["loss"] == "policy"])
    own = smooth[(smooth["panel"] == "IMPALA") & (smooth["task"] == "catch_10")]
    grid = figures.gradients(smooth).axes
    assert [axes.get_title() for axes in grid[:2]] == ["IMPALA", "PopArt-IMPALA"]
    drawn = {line.get_label(): line for line in grid[0].lines}["catch_10"]
    np.testing.assert_allclose(drawn.get_ydata(), own["norm"])
    # What is next to nothing does not stretch the axis.
    smooth.loc[0, "norm"] = 1e-30
    assert figures.gradients(smooth).axes[0].get_ylim()[0] > 1e-7


def test_colours_can_be_told_apart_and_variants_by_their_lines() -> None:
    names = [("IMPALA", "IMPALA"), ("PopArt-IMPALA", "PopArt-IMPALA"), ("PopArt-IMPALA", "other")]
    styles = figures.Styles(names)
    assert styles.colour("PopArt-IMPALA") == styles.colour("other") != styles.colour("IMPALA")
    assert styles.line("PopArt-IMPALA") != styles.line("other")
    assert styles.hatch("PopArt-IMPALA") != styles.hatch("other")

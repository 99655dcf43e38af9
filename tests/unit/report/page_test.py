"""Whole reports through `experiment.main`: what is written, and what is refused."""

import base64
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalable_agent_popart import suites
from scalable_agent_popart.report.chapter import agents_numbers
from scalable_agent_popart.report.final_scores import IMPALA, RANDOM
from scalable_agent_popart.report.page import write_report
from scalable_agent_popart.suites import catch
from tests.fakes.main_program import run
from tests.fakes.report_text import read_page, read_report
from tests.fakes.synthetic_runs import append, make_film, make_population, make_run

_NAME = "<b>_bold_ *run* | 1"
_IMAGE = "![x](figures/../../secret.png)"
_HOSTILE = (
    f"<script>alert(1)</script>\n\n{_IMAGE} [y](javascript:alert(1)) | `<a>` \x1b[2J _$\\z{{$"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, games = tmp_path_factory.mktemp("runs"), {"level_name": "pong,boxing,crazy_climber"}
    popart = {**games, "use_popart": True}
    for seed in (1, 2):
        make_run(root / f"popart-{seed}", 80.0, seed=seed, log_task_gradients=True, **popart)
    make_run(root / "unclipped", 60.0, reward_clipping="none", **popart)
    impala = make_run(root / "impala", 20.0, tests={"noop": 3, "human": 3}, **games)
    make_film(impala.videos / "pong.mp4", [np.zeros((16, 16, 3), np.uint8)])
    make_run(root / "unfinished", 10.0, episodes=3, tests={}, multi_head=True, **games)
    make_run(root / "catch", 90.0, level_name="catch5").path.rename(root / _NAME)
    damaged = make_run(root / "damaged", pixel_control=True, **popart)
    (damaged.evaluations / "noop-9-1.json").write_bytes(b"\x00\xff")
    damaged.videos.mkdir()
    (damaged.videos / "pong.mp4").write_bytes(b"\x00\xff")
    (root / "empty").mkdir()
    return root


def _report(out: Path, *directories: Path, **given: Any) -> str:
    run(mode="report", runs=[str(path) for path in directories], report_dir=str(out), **given)
    return read_report(out)


def _table(text: str, head: str) -> dict[str, dict[str, str]]:
    rows = re.search(rf"^\| {head} \|.*\n(\|.*\n)*", text, re.MULTILINE)
    assert rows
    lines = rows[0].replace("\\|", "¦").splitlines()
    heads, *cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return {row[0]: dict(zip(heads, row, strict=True)) for row in cells}


def _links_and_images(directory: Path) -> tuple[list[str], list[str]]:
    """Returns where a page links to, and the sources of its images; it has no script."""
    tags = read_page(directory).tags
    assert "script" not in dict(tags)
    links = [str(attributes["href"]) for tag, attributes in tags if tag == "a"]
    return links, [str(attributes["src"]) for tag, attributes in tags if tag == "img"]


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "new"
    _report(out, *sorted(runs.iterdir()), runs / "empty" / ".." / "impala")
    return out


def test_a_report_names_every_run_and_file_and_what_was_left_out(
    runs: Path, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = read_report(written)
    shown = re.findall(rf"`{runs}/([^`]+)` \| \d", text.replace("\\|", "¦"))
    expected = {path.name.replace("|", "¦") for path in runs.iterdir()} - {"empty", "impala"}
    assert sorted(shown) == sorted([*expected, "empty/../impala"])
    named = set(re.findall(r"`(tables/[^`]+)`", text))
    assert {str(p.relative_to(written)) for p in written.glob("tables/*")} == named
    assert "## Atari-57, a subset of 3 of 57 tasks: boxing, crazy_climber, pong" in text
    links, images = _links_and_images(written)
    assert {*links} == {*named, "summary.csv"}
    shown = sorted(base64.b64decode(image.partition(",")[2]) for image in images)
    assert shown == sorted(path.read_bytes() for path in written.glob("figures/*"))
    assert sum(image.startswith("data:image/webp") for image in images) == 1
    assert "### IMPALA, clipped, Atari-57, a subset" in text
    assert re.findall(r"&\w+;|\{\{|\}\}", text) == []
    assert "<b>" not in (written / "report.html").read_text()
    # Skipped lines are in the page and among the errors.
    text = _report(tmp_path, runs / "empty", runs / "damaged", level_name="boxing,pong")
    assert "a subset of 2 of 57 tasks: boxing, pong" in text
    errors = capsys.readouterr().err
    for name in ("empty", "damaged/evaluations/noop-9-1.json", "damaged/videos/pong.mp4"):
        assert f"* `{runs / name}" in text
        assert f"note: {runs / name}" in errors


def test_tables_are_those_of_the_files(written: Path) -> None:
    text = read_report(written).split("## Atari")[1]
    rows = _table(text, "Agent")
    impala, popart = "IMPALA, clipped", "PopArt-IMPALA, clipped"
    variants = [popart, "PopArt-IMPALA, raw rewards", f"Pixel-{popart}"]
    assert list(rows) == [impala, f"MultiHead-{impala}", *variants, RANDOM, IMPALA]
    assert rows[RANDOM]["from"].endswith(" episodes per task")
    summary = pd.read_csv(written / "summary.csv")
    assert set(summary["comparison"]) == {"atari57-3-tasks", "catch5"}
    summary = summary[summary["comparison"] == "atari57-3-tasks"]
    noop = agents_numbers(summary, "aggregate", task="median", protocol="noop")
    for row in noop[noop["kind"] == "agent"].itertuples():
        cell = f"{row.value:.1f}% [{row.low:.1f}, {row.high:.1f}]"
        assert rows[row.agent]["median"] == cell
        assert ("tested" in rows[row.agent]["from"]) == (row.source == "test")
    assert f"| {impala} | 1 | 1,000 | 550 | 0.5 | 3, 33.33% to 33.33% |" in text
    for agent, row in rows.items():
        for name in ("mean", "mean capped", "interquartile mean", "optimality gap"):
            where = {"agent": agent, "protocol": "noop", "task": name.replace(" ", "_")}
            (value,) = agents_numbers(summary, "aggregate", **where)["value"]
            assert row[name].startswith(f"{value:.1f}%")
    # Task k of 3 has sizes k/10, 2k/10, ..., 49k/10, and of the total loss the squares of that.
    assert f"| {popart} | boxing | 5 | 33.3% | 25 | 28.6% |" in text
    assert f"| {popart} | crazy_climber | 7.5 | 50.0% | 56.2 | 64.3% |" in text


def test_what_cannot_be_reported_or_written_is_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "out"
    for directory, target, says in (
        ("empty", out, "there is no run to report on"),
        ("impala", tmp_path / "file", "cannot be written to"),
    ):
        with pytest.raises(SystemExit) as info:
            _report(target, runs / directory)
        message = str(info.value.code)
        assert message.startswith("error: ")
        assert says in message
        assert "\n" not in message
    assert not out.exists()


def test_the_outcome_says_of_how_many_runs_and_of_which_tests_a_score_is(tmp_path: Path) -> None:
    for name, tests in (("a", {"noop": 5}), ("b", {"noop": 5, "human": 5}), ("untested", {})):
        make_run(tmp_path / name, tests=tests, level_name="pong")
    paths = [str(tmp_path / name) for name in ("a", "b", "untested")]
    (line,), (title, *outcome) = write_report(paths, str(tmp_path / "out"))
    assert "IMPALA, clipped: 3 runs have seed 1" in line
    assert title.startswith("Median human-normalised score [95% interval], Atari-57, a subset of 1")
    first = " ".join(outcome[0].split())
    assert first == "IMPALA, clipped 51.5% [51.5, 51.5] 2 runs, tested, noop"
    assert outcome[1].endswith("  1 run, tested, human")
    assert "2 of 3 runs, tested, episodes per task: 5, 40k frames" in read_report(tmp_path / "out")
    begun = make_run(tmp_path / "begun", tests={}, level_name="pong,boxing")
    begun.episodes.write_text(begun.episodes.read_text().partition("\n")[0] + "\n")
    _, (line,) = write_report([str(tmp_path / "begun")], str(tmp_path / "out"))
    assert line.endswith("none yet, as no run has finished an episode of every task")


def test_runs_have_dates_and_revisions_and_agents_have_hyperparameters(tmp_path: Path) -> None:
    make_run(tmp_path / "popart", level_name="catch5", use_popart=True, learning_rate=0.5)
    impala = make_run(tmp_path / "impala", level_name="catch5")
    text = _report(tmp_path / "unknown", tmp_path / "impala")
    assert "| not recorded | " in text
    assert "| Flag |" not in text
    for time in (90_000, 0):  # Seconds since 1970.
        append(impala.metrics, {"time": time, "frames": 9, "frames_per_second": 1.0})
    record = json.loads((impala.path / "config.json").read_text()) | {"git_revision": "abc123"}
    (impala.path / "config.json").write_text(json.dumps(record))
    text = _report(tmp_path / "out", tmp_path / "impala", tmp_path / "popart")
    assert "| 1970-01-01 00:00 to 1970-01-02 01:00 | abc123 |" in text
    flags = _table(text, "Flag")
    agents = ("IMPALA, raw rewards", "PopArt-IMPALA, raw rewards")
    for name, values in (("learning_rate", ["0.005", "0.5"]), ("popart_start", ["", "average"])):
        assert [flags[name][agent] for agent in agents] == values
    assert "`--batch_size=32`" in text
    assert "batch_size" not in flags


def test_captions_name_panels_and_speak_of_several_runs_only_where_there_are(
    tmp_path: Path,
) -> None:
    given = {"level_name": "pong,boxing", "use_popart": True, "log_task_gradients": True}
    paths = [make_run(tmp_path / str(seed), seed=seed, **given).path for seed in (1, 2)]
    several = _report(tmp_path / "several", *paths)
    one = _report(tmp_path / "one", paths[0])
    for words in ("Thick lines", "lines and areas", "over runs", "Dots are", "of several runs"):
        assert words in several
        assert words not in one
    assert "of a single run are over its episodes: bootstraps, which" in one
    assert "of a single run" not in several
    assert one.count("Top: ") == one.count("Bottom: ") == 2


def test_populations_have_sections_and_tables(tmp_path: Path) -> None:
    path = str(make_population(tmp_path / "pbt").path)
    assert write_report([path], str(tmp_path / "out")).left_out == []
    text = read_report(tmp_path / "out")
    assert f"`{path}`, population of 5, best: member-03, 1 not begun |" in text
    assert "| PopArt-IMPALA, raw rewards, population of 5 |" in text
    assert "ancestry of member-03, through 3 copies" in text
    assert next(iter(_table(text, "Member"))) == "member-03"
    assert len(list((tmp_path / "out").glob("*/catch5-population*"))) == 2


def test_differences_are_those_of_the_summary(tmp_path: Path) -> None:
    # DmLab tests the first task on another level, and the last has no reference scores.
    clipping = "optimistic asymmetric rewards"
    impala, popart = f"IMPALA, {clipping}", f"PopArt-IMPALA, {clipping}"
    tasks = {"level_name": "rooms_collect_good_objects_train,rooms_watermaze,seekavoid_arena_01"}
    for seed in (1, 2):
        make_run(tmp_path / f"impala-{seed}", 20.0 * seed, seed=seed, **tasks)
        make_run(tmp_path / f"popart-{seed}", 50.0 * seed, seed=seed, use_popart=True, **tasks)
        # Far behind, and so not compared with the others.
        make_run(tmp_path / f"multi-{seed}", episodes=4, seed=seed, multi_head=True, **tasks)
    text = _report(tmp_path / "out", *tmp_path.iterdir())
    summary = pd.read_csv(tmp_path / "out" / "summary.csv").query("kind == 'difference'")
    assert set(summary["agent"]) | set(summary["versus"]) == {impala, popart}
    lines = [line for line in text.splitlines() if line.startswith(f"| {popart} over {impala}")]
    assert len(lines) == 2
    total = "measure in ('aggregate', 'mean_over_training')"
    shown = summary.query(f"not {total} or task == 'mean_capped'")
    assert shown["measure"].nunique() == 4
    assert set(shown.query("measure == 'return'")["task"]) == {"seekavoid_arena_01"}
    for row in shown.itertuples():
        cell = f"{row.value:.1f} [{row.low:.1f}, {row.high:.1f}], g = {row.effect:.1f}, p = 0.33"
        assert f"| {cell} |" in lines[row.protocol == "test"]
    assert "| seekavoid_arena_01 (return) | " in text.split("### Scores by level, test levels")[1]
    held_out = "Test levels have the held-out version of rooms_collect_good_objects_train."
    assert text.count(held_out) == 1
    same = _report(tmp_path / "same", tmp_path / "impala-1", level_name="rooms_watermaze")
    assert same.count("a test has the same scores on train and on test levels") == 1


def test_scores_have_the_names_that_their_suite_has_for_them(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = dataclasses.replace(catch.SUITE, name="own", reference_scores={})
    monkeypatch.setattr(suites, "resolve", lambda name: suite)
    make_run(tmp_path / "run", tests={}, level_name="own")
    assert write_report([str(tmp_path / "run")], str(tmp_path / "out")).left_out == []
    of_returns = read_report(tmp_path / "out")
    *_, of_catch, of_atari, _ = read_report(written).split("\n## ")
    assert "### Final scores: median human-normalised score, random starts\n" in of_atari
    for text, name in ((of_catch, "normalised score"), (of_returns, "return")):
        assert f"### Final scores: mean {name}\n" in text
        assert re.findall("published|human(?! scores)", text, re.IGNORECASE) == []


def test_what_runs_files_say_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Names of tasks have no spaces.
    names = [f"{name}{i}" for i, name in enumerate(("<script>", _IMAGE, "[y](other.md)", "_$x$"))]
    suite = dataclasses.replace(
        catch.SUITE,
        name="own",
        title=_HOSTILE,
        full_score=_HOSTILE,
        tasks=names,
        reference_scores=dict.fromkeys(names, catch.SUITE.reference_scores["catch_1"]),
        remarks=lambda options: dict.fromkeys(names, _HOSTILE),
    )
    monkeypatch.setattr(suites, "resolve", lambda name: suite)
    given = {"use_popart": True, "log_task_gradients": True, "precision": "float32"}
    directory = make_run(tmp_path / "run", tests={}, level_name="own", **given)
    record = json.loads((directory.path / "config.json").read_text())
    record["device"] = {"cores": 2, "gpus": [_HOSTILE], "processor": _HOSTILE}
    record["git_revision"] = _HOSTILE
    change = {"entropy_cost": [_HOSTILE, "x"]}
    record["history"] = [{"frames": 9, "changed": change, "git_revision": _HOSTILE}]
    (directory.path / "config.json").write_text(json.dumps(record))
    result: dict[str, Any] = {"starts": _HOSTILE, "frames": 9, "precision": [_HOSTILE]}
    result["tasks"] = {name: {"returns": [1.0]} for name in names}
    directory.evaluations.mkdir()
    (directory.evaluations / "noop-9-1.json").write_text(json.dumps(result))
    (tmp_path / "secret.png").write_bytes(b"secret")
    out = tmp_path / "out"
    lines = write_report([str(directory.path)], str(out)).left_out
    assert lines
    assert all(line.isprintable() for line in lines)
    figures = {base64.b64encode(path.read_bytes()).decode() for path in out.glob("figures/*")}
    html = (out / "report.html").read_text()
    links, images = _links_and_images(out)
    assert {image.removeprefix("data:image/png;base64,") for image in images} == figures
    assert all((out / link).suffix == ".csv" and (out / link).is_file() for link in links)
    assert _IMAGE in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 5
    assert "&amp;lt;" not in html


def test_a_comparison_begins_with_what_it_is_of_and_its_curves(written: Path) -> None:
    *_, of_catch, of_atari, _ = read_report(written).split("\n## ")
    _, sentences, *lines = of_atari.split("\n")
    assert "; PopArt-IMPALA, clipped (2 runs, 120k frames); " in sentences
    assert "on 3 tasks. 0% is the return of random play in the papers, and" in sentences
    assert sentences.endswith(
        "100% is a human's; the published scores were reached after 11.4B frames over all 57 tasks."
    )
    assert "100% is that of catching every ball." in of_catch
    heads = [line for line in lines if line.startswith("### ")]
    assert heads[:2] == ["### Learning curves", "### Normalisation statistics"]
    assert heads[-1] == "### Score profiles"

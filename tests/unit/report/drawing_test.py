"""Figures against the tables behind them."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scalable_agent_popart import scores
from scalable_agent_popart.report import (
    curves,
    drawing,
    gradients,
    levels,
    populations,
    profiles,
    statistics,
)
from scalable_agent_popart.report.chapter import agents_numbers
from scalable_agent_popart.report.compare import Comparison
from scalable_agent_popart.report.page import open_chapter
from scalable_agent_popart.report.read import read_run
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.suites import Suite, catch, resolve
from tests.fakes.synthetic_runs import START, compare_runs, make_population, make_run

_IMPALA, _POPART = "IMPALA, clipped", "PopArt-IMPALA, clipped"
_STYLES = drawing.styles_of([("IMPALA", "abs_one", _IMPALA), ("PopArt-IMPALA", "abs_one", _POPART)])


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    root = tmp_path_factory.mktemp("runs")
    flags = {"level_name": "pong,boxing,crazy_climber", "log_task_gradients": True}
    for seed in (1, 2):
        make_run(root / f"popart-{seed}", 80.0 * seed, seed=seed, use_popart=True, **flags)
    make_run(root / "impala", 20.0, **flags)
    return compare_runs(*root.iterdir())


def test_curves_are_drawn_as_their_table_says(compared: Comparison) -> None:
    table = curves.tabulate_scores(compared)
    (axes,) = curves.draw_scores(table, compared.suite, {"IMPALA": 55.0}, _STYLES).axes
    lines = {line.get_label(): line for line in axes.lines}
    impala, popart = (table[table["agent"] == agent] for agent in (_IMPALA, _POPART))
    np.testing.assert_allclose(lines[_IMPALA].get_ydata(), impala["median"])
    by_frames = popart.groupby("frames")["median"]
    np.testing.assert_allclose(lines[f"{_POPART}, 2 runs"].get_ydata(), by_frames.mean())
    drawn = [list(line.get_ydata()) for line in axes.lines]
    assert all(run.tolist() in drawn for _, run in popart.groupby("run")["median"])
    (band,) = axes.collections
    corners = pd.DataFrame(band.get_paths()[0].vertices).groupby(0)[1]
    expected = scores.students_t(by_frames.mean(), by_frames.std(), 2)
    np.testing.assert_allclose([corners.min(), corners.max()], expected)


def test_parts_of_gradients_are_drawn_as_their_table_says() -> None:
    parts = {_IMPALA: (0.7, 0.2, 0.1), _POPART: (0.2, 0.5, 0.3)}
    tasks = ("pong", "boxing", "crazy_climber")
    rows = [(agent, *row) for agent in parts for row in zip(tasks, parts[agent], strict=True)]
    table = pd.DataFrame(rows, columns=["agent", "task", "value"])
    (axes,) = gradients.draw_parts(table, _STYLES).axes
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["boxing", "crazy_climber", "pong"]
    heights = {c.get_label(): [bar.get_height() for bar in c] for c in axes.containers}
    assert heights == {_IMPALA: pytest.approx([20, 10, 70]), _POPART: pytest.approx([50, 30, 20])}


def test_a_scale_that_was_never_a_number_is_not_named() -> None:
    scales = {"pong": 2.0, "boxing": np.nan}
    table = pd.DataFrame(scales.items(), columns=["task", "scale"])
    (axes,) = statistics.draw_scales(table.assign(agent=_POPART, run="run", frames=1000)).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["pong: 2"]


def test_returns_have_a_panel_of_each_task(compared: Comparison) -> None:
    table = curves.tabulate_returns(compared, ["pong", "boxing"])
    panels = curves.draw_returns(table, _STYLES).axes
    assert [axes.get_title() for axes in panels] == ["pong", "boxing"]
    for axes in panels:
        impala = table[(table["task"] == axes.get_title()) & (table["agent"] == _IMPALA)]
        drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
        np.testing.assert_allclose(drawn[_IMPALA], impala["return"])


def test_profiles_are_drawn_as_their_table_says(compared: Comparison) -> None:
    values = {"a": [-20.0, 5.0, 50.0], "b": [10.0, 20.0, 300.0]}
    rows = [(_POPART, run, value) for run in values for value in values[run]]
    table = pd.DataFrame(rows, columns=["agent", "run", "value"])
    at = [-20, 5, 10, 20, 50, 300]
    expected = [[100 * np.mean(np.array(run) > x) for x in at] for run in values.values()]
    for suite in (compared.suite, catch.SUITE):  # With a logarithmic axis and without.
        (axes,) = profiles.draw(table, suite, _STYLES).axes
        mean, *runs = axes.lines
        np.testing.assert_allclose(mean.get_xdata(), at)
        np.testing.assert_allclose([line.get_ydata() for line in runs], expected)
        np.testing.assert_allclose(mean.get_ydata(), np.mean(expected, axis=0))
        assert mean.get_drawstyle() == "steps-post"


def test_legends_leave_out_what_all_curves_share() -> None:
    agent, words = "PopArt-IMPALA, raw rewards", ["precision bfloat16", "precision float32"]
    both, random = [f"{agent}, {word}" for word in words], "random play, measured: 1.0%"
    styles = drawing.styles_of([("PopArt-IMPALA", "none", label) for label in (*both, agent)])
    for labels, published, title, texts in (
        (both, {"IMPALA": 1.0}, agent, [*words, "published IMPALA: 1.0%", random]),
        (both[:1], {}, f"raw rewards, {words[0]}", ["PopArt-IMPALA", random]),
        # All words of the first label are in the second, too.
        ([agent, both[1]], {}, agent, ["PopArt-IMPALA", words[1], random]),
    ):
        rows = [{"agent": label, "run": label, "frames": at} for label in labels for at in (1, 2)]
        table = pd.DataFrame(rows).assign(median=1.0)
        figure = curves.draw_scores(table, resolve("pong"), published, styles, [1.03])
        assert [1.03, 1.03] in [list(line.get_ydata()) for line in figure.axes[0].lines]
        assert [text.get_text() for text in figure.legends[0].get_texts()] == texts
        assert figure.legends[0].get_title().get_text() == title


def test_variants_of_an_agent_differ_by_their_lines_or_hatches() -> None:
    agents = [("IMPALA", clipping, clipping + name) for clipping in "ab" for name in "12"]
    styles = drawing.styles_of(agents)
    assert styles["a1"].colour == styles["a2"].colour
    assert styles["a1"].line != styles["a2"].line
    assert styles["a1"].line == styles["b1"].line
    assert styles["a1"].hatch != styles["b1"].hatch


def test_levels_are_drawn_as_their_table_says(compared: Comparison) -> None:
    table = agents_numbers(open_chapter(compared).summary, "normalised", protocol="noop")
    (axes,) = levels.draw(table, compared.suite, _STYLES).axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    for bars in axes.containers:
        rows = table[table["agent"] == bars.get_label()].set_index("task")
        drawn = {names[round(bar.get_y() + bar.get_height() / 2)]: bar.get_width() for bar in bars}
        assert drawn == pytest.approx(rows["value"].to_dict())


@pytest.mark.parametrize("count", [19, 20])
def test_few_levels_keep_their_order_and_many_are_sorted_by_score(count: int) -> None:
    names = [f"level_{i}" for i in range(count)]
    values = dict(zip(names, np.roll(range(count), 5).astype(float), strict=True))
    table = pd.DataFrame(values.items(), columns=["task", "value"])
    columns = ["low", "high", "lowest", "highest"]
    table = table.assign(agent=_IMPALA, runs=1, **dict.fromkeys(columns, 1.0))
    (axes,) = levels.draw(table, resolve("atari57"), _STYLES).axes
    by_score = sorted(names, key=values.__getitem__, reverse=True)
    drawn = [text.get_text() for text in axes.get_yticklabels()]
    assert drawn == (names if count == 19 else by_score)


@pytest.mark.parametrize(
    ("suite", "of_curves", "of_levels"),
    [
        (resolve("atari57"), "Median human-normalised score (%)", ", logarithmic beyond ±10%"),
        (catch.SUITE, "Mean normalised score (%)", "; 100% is that of catching every ball"),
        (dataclasses.replace(catch.SUITE, tasks=("a",), reference_scores={}), "Return", "Return"),
    ],
)
def test_axes_name_the_suites_scores(suite: Suite, of_curves: str, of_levels: str) -> None:
    entry = {"agent": _IMPALA, "run": "a", "task": "$x$", "frames": 1, "runs": 1, "value": 5.0}
    table = pd.DataFrame([entry | dict.fromkeys(("low", "high", "lowest", "highest"), 5.0)])
    of_scores = curves.draw_scores(table.assign(mean=1.0, median=1.0), suite, {}, _STYLES)
    assert of_scores.axes[0].get_ylabel() == of_curves
    assert of_scores.get_supxlabel().endswith("summed over tasks") == (len(suite.tasks) > 1)
    bars = levels.draw(table, suite, _STYLES)
    assert of_levels in bars.get_supxlabel()
    at = {float(x) for line in bars.axes[0].lines for x in line.get_xdata()}
    assert (100 in at) == suite.normalised
    # No formula.
    assert bars.axes[0].get_yticklabels()[0].get_text() == r"\$x\$"


def test_a_population_shows_the_lineages_and_the_way_through_them(tmp_path: Path) -> None:
    population = read_run(str(make_population(tmp_path / "pbt").path)).population
    fitness, epsilon = (
        [line for line in axes.lines if line.get_color() == "black"]
        for axes in populations.draw(population).axes
        if axes.get_title() in ("fitness at comparisons (%)", "epsilon")
    )
    # A member's fitness is known at comparisons, and what it copied has one, too.
    ways = {"-": [[0.2], [0.3, 0.5, 0.65], [0.4, 0.55, 0.7], [0.9, 1]]}
    ways[":"] = [[0.2, 0.3], [0.65, 0.4], [0.7, 0.9]]
    for lines, solid in (
        (fitness, ways["-"]),
        (epsilon, [[0, 0.2], *ways["-"][1:3], [0.9, 1, 1.2]]),
    ):
        drawn: dict[str, list] = {"-": [], ":": []}
        for line in lines:
            drawn[line.get_linestyle()].append(line.get_xdata().tolist())
        assert drawn == {"-": solid, ":": ways[":"]}


def test_a_population_that_tunes_nothing_has_a_panel_before_it_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = read_run(str(make_population(tmp_path / "pbt", {0: [START]}).path)).population
    monkeypatch.setattr(Config, "tuned", ())
    panel, _ = populations.draw(population).axes
    assert panel.get_title().startswith("fitness at comparisons")

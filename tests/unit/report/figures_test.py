"""Figures against the tables behind them."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from scalable_agent_popart import scores
from scalable_agent_popart.report import figures, tables
from scalable_agent_popart.report.compare import Comparison
from scalable_agent_popart.report.read import read_run
from scalable_agent_popart.report.tables import FinalScores
from tests.fakes.synthetic_runs import (
    HYPERPARAMETERS,
    LINEAGES,
    compare_runs,
    make_event,
    make_population,
    make_run,
    write_lineage,
)

_STYLES = figures.styles_of([(name, name) for name in ("IMPALA", "PopArt-IMPALA")])


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two runs of PopArt-IMPALA beside one of IMPALA on three games."""
    root = tmp_path_factory.mktemp("runs")
    flags = {"level_name": "pong,boxing,crazy_climber", "log_task_gradients": True}
    for seed in (1, 2):
        make_run(root / f"popart-{seed}", 80.0 * seed, seed=seed, use_popart=True, **flags)
    make_run(root / "impala", 20.0, **flags)
    return compare_runs(*root.iterdir())


def test_curves_are_drawn_as_their_table_says(compared: Comparison) -> None:
    table = tables.learning_curves(compared)
    targets = {"PopArt-IMPALA": 55.0, "IMPALA": 1e6}
    (axes,) = figures.learning_curves(table, "median", targets, _STYLES).axes
    lines = {line.get_label(): line for line in axes.lines}
    impala = table[table["agent"] == "IMPALA"]
    np.testing.assert_allclose(lines["IMPALA"].get_ydata(), impala["median"])
    np.testing.assert_allclose(lines["IMPALA"].get_xdata(), impala["frames"] / 1e3)
    assert "thousands" in axes.figure.get_supxlabel()
    popart = table[table["agent"] == "PopArt-IMPALA"]
    by_frames = popart.groupby("frames")["median"]
    np.testing.assert_allclose(lines["PopArt-IMPALA, 2 runs"].get_ydata(), by_frames.mean())
    runs = [own["median"].tolist() for _, own in popart.groupby("run")]
    assert all(run in [list(line.get_ydata()) for line in axes.lines] for run in runs)
    assert "published PopArt-IMPALA: 55.0%" in lines
    assert "published IMPALA: 1000000.0% (not in view)" in lines
    # The axis is chosen for the runs; the interval of two is much wider than what they differ by.
    (band,) = axes.collections
    corners = pd.DataFrame(band.get_paths()[0].vertices).groupby(0)[1]
    expected = [scores.interval_over_seeds(own.tolist()) for _, own in by_frames]
    np.testing.assert_allclose(np.transpose([corners.min(), corners.max()]), expected)
    bottom, top = axes.get_ylim()
    assert np.min(expected) < bottom < np.min(runs)
    assert np.max(runs) < top < np.max(expected)


def test_levels_are_drawn_as_their_table_says(compared: Comparison) -> None:
    table = FinalScores(compared, tables.columns(compared.suite)[0]).breakdown()
    (axes,) = figures.breakdown(table, logarithmic=True, styles=_STYLES).axes
    names = [text.get_text().replace(" ", "_") for text in axes.get_yticklabels()]
    assert set(names) == set(table["level"])
    assert axes.get_xscale() == "symlog"
    for bars in axes.containers:
        own = table[table["agent"] == bars.get_label()].set_index("level")
        drawn = {names[round(bar.get_y() + bar.get_height() / 2)]: bar.get_width() for bar in bars}
        assert drawn == pytest.approx(own["normalised"].to_dict())
    own = table[table["agent"] == "PopArt-IMPALA"]
    (axes,) = figures.breakdown(own, logarithmic=False, styles=_STYLES).axes
    (lines,) = axes.collections
    drawn = sorted(tuple(segment[:, 0]) for segment in lines.get_segments())
    np.testing.assert_allclose(drawn, sorted(zip(own["low"], own["high"], strict=True)))
    low, high = axes.get_xlim()
    assert own["low"].min() < low <= min(own["lowest"].min(), 0)
    assert own["highest"].max() < high < own["high"].max()


def test_names_of_57_levels_do_not_overlap() -> None:
    ends = dict.fromkeys(("low", "lowest", "high", "highest", "normalised"), 1.0)
    rows = [
        {"agent": agent, "level": f"level_{i:02}", "runs": 1, **ends}
        for i in range(57)
        for agent in ("IMPALA", "PopArt-IMPALA", tables.IMPALA)
    ]
    figure = figures.breakdown(pd.DataFrame(rows), logarithmic=True, styles=_STYLES)
    figure.canvas.draw()
    assert len(figure.axes) == 2
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.get_yticklabels()]
        ends_of_boxes = sorted((box.y0, box.y1) for box in boxes)
        assert all(below[1] < above[0] for below, above in itertools.pairwise(ends_of_boxes))
        assert min(box.x0 for box in boxes) >= 0


def test_statistics_and_scales_are_drawn_as_their_table_says(compared: Comparison) -> None:
    table = tables.statistics(compared)
    above, below, *_ = figures.statistics(table[table["seed"] == 1], _STYLES).axes
    own = table[(table["task"] == above.get_title()) & (table["seed"] == 1)]
    np.testing.assert_allclose(above.lines[0].get_ydata(), own["shift"])
    np.testing.assert_allclose(below.lines[0].get_ydata(), own["episode_return"])
    corners = above.collections[0].get_paths()[0].vertices[:, 1]
    ends = ((own["shift"] - own["scale"]).min(), (own["shift"] + own["scale"]).max())
    assert (corners.min(), corners.max()) == pytest.approx(ends)
    (axes,) = figures.scales(table).axes
    assert axes.get_yscale() == "log"
    drawn = {tuple(line.get_ydata()) for line in axes.lines} - {()}
    assert drawn == {tuple(own["scale"]) for _, own in table.groupby(["run", "task"])}


def test_of_many_scales_the_largest_and_the_smallest_are_named() -> None:
    rows = [(f"task-{i:02}", run, 10.0**i * run) for i in range(12) for run in (1, 2)]
    table = pd.DataFrame(rows, columns=["task", "run", "scale"]).assign(agent="a", frames=1)
    (axes,) = figures.scales(table).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    named = [int(label[5:7]) for label in labels]
    assert named == [11, 10, 9, 8, 7, 4, 3, 2, 1, 0]
    low, high = scores.interval_over_seeds([1.0, 2.0]) or (0, 0)
    assert labels[-1] == f"task-00: 1.5 [{low:.3g}, {high:.3g}]"


def test_gradients_are_drawn_as_their_table_says(compared: Comparison) -> None:
    table = tables.gradients(compared)
    smooth = tables.gradients_over_frames(table[table["loss"] == "policy"])
    grid = figures.gradients(smooth).axes
    panels = ["IMPALA\nseed 1", "PopArt-IMPALA\nseed 1", "PopArt-IMPALA\nseed 2"]
    assert [axes.get_title() for axes in grid[:3]] == panels
    own = smooth[(smooth["panel"] == panels[0]) & (smooth["task"] == "pong")]
    for axes, column in ((grid[0], "norm"), (grid[3], "part")):
        position = list(dict.fromkeys(smooth["task"])).index("pong")
        np.testing.assert_allclose(axes.lines[position].get_ydata(), own[column])
    # Of many seeds the interval of the part is filled; what is next to nothing stretches no axis.
    smooth = smooth.assign(low_part=smooth["part"] - 0.1, high_part=smooth["part"] + 0.2)
    smooth.loc[0, "norm"] = 1e-30
    grid = figures.gradients(smooth).axes
    corners = grid[3].collections[position].get_paths()[0].vertices[:, 1]
    ends = (own["part"].min() - 0.1, own["part"].max() + 0.2)
    assert (corners.min(), corners.max()) == pytest.approx(ends)
    assert grid[0].get_ylim()[0] > 1e-7


def test_colours_can_be_told_apart_and_variants_by_their_lines() -> None:
    names = [("IMPALA", "IMPALA"), ("PopArt-IMPALA", "PopArt-IMPALA"), ("PopArt-IMPALA", "other")]
    impala, popart, other = (figures.styles_of(names)[label] for _, label in names)
    assert popart.colour == other.colour != impala.colour
    assert popart.line != other.line
    assert popart.hatch != other.hatch


def test_a_population_shows_the_lineages_and_the_way_through_them(tmp_path: Path) -> None:
    population = make_population(tmp_path / "pbt")
    changed = make_event(2, 550, hyperparameters={**HYPERPARAMETERS, "epsilon": 0.2})
    write_lineage(population.member(2), [*LINEAGES[2][:2], changed, LINEAGES[2][3]])
    # A value that has no logarithm is drawn too.
    without = make_event(0, 0, hyperparameters={**HYPERPARAMETERS, "entropy_cost": 0.0})
    write_lineage(population.member(0), [without, *LINEAGES[0][1:]])
    found = read_run(str(population.path)).population
    assert found is not None
    panels: dict[str, Axes] = {own.get_title(): own for own in figures.population(found).axes}
    fitness, epsilon = panels["fitness at comparisons (%)"], panels["epsilon"]
    assert epsilon.get_yscale() == panels["learning_rate"].get_yscale() == "log"
    assert panels["entropy_cost"].get_yscale() == "linear"
    black = [line for line in epsilon.lines if line.get_color() == "black"]
    solid = [line for line in black if line.get_linestyle() == "-"]
    assert [line.get_xdata().tolist() for line in solid] == [
        [0, 0.2],
        [0.3, 0.5, 0.65],
        [0.4, 0.55, 0.7],
        [0.9, 1, 1.2],
    ]
    assert solid[2].get_ydata().tolist() == [0.1, 0.2, 0.2]
    dotted = [line for line in black if line.get_linestyle() == ":"]
    assert [line.get_xdata().tolist() for line in dotted] == [[0.2, 0.3], [0.65, 0.4], [0.7, 0.9]]
    way = [line for line in fitness.lines if line.get_color() == "black"]
    solid = [line for line in way if line.get_linestyle() == "-"]
    assert solid[1].get_xdata().tolist() == [0.3, 0.5, 0.65]
    assert solid[1].get_ydata().tolist() == [20, 10, 10]  # From the copied one's fitness on.
    assert [len(line.get_xdata()) for line in solid] == [1, 3, 3, 2]

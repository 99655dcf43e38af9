"""The numbers of a report, against published ones and others computed by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalable_agent_popart import scores, suites
from scalable_agent_popart.report import tables
from scalable_agent_popart.report.compare import Comparison
from scalable_agent_popart.report.tables import FinalScores
from scalable_agent_popart.runs.directory import RunDirectory
from tests.fakes.synthetic_runs import LINEAGES, append, compare_runs, make_population, make_run

_TWO = {"level_name": "catch_1,catch_10", "tests": {}}
_CATCH = suites.resolve("catch5").reference_scores


def _scores(comparison: Comparison) -> dict[str, FinalScores]:
    found = [FinalScores(comparison, column) for column in tables.columns(comparison.suite)]
    return {own.column.name: own for own in found}


def _row(table: pd.DataFrame, agent: str) -> dict[str, Any]:
    (row,) = table[table["agent"] == agent].to_dict("records")
    return row


def _write(directory: RunDirectory, returns: dict[str, list[float]], frames: int) -> None:
    found = {level: {"returns": values} for level, values in returns.items()}
    directory.write_evaluation({"frames": frames, "starts": "noop", "tasks": found})


def _percent(task: str, score: float) -> float:
    random, human = _CATCH[task]
    return 100 * (score - random) / (human - random)


def _log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_table_1_of_the_paper() -> None:
    noop, human = (tables.papers_table_1("atari57", column) for column in ("noop", "human"))
    assert (noop["PopArt-IMPALA", "abs_one"], noop["IMPALA", "none"]) == (110.7, 0.3)
    assert human["IMPALA", "abs_one"] == 28.5
    published = {("IMPALA", "oar"): 58.4, ("PopArt-IMPALA", "oar"): 72.8}
    assert tables.papers_table_1("dmlab30", "test") == published


@pytest.mark.parametrize(
    ("level_name", "column", "expected"), [("atari57", "noop", 59.7), ("dmlab30", "test", 49.4)]
)
def test_impalas_published_scores_by_level_give_its_published_aggregate(
    tmp_path: Path, level_name: str, column: str, expected: float
) -> None:
    suite, levels = suites.resolve(level_name), tables.impala_by_level(level_name, column)
    assert len(levels) == len(suite.tasks)
    # And so does a run of ours that scored just so.
    directory = make_run(tmp_path / "same", episodes=1, tests={}, level_name=level_name)
    returns = {name: [levels.get(name, 0.0)] for name in (*suite.tasks, *levels)}
    _write(directory, returns, frames=10**9)
    found = _scores(compare_runs(tmp_path / "same"))[column]
    assert round(_row(found.table_1(), tables.IMPALA)["published"], 1) == expected
    assert round(_row(found.table_1(), "IMPALA")["score"], 1) == expected
    targets = found.published(suite.defaults["reward_clipping"], ["PopArt-IMPALA"])
    assert targets.keys() == {"PopArt-IMPALA", tables.IMPALA}
    assert tables.IMPALA not in found.published("none", ["PopArt-IMPALA"])


@pytest.mark.parametrize("percents", [(70.0,), (30.0, 60.0, 120.0)])
def test_intervals_are_over_seeds_or_over_the_episodes_of_one_run(
    tmp_path: Path, percents: tuple[float, ...]
) -> None:
    for i, percent in enumerate(percents):
        make_run(tmp_path / str(i), percent, tests={"noop": 8}, level_name="catch5", seed=i)
    comparison = compare_runs(*(tmp_path / str(i) for i in range(len(percents))))
    returns = [run.evaluations[0].returns for run in comparison.agents[0].runs]
    by_level = {t: [_percent(t, float(np.mean(own[t]))) for own in returns] for t in _CATCH}
    by_run = np.mean(list(by_level.values()), axis=0)
    found = _scores(comparison)["noop"]
    row = _row(found.table_1(), "IMPALA")
    assert (row["source"], row["runs"], row["episodes"]) == ("test", len(percents), 8)
    assert row["score"] == row["mean"] == pytest.approx(np.mean(by_run))
    if len(percents) == 1:
        expected = (scores.intervals_of_aggregates(returns[0], _CATCH) or {})["mean"]
    else:
        expected = scores.interval_over_seeds(by_run) or (0, 0)
        rerun = scores.interval_over_seeds(by_run, of_rerun=True)
        assert (row["rerun_low"], row["rerun_high"]) == pytest.approx(rerun)
    assert (row["low"], row["high"]) == pytest.approx(expected)
    for level in found.breakdown().to_dict("records"):
        task, own = level["level"], by_level[level["level"]]
        ends = scores.interval_over_seeds(own)
        if ends is None:
            ends = tuple(_percent(task, e) for e in scores.interval_of_mean(returns[0][task]) or ())
        assert level["normalised"] == pytest.approx(np.mean(own))
        assert (level["low"], level["high"]) == pytest.approx(ends)


def test_what_was_not_tested_is_taken_from_the_end_of_training(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", episodes=150, tests={}, level_name="pong")
    found = _scores(compare_runs(tmp_path / "run"))
    row = _row(found["noop"].breakdown(), "IMPALA")
    assert (row["source"], row["episodes"]) == ("training", 100)
    returns = [line["episode_return"] for line in _log(directory.episodes)]
    assert row["mean_return"] == pytest.approx(np.mean(returns[-100:]))
    # It says nothing of human starts.
    assert "IMPALA" not in set(found["human"].table_1()["agent"])


def test_the_newest_test_of_all_tasks_counts_then_the_longest(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="pong,boxing")
    for frames, value, tasks in ((10, 3, 2), (20, 5, 2), (30, 7, 1), (20, 6, 2)):
        returns = {task: [float(value)] * (11 - value) for task in ("pong", "boxing")[:tasks]}
        _write(directory, returns, frames)
    found = _scores(compare_runs(tmp_path / "run"))["noop"]
    assert list(found.breakdown().query("agent == 'IMPALA'")["mean_return"]) == [5] * 2


def test_runs_whose_returns_do_not_count_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "tested", 80.0, level_name="catch_1,catch_10")
    make_run(tmp_path / "untested", 5.0, seed=2, **_TWO)
    make_run(tmp_path / "behind", 5.0, episodes=20, seed=3, level_name="catch_1,catch_10")
    _write(make_run(tmp_path / "part", seed=4, **_TWO), {"catch_1": [5.0, 6.0]}, 10**9)
    names = ("tested", "untested", "behind", "part")
    found = _scores(compare_runs(*(tmp_path / name for name in names)))["noop"]
    row = _row(found.table_1(), "IMPALA")
    assert (row["source"], row["runs"], row["lowest"] > 60) == ("test", 1, True)
    reasons = {"untested": "not tested yet", "behind": "at 40,000", "part": "tested on 1 of 2"}
    assert all(f"{tmp_path / name}: {own}" in str(found.left_out) for name, own in reasons.items())


def test_learning_curves_are_means_of_recent_episodes_of_all_tasks(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", episodes=300, **_TWO)
    lines = pd.DataFrame(_log(directory.episodes))
    late = lines[(lines["task"] == "catch_1") | (lines["frames"] > 50_000)]
    directory.episodes.unlink()
    append(directory.episodes, *late.to_dict("records"))
    table = tables.learning_curves(compare_runs(tmp_path / "run"))
    assert 50_000 < table["frames"].min() < 60_000
    for row in table.to_dict("records")[::20]:
        done = late[late["frames"] <= row["frames"]].groupby("task")["episode_return"]
        percent = [_percent(str(task), returns.tail(100).mean()) for task, returns in done]
        assert row["mean"] == pytest.approx(np.mean(percent))
        assert row["mean_capped"] == pytest.approx(np.mean(np.minimum(percent, 100)))


def test_each_run_counts_as_much_as_any_up_to_where_all_are() -> None:
    rows = [
        *(("one", frames, 10.0, 0.1) for frames in (1, 2, 3, 4)),
        *(("two", 1, 30.0, 0.3), ("two", 4, 50.0, 0.5)),
        ("two", 5, 9999.0, 1.0),  # Where the others are not yet.
        *(("three", frames, 1e-9, 0.5) for frames in (1, 4)),
    ]
    table = pd.DataFrame(rows, columns=["run", "frames", "norm", "part"])
    table = table.assign(agent="x", loss="policy", task="a")
    (row,) = tables.gradients_by_agent(table).to_dict("records")
    # Medians of the runs: 10, 40 and next to nothing.
    assert (row["norm"], row["part"]) == (pytest.approx(10.0), pytest.approx(1 / 3))
    expected = scores.interval_over_seeds([0.1, 0.4, 0.5])
    assert (row["low_part"], row["high_part"]) == pytest.approx(expected)


def test_comparisons_are_tabulated_as_the_lineages_have_them(tmp_path: Path) -> None:
    comparison = compare_runs(make_population(tmp_path / "pbt").path)
    table = tables.events(comparison)
    assert len(table) == sum(map(len, LINEAGES.values()))
    (row,) = table[(table["member"] == 2) & (table["comparison"] == 1)].to_dict("records")
    assert (row["frames"], row["partner"], row["source_frames"]) == (400, 1, 650)
    assert (row["copied"], row["learning_rate"], row["seed"]) == (True, 1e-3, 7)
    assert tables.ancestries(comparison)["learned_last"].tolist() == [200, 550, 850, 1150]

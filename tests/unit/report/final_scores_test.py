"""The scores of a report, against published ones and others computed by hand."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalable_agent_popart import scores, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report import final_scores
from scalable_agent_popart.report.compare import Comparison
from scalable_agent_popart.report.final_scores import IMPALA, FinalScores
from scalable_agent_popart.report.page import write_report
from scalable_agent_popart.runs.directory import RunDirectory
from tests.fakes.programs import read_log
from tests.fakes.report_text import read_report
from tests.fakes.synthetic_runs import START, compare_runs, make_event, make_population, make_run

_TWO = {"level_name": "catch_1,catch_10", "tests": {}}
_CATCH = suites.resolve("catch5").reference_scores


def _scores(comparison: Comparison) -> dict[str, FinalScores]:
    columns = final_scores.columns(comparison.suite)
    return {column.name: FinalScores(comparison, column) for column in columns}


def _value(table: pd.DataFrame, measure: str, task: str) -> dict[str, Any]:
    (row,) = table[(table["measure"] == measure) & (table["task"] == task)].to_dict("records")
    return row


def _write(directory: RunDirectory, returns: dict[str, list[float]], frames: int) -> None:
    levels = {level: {"returns": values} for level, values in returns.items()}
    directory.write_evaluation({"frames": frames, "starts": "noop", "tasks": levels})


def test_table_1_of_the_paper() -> None:
    noop, human = (final_scores.papers_table_1("atari57", column) for column in ("noop", "human"))
    assert (noop["PopArt-IMPALA", "abs_one"], noop["IMPALA", "none"]) == (110.7, 0.3)
    assert human["IMPALA", "abs_one"] == 28.5
    published = {("IMPALA", "oar"): 58.4, ("PopArt-IMPALA", "oar"): 72.8}
    assert final_scores.papers_table_1("dmlab30", "test") == published


@pytest.mark.parametrize(
    ("level_name", "column", "expected"), [("atari57", "noop", 59.7), ("dmlab30", "test", 49.4)]
)
def test_impalas_published_scores_by_level_give_its_published_aggregate(
    tmp_path: Path, level_name: str, column: str, expected: float
) -> None:
    suite, levels = suites.resolve(level_name), final_scores.impala_by_level(level_name, column)
    assert len(levels) == len(suite.tasks)
    # A run of ours that scored just so has the same aggregates.
    directory = make_run(tmp_path / "same", episodes=1, tests={}, level_name=level_name)
    returns = {name: [levels.get(name, 0.0)] for name in (*suite.tasks, *levels)}
    _write(directory, returns, frames=10**9)
    final = _scores(compare_runs(tmp_path / "same"))[column]
    published = final.published()
    paper = published[published["agent"] == "PopArt-IMPALA, clipped (Hessel et al., 2019)"]
    assert paper["value"].tolist() == ([110.7] if level_name == "atari57" else [])
    for table in (published[published["agent"] == IMPALA], final.by_run()):
        assert round(_value(table, "aggregate", suite.headline)["value"], 1) == expected
        if level_name == "atari57":
            mean = _value(table, "aggregate", final_scores.PAPERS_MEAN)["value"]
            assert round(mean, 1) == 176.9
    targets = final.targets(suite.defaults["reward_clipping"], ["PopArt-IMPALA"])
    assert targets.keys() == {"PopArt-IMPALA", IMPALA}
    assert IMPALA not in final.targets("none", ["PopArt-IMPALA"])


def test_random_play_has_a_row_if_it_was_measured_in_all_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "game,episodes,mean,standard_error\nalien,5,150,9\nboxing,4,2.1,0.5\npong,9,-20.7,1\n"
    data = Path(shutil.copytree(str(final_scores._DATA), tmp_path / "data"))
    (data / "atari57_random.csv").write_text(rows)
    monkeypatch.setattr(final_scores, "_DATA", data)
    for games in ("boxing,pong", "boxing,hero"):
        make_run(tmp_path / games, level_name=games)
    finals = _scores(compare_runs(tmp_path / "boxing,pong"))
    unmeasured = _scores(compare_runs(tmp_path / "boxing,hero"))["noop"]
    assert not len(finals["human"].measured()) + len(unmeasured.measured())
    table = finals["noop"].measured()
    assert set(table["task"]) > {"boxing", "pong", "median"}
    row = _value(table, "return", "boxing")
    assert (row["value"], row["agent"], row["episodes"]) == (2.1, final_scores.RANDOM, 4)
    # Student's t with three degrees of freedom has its quantile at 3.182.
    assert [row["low"], row["high"]] == pytest.approx([2.1 - 1.591, 2.1 + 1.591], abs=1e-3)
    # Boxing's human scores 12 points more than random play's 0.1; Pong's random play is 0%.
    assert _value(table, "normalised", "boxing")["value"] == pytest.approx(100 * 2 / 12)
    assert _value(table, "aggregate", "median")["value"] == pytest.approx(100 / 12)


def test_each_runs_scores_have_intervals_over_its_episodes(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 70.0, tests={"noop": 8}, level_name="catch5")
    comparison = compare_runs(tmp_path / "run")
    returns = comparison.agents[0].runs[0].evaluations[0].returns
    table = _scores(comparison)["noop"].by_run()
    assert (set(table["source"]), set(table["episodes"])) == ({"test"}, {8})
    names = ("value", "low", "high")
    for task, (random, human) in _CATCH.items():
        ends = scores.interval_of_mean(returns[task])
        expected = np.array([np.mean(returns[task]), *ends])
        raw, percent = (_value(table, measure, task) for measure in ("return", "normalised"))
        assert [raw[name] for name in names] == pytest.approx(expected)
        expected = 100 * (expected - random) / (human - random)
        assert [percent[name] for name in names] == pytest.approx(expected)
    intervals = scores.intervals_of_aggregates(returns, _CATCH)
    mean = _value(table, "aggregate", "mean")
    assert mean["value"] == pytest.approx(scores.aggregate_returns(returns, _CATCH).mean)
    assert (mean["low"], mean["high"]) == pytest.approx(intervals["mean"])


def test_what_was_not_tested_is_taken_from_the_end_of_training(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", episodes=150, tests={}, level_name="pong")
    finals = _scores(compare_runs(tmp_path / "run"))
    row = _value(finals["noop"].by_run(), "return", "pong")
    assert (row["source"], row["episodes"]) == ("training", 100)
    returns = [line["episode_return"] for line in read_log(directory.episodes)]
    assert row["value"] == pytest.approx(np.mean(returns[-100:]))
    assert not len(finals["human"].by_run())  # It says nothing of human starts.


def test_the_newest_test_of_all_tasks_counts_then_the_longest(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="pong,boxing")
    for frames, value, tasks in ((10, 3, 2), (20, 5, 2), (30, 7, 1), (20, 6, 2)):
        returns = {task: [float(value)] * (11 - value) for task in ("pong", "boxing")[:tasks]}
        _write(directory, returns, frames)
    final = _scores(compare_runs(tmp_path / "run"))["noop"]
    values = [_value(final.by_run(), "return", task)["value"] for task in ("pong", "boxing")]
    assert values == [5, 5]


def test_a_level_that_tests_several_tasks_counts_once(tmp_path: Path) -> None:
    _write(make_run(tmp_path / "run", **_TWO), {"hidden": [3.0, 5.0]}, 80_000)
    column = final_scores.Column("test", "test levels", ["hidden", "hidden"])
    final = FinalScores(compare_runs(tmp_path / "run"), column)
    assert final.left_out == []
    assert _value(final.by_run(), "return", "hidden")["value"] == 4


def test_a_population_counts_by_its_budget_not_by_what_its_best_weights_saw(tmp_path: Path) -> None:
    for seed, copied in ((5, 1200), (10, 100)):
        lineages = {0: [START], 1: [START, make_event(1, 900, (0, copied))]}
        make_population(tmp_path / str(seed), lineages, best=1, seed=seed)
    final = _scores(compare_runs(tmp_path / "5", tmp_path / "10"))["noop"]
    assert final.left_out == []
    assert final.by_run().drop_duplicates("run")["fewest_frames"].tolist() == [1200, 1200]


def test_runs_whose_returns_do_not_count_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "tested", 80.0, level_name="catch_1,catch_10")
    make_run(tmp_path / "untested", 5.0, seed=2, **_TWO)
    make_run(tmp_path / "behind", 5.0, episodes=20, seed=3, level_name="catch_1,catch_10")
    _write(make_run(tmp_path / "part", seed=4, **_TWO), {"catch_1": [5.0, 6.0]}, 10**9)
    names = ("tested", "untested", "behind", "part")
    final = _scores(compare_runs(*(tmp_path / name for name in names)))["noop"]
    row = _value(final.by_run(), "aggregate", "mean")
    assert (row["source"], row["run"]) == ("test", str(tmp_path / "tested"))
    reasons = {"untested": "at 80,000 of", "behind": "at 40,000", "part": "tested on 1 of 2"}
    for name, reason in reasons.items():
        assert f"{tmp_path / name}: {reason}" in str(final.left_out)


def test_zero_may_be_measured_random_play(tmp_path: Path) -> None:
    """Assault's random play scores 352.8 with these actions, and 222.4 in the papers."""
    run = make_run(tmp_path / "run", tests={"noop": 3, "human": 3}, level_name="assault,pong")
    _write(run, {"assault": [352.8], "pong": [14.6]}, 10**9)
    write_report([str(run.path)], str(tmp_path / "out"), measured_zero=True)
    summary = pd.read_csv(tmp_path / "out" / "summary.csv").query("measure == 'normalised'")
    assert set(summary["comparison"]) == {"atari57-2-tasks-measured-zero"}
    assert set(summary["protocol"]) == {"noop"}
    ours = summary.query("kind == 'run'").set_index("task")["value"]
    assert ours.to_dict() == pytest.approx({"assault": 0.0, "pong": 100.0}, abs=1e-9)
    assert summary.query("kind == 'measured'")["value"].tolist() == pytest.approx([0.0] * 2)
    text = read_report(tmp_path / "out")
    assert "## Atari-57, 0% at measured random play, a subset of 2 of 57 tasks" in text
    assert "0% is the return of random play as measured with the agent's own actions, and" in text
    whole = final_scores.with_measured_zero(Comparison(suites.resolve("atari57"), ()))
    assert _scores(whole)["noop"].papers == {}
    with pytest.raises(UserError, match="catch_0"):
        final_scores.with_measured_zero(Comparison(suites.resolve("catch5"), ()))

"""The numbers of a report: published scores, final scores and learning curves, against oracles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalable_agent_popart import intervals, scores, suites
from scalable_agent_popart.config import Config
from scalable_agent_popart.report import curves, published
from scalable_agent_popart.report.comparison import Comparison
from scalable_agent_popart.report.finals import columns, final_returns
from scalable_agent_popart.report.runs import read_run
from scalable_agent_popart.report.tables import FinalScores
from scalable_agent_popart.runs.directory import RunDirectory
from tests.fakes.synthetic_runs import compare_runs, make_run, write_test


def _scores(comparison: Comparison) -> dict[str, FinalScores]:
    return {
        column.name: FinalScores(comparison, column, final_returns(comparison, column))
        for column in columns(comparison.suite)
    }


def _left_out(comparison: Comparison, column_name: str) -> list[str]:
    (column,) = [c for c in columns(comparison.suite) if c.name == column_name]
    return final_returns(comparison, column).left_out


def _row(table: pd.DataFrame, agent: str) -> dict[str, Any]:
    (row,) = table[table["agent"] == agent].to_dict("records")
    return row


# Published scores.


def test_table_1_of_the_paper() -> None:
    for cell, score in {
        ("atari57", "abs_one", "noop", "PopArt-IMPALA"): 110.7,
        ("atari57", "abs_one", "human", "IMPALA"): 28.5,
        ("atari57", "none", "noop", "IMPALA"): 0.3,
        ("dmlab30", "oar", "train", "IMPALA"): 60.6,
        ("dmlab30", "oar", "test", "PopArt-IMPALA"): 72.8,
        ("atari57", "abs_one", "noop", "MultiHead-IMPALA"): None,
        ("catch5", "none", "noop", "IMPALA"): None,
    }.items():
        assert published.aggregate(*cell) == score
    assert published.agents("dmlab30") == [("IMPALA", "oar"), ("PopArt-IMPALA", "oar")]
    assert len(published.agents("atari57")) == 4


@pytest.mark.parametrize(
    ("level_name", "column", "expected"), [("atari57", "noop", 59.7), ("dmlab30", "test", 49.4)]
)
def test_impalas_published_scores_by_level_give_its_published_aggregate(
    tmp_path: Path, level_name: str, column: str, expected: float
) -> None:
    make_run(tmp_path / "run", episodes=1, tests={"noop": 1}, level_name=level_name)
    row = _row(_scores(compare_runs(tmp_path / "run"))[column].table_1(), published.IMPALA)
    assert round(row["published"], 1) == expected
    # And as a run of ours that scored just so.
    suite = suites.resolve(level_name)
    levels = published.impala_by_level(level_name, column)
    returns = {level: [score] for level, score in levels.items()}
    returns |= {task: [0.0] for task in suite.tasks if task not in returns}
    directory = make_run(tmp_path / "same", episodes=1, tests={}, level_name=level_name, seed=2)
    _write(directory, returns, frames=10**9)
    row = _row(_scores(compare_runs(tmp_path / "same"))[column].table_1(), "IMPALA")
    assert round(row["score"], 1) == expected


def test_a_subset_recomputes_the_published_aggregate_and_leaves_the_papers_out(
    tmp_path: Path,
) -> None:
    games = ("pong", "boxing", "breakout")
    make_run(tmp_path / "run", level_name=",".join(games), use_popart=True)
    table = _scores(compare_runs(tmp_path / "run"))["noop"].table_1()
    raw, references = (
        published.impala_by_level("atari57", "noop"),
        suites.resolve("atari57").reference_scores,
    )
    percent = [
        100 * (raw[g] - references[g].random) / (references[g].human - references[g].random)
        for g in games
    ]
    assert _row(table, published.IMPALA)["published"] == pytest.approx(np.median(percent))
    assert np.isnan(_row(table, "PopArt-IMPALA")["published"])
    assert set(table["tasks"]) == {3}


def test_only_the_papers_agents_have_the_papers_scores(tmp_path: Path) -> None:
    for i, flags in enumerate(({}, {"action_set": "impala"}, {"reward_clipping": "none"})):
        make_run(tmp_path / str(i), episodes=1, level_name="dmlab30", **flags)
    table = _scores(compare_runs(*(tmp_path / str(i) for i in range(3))))["train"].table_1()
    assert _row(table, "IMPALA")["published"] == 60.6
    assert np.isnan(_row(table, "IMPALA (original action set)")["published"])
    assert np.isnan(_row(table, "IMPALA (unclipped)")["published"])


# Final scores.


def _write(
    directory: RunDirectory, returns: dict[str, list[float]], frames: int, starts: str = "noop"
) -> None:
    tasks = {level: {"returns": values} for level, values in returns.items()}
    directory.write_evaluation({"frames": frames, "starts": starts, "tasks": tasks})


def test_one_run_has_an_interval_over_its_episodes(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 70.0, tests={"noop": 30}, level_name="catch5")
    comparison = compare_runs(tmp_path / "run")
    finals = _scores(comparison)["noop"]
    evaluation = read_run(str(tmp_path / "run")).evaluations[0]
    references = suites.resolve("catch5").reference_scores
    percent = {
        t: scores.normalise(np.mean(r), references[t]) for t, r in evaluation.returns.items()
    }
    row = _row(finals.table_1(), "IMPALA")
    assert (row["source"], row["runs"], row["episodes"]) == ("test", 1, 30)
    assert row["score"] == row["mean"] == pytest.approx(np.mean(list(percent.values())))
    interval = intervals.of_aggregates(evaluation.returns, references)
    assert interval is not None
    assert (row["low"], row["high"]) == pytest.approx(interval["mean"])
    for level in finals.breakdown().to_dict("records"):
        own = evaluation.returns[level["level"]]
        assert level["mean_return"] == pytest.approx(np.mean(own))
        assert level["normalised"] == pytest.approx(percent[level["level"]])
        low, high = intervals.of_mean(own) or (0, 0)
        reference = references[level["level"]]
        bounds = (scores.normalise(low, reference), scores.normalise(high, reference))
        assert (level["low"], level["high"]) == pytest.approx(bounds)


def test_several_runs_have_an_interval_over_seeds(tmp_path: Path) -> None:
    percents = (30.0, 60.0, 120.0)
    for seed, percent in enumerate(percents, start=1):
        directory = make_run(tmp_path / str(seed), tests={}, level_name="catch5", seed=seed)
        config = Config.from_flags({"level_name": "catch5", "seed": seed})
        write_test(directory, config.for_test({"mode": "test"}), 10**6, percent, 8)
    comparison = compare_runs(*(tmp_path / str(seed) for seed in (1, 2, 3)))
    table = _scores(comparison)["noop"].table_1()
    row = _row(table, "IMPALA")
    by_run = [
        np.mean(
            [
                scores.normalise(np.mean(r), suites.resolve("catch5").reference_scores[t])
                for t, r in run.evaluations[0].returns.items()
            ]
        )
        for run in comparison.agents[0].runs
    ]
    assert row["score"] == pytest.approx(np.mean(by_run))
    assert (row["lowest"], row["highest"]) == pytest.approx((min(by_run), max(by_run)))
    assert (row["low"], row["high"]) == pytest.approx(intervals.over_seeds(by_run))
    assert (row["rerun_low"], row["rerun_high"]) == pytest.approx(intervals.of_rerun(by_run))
    assert row["runs"] == 3
    for level in _scores(comparison)["noop"].breakdown().to_dict("records"):
        reference = suites.resolve("catch5").reference_scores[level["level"]]
        means = [
            scores.normalise(np.mean(run.evaluations[0].returns[level["level"]]), reference)
            for run in comparison.agents[0].runs
        ]
        assert level["normalised"] == pytest.approx(np.mean(means))
        assert (level["low"], level["high"]) == pytest.approx(intervals.over_seeds(means))
        assert (level["lowest"], level["highest"]) == pytest.approx((min(means), max(means)))


def test_what_was_not_tested_is_taken_from_the_end_of_training(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", episodes=150, tests={}, level_name="catch5")
    row = _row(_scores(compare_runs(tmp_path / "run"))["noop"].table_1(), "IMPALA")
    assert (row["source"], row["episodes"]) == ("training", 100)
    lines = [json.loads(line) for line in directory.episodes.read_text().splitlines()]
    means = {
        task: np.mean([line["episode_return"] for line in lines if line["task"] == task][-100:])
        for task in suites.resolve("catch5").tasks
    }
    references = suites.resolve("catch5").reference_scores
    percent = [scores.normalise(mean, references[task]) for task, mean in means.items()]
    assert row["score"] == pytest.approx(np.mean(percent))


def test_training_says_nothing_of_human_starts_or_held_out_levels(tmp_path: Path) -> None:
    make_run(tmp_path / "atari", tests={}, level_name="pong")
    make_run(tmp_path / "lab", tests={}, level_name="rooms_watermaze")
    atari, lab = _scores(compare_runs(tmp_path / "atari")), _scores(compare_runs(tmp_path / "lab"))
    for found in (atari["human"], lab["test"]):
        assert "IMPALA" not in set(found.table_1()["agent"])
        assert len(found.breakdown()) == 0
    assert set(lab["train"].breakdown()["level"]) == {"rooms_watermaze"}


def test_starts_are_kept_apart_and_have_their_own_reference_scores(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="alien")
    _write(directory, {"alien": [3000.0]}, 10)
    _write(directory, {"alien": [6000.0]}, 10, starts="human")
    finals = _scores(compare_runs(tmp_path / "run"))
    assert _row(finals["noop"].table_1(), "IMPALA")["score"] == pytest.approx(
        100 * (3000 - 227.8) / 6899.9
    )
    assert _row(finals["human"].table_1(), "IMPALA")["score"] == pytest.approx(
        100 * (6000 - 128.3) / 6243
    )


@pytest.mark.parametrize(
    ("tests", "chosen"),
    [
        ([(10, {"pong": 1, "boxing": 1}), (20, {"pong": 1})], 0),
        ([(10, {"pong": 1, "boxing": 1}), (20, {"pong": 1, "boxing": 1})], 1),
        ([(10, {"pong": 5, "boxing": 1}), (10, {"pong": 1, "boxing": 1})], 0),
    ],
)
def test_the_newest_test_of_all_tasks_counts_then_the_longest(
    tmp_path: Path, tests: list[tuple[int, dict[str, int]]], chosen: int
) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="pong,boxing")
    for i, (frames, counts) in enumerate(tests):
        _write(directory, {task: [float(i)] * count for task, count in counts.items()}, frames)
    comparison = compare_runs(tmp_path / "run")
    table = _scores(comparison)["noop"].breakdown()
    ours = table[table["agent"] == "IMPALA"]
    assert set(ours["mean_return"]) == {float(chosen)}
    assert len(ours) == 2
    assert _left_out(comparison, "noop") == []


def test_a_test_of_some_tasks_takes_none_of_the_others_away(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole", level_name="pong,boxing,qbert", use_popart=True)
    part = make_run(tmp_path / "part", tests={}, level_name="pong,boxing,qbert")
    for directory in (whole, part):
        _write(directory, {"boxing": [5.0, 6.0]}, 10**9)
    comparison = compare_runs(tmp_path / "whole", tmp_path / "part")
    table = _scores(comparison)["noop"].table_1()
    assert set(table["tasks"]) == {3}
    assert _row(table, "PopArt-IMPALA")["source"] == "test"
    assert _row(table, "IMPALA")["source"] == "training"
    (line,) = _left_out(comparison, "noop")
    assert line.startswith(str(tmp_path / "part"))
    assert "1 of 3 tasks" in line


def test_runs_at_other_stages_are_not_averaged_but_named(tmp_path: Path) -> None:
    make_run(tmp_path / "tested", 80.0, level_name="catch5", seed=1)
    make_run(tmp_path / "tested too", 80.0, level_name="catch5", seed=2)
    make_run(tmp_path / "untested", 5.0, tests={}, level_name="catch5", seed=3)
    make_run(tmp_path / "behind", 5.0, episodes=20, level_name="catch5", seed=4)
    names = ("tested", "tested too", "untested", "behind")
    comparison = compare_runs(*(tmp_path / name for name in names))
    row = _row(_scores(comparison)["noop"].table_1(), "IMPALA")
    assert row["runs"] == 2
    assert row["lowest"] > 60
    assert row["fewest_frames"] == row["most_frames"] == 200_000
    lines = sorted(_left_out(comparison, "noop"))
    assert [line.split(": ")[0] for line in lines] == [
        str(tmp_path / n) for n in ("behind", "untested")
    ]
    assert "100,000 frames" in lines[0]
    assert "not tested yet" in lines[1]


def test_a_run_without_episodes_of_some_task_is_named(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="catch_1,catch_10")
    lines = directory.episodes.read_text().splitlines()
    directory.episodes.write_text(
        "\n".join(line for line in lines if "catch_10" not in line) + "\n"
    )
    comparison = compare_runs(tmp_path / "run")
    assert len(_scores(comparison)["noop"].table_1()) == 0
    (line,) = _left_out(comparison, "noop")
    assert "no episode yet of 1 of 2 tasks" in line


def test_published_targets_are_of_the_tasks_and_the_rewards_that_are_drawn(tmp_path: Path) -> None:
    make_run(tmp_path / "whole", episodes=1, tests={}, level_name="atari57")
    found = _scores(compare_runs(tmp_path / "whole"))["noop"]
    names = ["IMPALA", "MultiHead-IMPALA", "PopArt-IMPALA"]
    clipped = found.published("abs_one", names)
    assert clipped == pytest.approx(
        {"IMPALA": 59.7, "PopArt-IMPALA": 110.7, published.IMPALA: 59.7}, abs=0.01
    )
    assert found.published("none", names) == {"IMPALA": 0.3, "PopArt-IMPALA": 107.0}
    make_run(tmp_path / "part", tests={}, level_name="pong")
    part = _scores(compare_runs(tmp_path / "part"))["noop"].published("abs_one", names)
    assert set(part) == {published.IMPALA}


def test_levels_where_the_human_is_worse_than_random_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "run", level_name="video_pinball,pong")
    found = _scores(compare_runs(tmp_path / "run"))
    assert found["noop"].inverted == []
    assert found["human"].inverted == ["video_pinball"]


# Over training.


def test_learning_curves_are_means_of_recent_episodes(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", episodes=300, tests={}, level_name="catch_1,catch_10")
    lines = [json.loads(line) for line in directory.episodes.read_text().splitlines()]
    references = suites.resolve("catch5").reference_scores
    table = curves.learning_curves(compare_runs(tmp_path / "run"))
    assert table["frames"].max() == lines[-1]["frames"]
    assert table["frames"].is_monotonic_increasing
    for row in table.to_dict("records")[::20]:
        percent = []
        for task in ("catch_1", "catch_10"):
            done = [
                line["episode_return"]
                for line in lines
                if line["task"] == task and line["frames"] <= row["frames"]
            ]
            percent.append(scores.normalise(float(np.mean(done[-100:])), references[task]))
        assert row["mean"] == pytest.approx(np.mean(percent))
        assert row["mean_capped"] == pytest.approx(np.mean(np.minimum(percent, 100)))


def test_a_curve_begins_where_every_task_has_a_score(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", tests={}, level_name="catch_1,catch_10")
    lines = directory.episodes.read_text().splitlines()
    late = [line for line in lines if "catch_10" not in line or json.loads(line)["frames"] > 50_000]
    directory.episodes.write_text("\n".join(late) + "\n")
    assert curves.learning_curves(compare_runs(tmp_path / "run"))["frames"].min() > 50_000
    never = [line for line in lines if "catch_10" not in line]
    directory.episodes.write_text("\n".join(never) + "\n")
    assert len(curves.learning_curves(compare_runs(tmp_path / "run"))) == 0


def test_statistics_are_the_runs_own_beside_its_returns(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5", use_popart=True)
    make_run(tmp_path / "other", level_name="catch5")
    table = curves.statistics(compare_runs(tmp_path / "run", tmp_path / "other"))
    assert set(table["agent"]) == {"PopArt-IMPALA"}
    metrics = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    for line, (frames, rows) in zip(metrics, table.groupby("frames"), strict=True):
        assert frames == line["frames"]
        assert dict(zip(rows["task"], rows["shift"], strict=True)) == line["shift"]
        assert dict(zip(rows["task"], rows["scale"], strict=True)) == line["scale"]
    last = table[table["task"] == "catch_1"].iloc[-1]
    returns = [json.loads(line) for line in directory.episodes.read_text().splitlines()]
    own = [line["episode_return"] for line in returns if line["task"] == "catch_1"]
    assert last["episode_return"] == pytest.approx(np.mean(own))

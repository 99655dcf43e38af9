"""What a test leaves behind: the summary, its printed table and its files."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalable_agent_popart import scores, suites
from scalable_agent_popart.config import Config
from scalable_agent_popart.evaluation import summary as evaluation_summary
from scalable_agent_popart.runs.directory import RunDirectory


def _summary(level_name: str, returns: dict[str, list[float]], **given: Any) -> dict[str, Any]:
    config = Config.from_flags({"level_name": level_name, "mode": "test", **given})
    return evaluation_summary.summarise(config, 1234, returns)


def test_summary_of_atari() -> None:
    returns = {"pong": [-20.0, 0.0, 20.0], "boxing": [10.0, 12.0]}
    summary = _summary("pong,boxing", returns, use_popart=True)
    references = suites.resolve("atari57").reference_scores
    assert summary["frames"] == 1234
    assert (summary["starts"], summary["agent"]) == ("noop", "PopArt-IMPALA")
    assert list(summary["tasks"]) == ["pong", "boxing"]
    pong = summary["tasks"]["pong"]
    assert (pong["episodes"], pong["mean_return"], pong["returns"]) == (3, 0.0, returns["pong"])
    assert pong["mean_return_interval"] == scores.interval_of_mean(returns["pong"])
    reference = references["pong"]
    percent = 100 * (0 - reference.random) / (reference.human - reference.random)
    assert pong["normalised"] == pytest.approx(percent)
    both = [task["normalised"] for task in summary["tasks"].values()]
    assert summary["aggregate"] == pytest.approx(
        {
            "mean": np.mean(both),
            "median": np.median(both),
            "mean_capped": np.mean(np.minimum(both, 100)),
        }
    )
    for name, (low, high) in summary["aggregate_interval"].items():
        assert low <= summary["aggregate"][name] <= high
    assert json.loads(json.dumps(summary)) == json.loads(json.dumps(summary, allow_nan=False))


def test_human_starts_have_reference_scores_of_their_own() -> None:
    human = {"starts": "human", "human_starts_dir": "starts"}
    by_starts = {
        summary["starts"]: summary["tasks"]["alien"]["normalised"]
        for summary in (_summary("alien", {"alien": [3000.0]}, **given) for given in ({}, human))
    }
    assert by_starts["noop"] == pytest.approx(100 * (3000 - 227.8) / (7127.7 - 227.8))
    assert by_starts["human"] == pytest.approx(100 * (3000 - 128.3) / (6371.3 - 128.3))


def test_summary_of_dmlab_has_both_columns() -> None:
    tasks = ["rooms_collect_good_objects_train", "rooms_watermaze"]
    returns = {
        "rooms_collect_good_objects_test": [1.0, 3.0],
        "rooms_watermaze": [10.0, 20.0],
        "rooms_collect_good_objects_train": [5.0, 5.0],
    }
    summary = _summary(",".join(tasks), returns)
    assert list(summary["tasks"]) == ["rooms_collect_good_objects_test", "rooms_watermaze"]
    assert list(summary["train"]["tasks"]) == ["rooms_collect_good_objects_train"]
    references = suites.resolve("dmlab30").references("noop")
    assert references["rooms_collect_good_objects_test"] == references[tasks[0]]
    watermaze = summary["tasks"]["rooms_watermaze"]["normalised"]
    for column, level in (
        (summary, "rooms_collect_good_objects_test"),
        (summary["train"], tasks[0]),
    ):
        own = column["tasks"][level]["normalised"]
        assert column["aggregate"]["mean"] == pytest.approx((own + watermaze) / 2)


def test_what_is_not_known_is_none() -> None:
    summary = _summary("pong", {"pong": [1.0]})
    assert summary["tasks"]["pong"]["mean_return_interval"] is None
    assert set(summary["aggregate_interval"].values()) == {None}
    evaluation_summary.show(summary)


def test_table_has_a_line_a_level_and_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    summary = _summary("pong,boxing", {"pong": [-20.0, 20.0], "boxing": [10.0, 12.0]})
    evaluation_summary.show(summary)
    first, head, pong, boxing, *aggregates = capsys.readouterr().out.splitlines()
    assert "1,234 environment frames, noop starts" in first
    assert "95% interval" in head
    assert pong.split()[:3] == ["pong", "2", "0"]
    assert "[-20, 20]" in pong
    assert boxing.split()[:3] == ["boxing", "2", "11"]
    low, high = summary["aggregate_interval"]["median"]
    assert f"[{low:.1f}, {high:.1f}]" in aggregates[1]
    assert [line.split()[0] for line in aggregates] == ["mean", "median", "mean"]


def test_newest_test_is_at_the_top_and_none_is_lost(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    first = _summary("pong", {"pong": [1.0, 2.0]})
    second = _summary("pong,boxing", {"pong": [3.5], "boxing": [4.0]})
    human = _summary("pong", {"pong": [5.0]}, starts="human", human_starts_dir="starts")
    for summary in (first, second, human):
        directory.write_evaluation(summary)
        assert (
            json.loads(directory.evaluation.read_text())["tasks"].keys() == summary["tasks"].keys()
        )
    kept = {
        path.name: json.loads(path.read_text()) for path in directory.evaluations.glob("*.json")
    }
    assert set(kept) == {"noop-1234-1.json", "noop-1234-2.json", "human-1234-1.json"}
    assert len(list(directory.evaluations.glob("*.csv"))) == 3
    assert kept["noop-1234-1.json"]["tasks"]["pong"]["returns"] == [1.0, 2.0]
    assert json.loads(directory.evaluation.read_text()) == kept["human-1234-1.json"]


def test_returns_are_written_one_by_one(tmp_path: Path) -> None:
    returns = {
        "rooms_collect_good_objects_test": [1.5],
        "rooms_collect_good_objects_train": [2.0, -0.25],
    }
    RunDirectory(str(tmp_path)).write_evaluation(
        _summary("rooms_collect_good_objects_train", returns)
    )
    with open(tmp_path / "evaluation.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["starts", "frames", "level", "episode", "episode_return"],
        ["noop", "1234", "rooms_collect_good_objects_test", "1", "1.5"],
        ["noop", "1234", "rooms_collect_good_objects_train", "1", "2.0"],
        ["noop", "1234", "rooms_collect_good_objects_train", "2", "-0.25"],
    ]

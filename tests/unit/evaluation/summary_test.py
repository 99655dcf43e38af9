"""The record of a test, its printed table and its files."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scalable_agent_popart import scores, suites
from scalable_agent_popart.evaluation import summary as evaluation_summary
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.suites import Suite

_ENDINGS = ("json", "csv")
_TRAIN, _TEST = (f"rooms_collect_good_objects_{version}" for version in ("train", "test"))


def _summary(returns: dict[str, list[float]], level_name: str = "", **given: Any) -> dict[str, Any]:
    flags = {"level_name": level_name or ",".join(returns), "mode": "test", **given}
    return evaluation_summary.summarise(Config.from_flags(flags), 1234, returns)


def test_atari_has_scores_and_aggregates_with_their_intervals() -> None:
    returns = {"pong": [-20.0, 0.0, 20.0], "boxing": [10.0, 12.0]}
    summary = _summary(returns, use_popart=True)
    assert summary["frames"] == 1234
    assert (summary["starts"], summary["agent"]) == ("noop", "PopArt-IMPALA")
    assert list(summary["tasks"]) == ["pong", "boxing"]
    pong = summary["tasks"]["pong"]
    assert (pong["episodes"], pong["mean_return"], pong["returns"]) == (3, 0.0, returns["pong"])
    assert pong["mean_return_interval"] == scores.interval_of_mean(returns["pong"])
    low, high = suites.resolve("atari57").reference_scores["pong"]
    assert pong["normalised"] == pytest.approx(100 * (0 - low) / (high - low))
    both = [task["normalised"] for task in summary["tasks"].values()]
    assert summary["aggregate"] == scores.aggregate(both)._asdict()
    for name, (low, high) in summary["aggregate_interval"].items():
        assert low <= summary["aggregate"][name] <= high
    assert "NaN" not in json.dumps(summary)


def test_dmlab_has_both_columns() -> None:
    watermaze = "rooms_watermaze"
    returns = {_TEST: [1.0, 3.0], watermaze: [10.0, 20.0], _TRAIN: [5.0, 5.0]}
    summary = _summary(returns, level_name=f"{_TRAIN},{watermaze}")
    assert list(summary["tasks"]) == [_TEST, watermaze]
    assert list(summary["train"]["tasks"]) == [_TRAIN]
    references = suites.resolve("dmlab30").references("noop")
    assert references[_TEST] == references[_TRAIN]
    shared = summary["tasks"][watermaze]["normalised"]
    for column, level in ((summary, _TEST), (summary["train"], _TRAIN)):
        alone = column["tasks"][level]["normalised"]
        assert column["aggregate"]["mean"] == pytest.approx((alone + shared) / 2)


def test_the_table_has_a_line_a_level_and_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    def lines(summary: dict[str, Any], suite: Suite) -> list[str]:
        evaluation_summary.show(summary, suite)
        head, _, *rows = capsys.readouterr().out.splitlines()
        kind = ", noop starts" if suite.name == "atari57" else ""
        assert head.endswith(f"1,234 environment frames{kind}")
        return [" ".join(line.split()) for line in rows]

    summary = _summary({"pong": [-20.0, 20.0], "boxing": [14.0]})
    atari = suites.resolve("atari57")
    assert lines(summary, atari) == [
        "pong 2 0 [-20, 20] 58.6%",
        "boxing 1 14 115.8%",
        "mean human-normalised score 87.2%",
        "median human-normalised score 87.2%",
        "mean capped human-normalised score 79.3%",
    ]
    raw = lines(summary, dataclasses.replace(atari, reference_scores={}))
    longest = lines(_summary({"pong": [-29980.0, -29970.0]}), atari)[0].split(" -8")[0]
    assert longest == "pong 2 -2.998e+04 [-2.998e+04, -2.997e+04]"
    assert raw == ["pong 2 0 [-20, 20]", "boxing 1 14", "mean return 87.2", "median return 87.2"]
    assert summary["tasks"]["boxing"]["mean_return_interval"] is None
    summary = _summary({_TEST: [1.0, 3.0], _TRAIN: [5.0, 5.0]}, level_name=_TRAIN)
    *levels, mean, _, _ = lines(summary, suites.resolve("dmlab30"))
    assert levels == [f"{_TEST} 2 2 [1, 3] 19.4%", f"{_TRAIN} 2 5 [5, 5] 49.6%"]
    each = "49.6% [49.6, 49.6] on train levels, 19.4% [9, 29] on test levels"
    assert mean == f"mean human-normalised score {each}"


def test_the_newest_test_is_at_the_top_and_none_is_lost(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    first, second = _summary({"pong": [1.0, 2.0]}), _summary({"pong": [3.5], "boxing": [4.0]})
    human = _summary({"pong": [5.0]}, starts="human", human_starts_dir="starts")
    for summary in (first, second, human):
        directory.write_evaluation(summary)
        newest = json.loads(directory.evaluation.read_text())
        assert newest["tasks"].keys() == summary["tasks"].keys()
    stems = [sorted(file.stem for file in directory.evaluations.glob(f"*.{e}")) for e in _ENDINGS]
    assert stems == [["human-1234-1", "noop-1234-1", "noop-1234-2"]] * 2
    kept = json.loads((directory.evaluations / "noop-1234-1.json").read_text())
    assert kept["tasks"]["pong"]["returns"] == [1.0, 2.0]


def test_returns_are_written_one_by_one(tmp_path: Path) -> None:
    summary = _summary({_TEST: [1.5], _TRAIN: [2.0, -0.25]}, level_name=_TRAIN)
    RunDirectory(str(tmp_path)).write_evaluation(summary)
    with open(tmp_path / "evaluation.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["starts", "frames", "level", "episode", "episode_return"]
    expected = [(_TEST, "1", "1.5"), (_TRAIN, "1", "2.0"), (_TRAIN, "2", "-0.25")]
    assert rows == [["noop", "1234", *row] for row in expected]

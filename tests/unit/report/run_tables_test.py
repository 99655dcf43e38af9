"""Tables of runs for users, against the files they are read from."""

import json
from pathlib import Path

import pytest

import scalable_agent_popart
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report import read
from tests.fakes.programs import read_log
from tests.fakes.synthetic_runs import make_population, make_run

_SHARED = ["run", "agent", "seed", "frames"]


def test_runs_are_tables_in_long_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_METRICS", 7)  # A report's records are fewer.
    popart = make_run(tmp_path / "popart", use_popart=True, level_name="pong,boxing", seed=3)
    make_run(tmp_path / "impala", tests={}, level_name="pong,boxing")
    runs = scalable_agent_popart.read_runs(tmp_path)
    assert all(list(table)[:4] == _SHARED for table in runs)
    records, ours = read_log(popart.metrics), {"run": str(tmp_path / "popart"), "seed": 3}
    for table, rows in ((runs.metrics, 1), (runs.task_metrics, 2)):
        of_run = table[table["agent"] == "PopArt-IMPALA, clipped"]
        assert of_run["frames"].tolist() == [r["frames"] for r in records for _ in range(rows)]
        assert (of_run[[*ours]] == [*ours.values()]).all(axis=None)
    boxing = of_run[of_run["task"] == "boxing"]
    assert boxing["scale"].tolist() == [record["scale"]["boxing"] for record in records]
    (episodes,) = (table for run, table in runs.episodes.groupby("run") if run == ours["run"])
    columns = ["task", "frames", "episode_return"]
    written = [[line[name] for name in columns] for line in read_log(popart.episodes)]
    assert episodes[columns].to_numpy().tolist() == written


def test_scores_are_those_of_tests_and_of_learning_curves(tmp_path: Path) -> None:
    tested = make_run(tmp_path / "tested", level_name="pong", tests={"noop": 5, "human": 3})
    make_run(tmp_path / "untested", level_name="pong", tests={}, seed=2)
    scores = scalable_agent_popart.read_runs([str(tested.path), tmp_path / "untested"]).scores
    in_training = scores[scores["source"] == "training"]
    assert in_training["run"].nunique() == 2
    assert in_training["score"].notna().all()
    for row in scores[scores["source"] == "test"].to_dict("records"):
        name = f"{row['starts']}-{row['frames']}-1.json"
        test = json.loads((tested.evaluations / name).read_text())["tasks"]["pong"]
        numbers = (test["episodes"], test["mean_return"], pytest.approx(test["normalised"]))
        assert (row["episodes"], row["return"], row["score"]) == numbers
    assert sorted(scores.loc[scores["source"] == "test", "starts"]) == ["human", "noop"]


def test_a_population_is_one_run_and_what_cannot_be_read_is_warned_of(tmp_path: Path) -> None:
    make_population(tmp_path / "pbt")
    (tmp_path / "empty").mkdir()
    with pytest.warns(UserWarning, match="empty skipped: there is no run in"):
        runs = scalable_agent_popart.read_runs([tmp_path / "pbt", tmp_path / "empty"])
    assert set(runs.metrics["run"]) == {str(tmp_path / "pbt")}
    with pytest.raises(UserError, match="there is no run to report on"):
        scalable_agent_popart.read_runs(tmp_path / "empty")

"""Directories of runs and populations: whole, unfinished and damaged ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from scalable_agent_popart.report import progress
from scalable_agent_popart.report.read import read_run
from tests.fakes.programs import read_log
from tests.fakes.synthetic_runs import append, compare_runs, make_population, make_run, write_test


def test_returns_may_be_of_any_size_and_measurements_unknown(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5", use_popart=True)
    append(directory.episodes, {"task": "catch_1", "frames": 10**6, "episode_return": -1e300})
    whole = read_log(directory.metrics)[-1]
    unknown = {"shift": {**whole["shift"], "catch_1": None}, "frames_per_second": None}
    append(directory.metrics, {**whole, "frames": 10**6, **unknown})
    run = read_run(str(tmp_path / "run"))
    assert run.problems == []
    assert run.logs["episodes"]["episode_return"].iloc[-1] == -1e300
    last = run.logs["task_metrics"].query("frames == 1_000_000").set_index("task")
    assert last["shift"].isna().sum() == 1
    assert np.isnan(last["shift"]["catch_1"])
    assert np.isnan(run.logs["metrics"]["frames_per_second"].iloc[-1])


def test_what_a_run_recorded_counts_with_the_flags_of_then(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch_1", batch_size=32)
    before = read_run(str(tmp_path / "run"))
    changed = before.config.with_flags({"batch_size": 64, "precision": "bfloat16"})
    directory.record(changed, frames=20_000)
    test = changed.for_test({"mode": "test", "precision": "float32"})
    write_test(directory, test, 20_000, 50.0, 5)
    run = read_run(str(tmp_path / "run"))
    table = progress.tabulate(compare_runs(tmp_path / "run"))
    entropies = table.set_index("frames")["entropy"]
    assert entropies.loc[:20_000].tolist() == pytest.approx([0.5] * 25)
    assert entropies.loc[20_001:].tolist() == pytest.approx([0.25] * 25)
    (problem,) = run.problems
    assert problem.endswith("40,000 frames acted in float32, and it was trained in bfloat16")


def test_what_is_missing_or_damaged_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch5", use_popart=True)
    whole = directory.episodes.read_text()
    directory.episodes.write_text(whole + '{"frames": 2010')  # It is still being written.
    directory.metrics.unlink()
    damaged_test = directory.evaluations / "noop-1-1.json"
    damaged_test.write_text('{"frames": 1, "starts": "noop"}')
    run = read_run(str(tmp_path / "run"))
    assert (len(run.logs["episodes"]), len(run.evaluations)) == (200, 1)
    missing, damaged = run.problems
    assert missing.startswith(f"{directory.metrics} skipped")
    assert damaged.startswith(f"{damaged_test} skipped")
    of_another = json.dumps({"task": "pong", "frames": 5, "episode_return": 1.0})
    for line in ("not json", of_another):
        directory.episodes.write_text(f"{whole}{line}\n{whole}")
        run = read_run(str(tmp_path / "run"))
        assert f"{directory.episodes} skipped: from a line on it is no log" in run.problems[0]
        assert len(run.logs["episodes"]) == 200
    population = make_population(tmp_path / "pbt")
    population.member(2).lineage.write_text("not json\n")
    (problem, *_) = read_run(str(population.path)).problems
    assert problem.startswith(f"{population.member(2).path} skipped: ")


def test_a_population_is_the_ancestry_of_its_best_member(tmp_path: Path) -> None:
    make_population(tmp_path / "pbt")
    run = read_run(str(tmp_path / "pbt"))
    assert (run.problems, run.path, run.seed) == ([], tmp_path / "pbt", 7)
    population = run.population
    assert population.best.name == "member-03"
    ends = ((0, 10, 200, 0), (1, 310, 650, -100), (2, 410, 700, 150), (3, 910, 1200, -50))
    expected = [(f + offset, n) for n, a, b, offset in ends for f in range(a, b + 1, 10)]
    assert run.logs["episodes"]["frames"].tolist() == [frames for frames, _ in expected]
    assert run.frames == 1150
    one = run.logs["task_metrics"][run.logs["task_metrics"]["task"] == "catch_1"]
    assert list(zip(one["frames"], one["shift"].astype(int), strict=True)) == expected


def test_of_tests_those_of_the_ancestry_count_where_it_had_learned_so_much(tmp_path: Path) -> None:
    population = make_population(tmp_path / "pbt")
    # 120 is before it copied, 660 of weights that went on from elsewhere; 700 of the weights before
    # a copy or after it.
    for number, tests in {1: (120, 310, 640, 660), 2: (540, 550, 700), 3: (500, 1000)}.items():
        directory = population.member(number)
        config = directory.read_record().config
        for frames in tests:
            write_test(directory, config.for_test({"mode": "test"}), frames, 50.0, 2)
    run = read_run(str(population.path))
    assert [test.frames for test in run.evaluations] == [210, 540, 690, 700, 950]
    (problem,) = run.problems
    assert problem.startswith(f"{population.member(2).evaluations / 'noop-700-1.json'} skipped: ")


def test_the_best_has_the_highest_capped_score_of_the_most_tasks(tmp_path: Path) -> None:
    population = make_population(tmp_path / "pbt", best=1)
    # One that excels at one task is capped, and its 100 latest episodes count; one that has not
    # played all of them comes last.
    record = {"task": "catch_1", "frames": 1210, "episode_return": 1e6}
    append(population.member(2).episodes, *[record] * 100)
    log = population.member(0).episodes
    lines = [line for line in read_log(log) if line["task"] != "catch_1"]
    log.unlink()
    append(log, *({**line, "episode_return": 100.0} for line in lines))
    whole = read_run(str(population.path)).population
    ranks = {number: member.rank for number, member in whole.members.items()}
    assert (whole.best.number, min(ranks, key=ranks.__getitem__)) == (1, 0)
    assert whole.members[2].score == pytest.approx((100 + 4 * 37.5) / 5, abs=0.2)  # 0 is 37.5%.

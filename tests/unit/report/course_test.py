"""What a report tells of training itself: speed, memory, batches and gradients."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scalable_agent_popart import intervals
from scalable_agent_popart.report import course, figures, gradients
from tests.fakes.synthetic_runs import compare_runs, make_run


def test_speed_memory_entropy_and_batches_are_each_runs_own(tmp_path: Path) -> None:
    flags = {"level_name": "catch_1,catch_10", "tests": {}, "batch_size": 32, "unroll_length": 20}
    make_run(tmp_path / "popart", use_popart=True, **flags)
    directory = make_run(tmp_path / "impala", seed=2, **flags)
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    shares = [(0.5, 0.5), (1.0, 0.0), (0.75, 0.25)]
    with open(directory.metrics, "w") as file:
        for line, speed, share in zip(lines, (10.0, 40.0, 20.0), shares, strict=False):
            line["batch_share"] = dict(zip(line["batch_share"], share, strict=True))
            # A batch of 32 rollouts of 20 steps, of one nat each.
            line |= {"entropy_loss": -0.1 * 32 * 20, "entropy_cost": 0.1}
            file.write(json.dumps({**line, "frames_per_second": speed}) + "\n")
        # Of an earlier version's log.
        for name in ("batch_share", "memory_mib", "entropy_loss", "entropy_cost"):
            del line[name]
        file.write(json.dumps({**line, "frames": line["frames"] + 1}) + "\n")
    older = make_run(tmp_path / "older", seed=3, **flags)
    older.metrics.write_text(json.dumps(line) + "\n")
    compared = compare_runs(*(tmp_path / name for name in ("popart", "impala", "older")))
    shares = course.batches(compared)
    impala, old, popart = course.by_run(course.course(compared), shares).to_dict("records")
    assert (impala["agent"], impala["seed"], popart["agent"]) == ("IMPALA", 2, "PopArt-IMPALA")
    assert impala["frames_per_second"] == np.median([10, 40, 20, line["frames_per_second"]])
    assert (impala["memory_mib"], impala["tasks"]) == (503, 2)
    assert (impala["least"], impala["most"]) == (0.25, 0.75)
    assert (popart["memory_mib"], popart["least"], popart["most"]) == (550, 0.5, 0.5)
    assert impala["entropy"] == pytest.approx(1)
    assert np.isnan([old[name] for name in ("memory_mib", "tasks", "least", "entropy")]).all()
    table = shares.set_index(["agent", "task"])
    assert list(table.loc[("IMPALA", "catch_10")][["share", "least", "most"]]) == [0.25, 0, 0.5]
    assert set(table["run"]) == {str(tmp_path / "popart"), str(tmp_path / "impala")}
    assert len(course.course(compared)) == 50 + 4 + 1


def test_gradients_are_the_runs_own_by_task(tmp_path: Path) -> None:
    flags = {"level_name": "catch_1,catch_10", "log_task_gradients": True, "tests": {}}
    for seed in (1, 2):
        make_run(tmp_path / f"popart-{seed}", use_popart=True, seed=seed, **flags)
    directory = make_run(tmp_path / "impala", **flags)
    make_run(tmp_path / "not measured", level_name="catch_1,catch_10", seed=3)
    names = ("popart-1", "popart-2", "impala", "not measured")
    table = gradients.gradients(compare_runs(*(tmp_path / name for name in names)))
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()[:-1]]
    for loss, name in (("policy", "policy_gradient_norm"), ("total", "total_gradient_norm")):
        own = table[(table["agent"] == "IMPALA") & (table["loss"] == loss)]
        for line, (frames, rows) in zip(lines, own.groupby("frames"), strict=True):
            assert frames == line["frames"]
            assert dict(zip(rows["task"], rows["norm"], strict=True)) == line[name]
    assert set(table["run"]) == {str(tmp_path / name) for name in names[:3]}
    # A batch may lack a task, which then has no part in it.
    partly = json.loads((tmp_path / "popart-1" / "metrics.jsonl").read_text().splitlines()[0])
    partly["policy_gradient_norm"] = {"catch_1": 3.0}
    del partly["total_gradient_norm"]  # As logs from before it was measured.
    lone = make_run(tmp_path / "lone", use_popart=True, **flags)
    lone.metrics.write_text(
        json.dumps(partly) + "\n" + json.dumps({**partly, "frames": 9999}) + "\n"
    )
    other = gradients.by_agent(gradients.gradients(compare_runs(tmp_path / "lone"))).set_index(
        "task"
    )
    assert list(other["part"]) == [1.0, 0.0]
    assert other["norm"]["catch_1"] == 3.0
    assert np.isnan(other["norm"]["catch_10"])
    # By hand: task k of 2 has sizes k/10, 2k/10, ..., 49k/10 in both runs, and parts k/3.
    summary = gradients.by_agent(table).set_index(["agent", "loss", "task"])
    assert summary.loc[("PopArt-IMPALA", "policy", "catch_10"), "norm"] == pytest.approx(5.0)
    assert summary.loc[("PopArt-IMPALA", "policy", "catch_10"), "part"] == pytest.approx(2 / 3)
    assert summary.loc[("IMPALA", "policy", "catch_1"), "norm"] == pytest.approx(2.5)
    # Of the total loss they are the squares of that.
    assert summary.loc[("PopArt-IMPALA", "total", "catch_10"), "norm"] == pytest.approx(25.0)
    assert summary.loc[("PopArt-IMPALA", "total", "catch_10"), "part"] == pytest.approx(4 / 5)


def test_each_run_counts_as_much_as_any_up_to_where_all_are() -> None:
    columns = ["run", "task", "frames", "norm", "part"]
    rows = [
        *(("one", "a", frames, 10.0, 0.1) for frames in (1, 2, 3, 4)),
        ("two", "a", 1, 30.0, 0.3),
        ("two", "a", 4, 50.0, 0.5),
        ("two", "a", 5, 9999.0, 1.0),  # Where the others are not yet.
        *(("three", "a", frames, 1e-9, 0.5) for frames in (1, 4)),
    ]
    found = gradients.by_agent(pd.DataFrame(rows, columns=columns).assign(agent="x", loss="policy"))
    (row,) = found.to_dict("records")
    # Medians of the runs: 10, 40 and next to nothing.
    assert (row["norm"], row["part"]) == (pytest.approx(10.0), pytest.approx(1 / 3))
    expected = intervals.over_seeds([0.1, 0.4, 0.5])
    assert (row["low_part"], row["high_part"]) == pytest.approx(expected)
    assert (row["least_norm"], row["most_norm"]) == (pytest.approx(1e-9), pytest.approx(40.0))


def test_where_no_task_has_a_gradient_none_has_a_part(tmp_path: Path) -> None:
    flags = {"level_name": "catch_1,catch_10", "log_task_gradients": True, "tests": {}}
    directory = make_run(tmp_path / "run", **flags)
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    lines[0]["policy_gradient_norm"] = {"catch_1": 0.0, "catch_10": 0.0}
    directory.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = gradients.gradients(compare_runs(tmp_path / "run"))
    first = table[table["frames"] == lines[0]["frames"]].groupby("loss")["part"]
    assert {loss: list(parts) for loss, parts in first} == {
        "policy": [0, 0],
        "total": [pytest.approx(1 / 5), pytest.approx(4 / 5)],
    }


def test_gradients_over_frames_are_of_even_stretches() -> None:
    rows = [(frames, frames / 10, frames % 2) for frames in range(1, 81)]
    table = pd.DataFrame(rows, columns=["frames", "norm", "part"])
    found = gradients.over_frames(table.assign(agent="a", run="a-1", seed=1, task="t"))
    assert list(found["frames"]) == [2 * i + 1 for i in range(40)]
    np.testing.assert_allclose(found["norm"], [(2 * i + 1.5) / 10 for i in range(40)])
    np.testing.assert_allclose(found["part"], 0.5)


def test_few_seeds_are_shown_each_by_itself_and_many_as_one() -> None:
    def panels(seeds: range) -> list[tuple[str, float]]:
        runs = [("a", seed, float(seed)) for seed in seeds] + [("b", 1, 10.0)]
        table = pd.DataFrame(runs, columns=["agent", "seed", "norm"])
        table["run"] = table["agent"] + table["seed"].astype(str)
        found = gradients.over_frames(table.assign(task="t", frames=1, part=1.0))
        return list(zip(found["panel"], found["norm"], strict=True))

    assert panels(range(1, 2)) == [("a", 1), ("b", 10)]
    assert panels(range(1, 3)) == [("a\nseed 1", 1), ("a\nseed 2", 2), ("b\nseed 1", 10)]
    assert panels(range(1, 12)) == [("a", 6), ("b", 10)]


def test_parts_of_many_seeds_have_the_interval_of_their_mean() -> None:
    # Runs count alike, however many records each has in a stretch.
    rows = [
        ("one", 1, 0.1),
        ("one", 1, 0.3),
        ("two", 2, 0.5),
        *((str(i), i, 0.6) for i in range(3, 9)),
    ]
    own = pd.DataFrame(rows, columns=["run", "seed", "part"]).assign(agent="a")
    other = own.assign(agent="b", run="b-" + own["run"])
    table = pd.concat([own, other]).assign(task="t", frames=1, norm=1.0)
    both = gradients.over_frames(table)
    expected = intervals.over_seeds([0.2, 0.5, *[0.6] * 6]) or (0, 0)
    assert list(both["panel"]) == ["a", "b"]
    np.testing.assert_allclose(both[["low_part", "high_part"]], [expected] * 2)
    np.testing.assert_allclose(both["part"], np.mean(expected))
    for axes in figures.gradients(both).axes[2:]:
        (band,) = axes.collections
        corners = band.get_paths()[0].vertices[:, 1]
        assert (corners.min(), corners.max()) == pytest.approx(expected)
    alone = gradients.over_frames(table[table["seed"] == 2])
    assert alone[["low_part", "high_part"]].isna().all(axis=None)

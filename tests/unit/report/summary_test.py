"""Tables of what runs recorded, and their summary, against others computed by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from scalable_agent_popart import scores
from scalable_agent_popart.report import curves, gradients, populations
from scalable_agent_popart.report.chapter import agents_numbers
from scalable_agent_popart.report.compare import Comparison
from scalable_agent_popart.report.page import open_chapter
from scalable_agent_popart.report.read import read_run
from scalable_agent_popart.report.summary import COLUMNS
from tests.fakes.programs import read_log
from tests.fakes.synthetic_runs import START, append, begin, compare_runs, make_population, make_run


def _summarise(comparison: Comparison) -> pd.DataFrame:
    return open_chapter(comparison).summary


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    root = tmp_path_factory.mktemp("runs")
    flags = {"level_name": "pong,boxing,crazy_climber"}
    for seed, percent in enumerate((30.0, 60.0, 120.0)):
        given = {"use_popart": True, "log_task_gradients": True, **flags}
        make_run(root / f"popart-{seed}", percent, seed=seed, **given)
        if seed:
            make_run(root / f"impala-{seed}", percent / 3, seed=seed, **flags)
    make_run(root / "single", 10.0, multi_head=True, **flags)
    return compare_runs(*sorted(root.iterdir()))


def test_agents_have_the_mean_of_their_runs_and_its_intervals(comparison: Comparison) -> None:
    table = _summarise(comparison)
    assert tuple(table) == COLUMNS
    by_run = table.query("kind == 'run'")
    for measure in ("return", "normalised", "aggregate", "scale", "policy_gradient_part"):
        numbers = agents_numbers(table, measure)
        assert len(numbers), measure
        for row in numbers.query("kind == 'agent'").to_dict("records"):
            runs = by_run[(by_run["measure"] == measure) & (by_run["agent"] == row["agent"])]
            runs = runs[runs["task"] == row["task"]]
            values = runs["value"].to_numpy()
            assert row["runs"] == len(runs)
            assert row["value"] == pytest.approx(values.mean())
            assert row["median"] == pytest.approx(np.median(values))
            assert (row["lowest"], row["highest"]) == pytest.approx((min(values), max(values)))
            ends = runs["low"].iloc[0], runs["high"].iloc[0]  # Over episodes.
            if len(runs) > 1:
                width = stats.t.ppf(0.975, len(runs) - 1) * stats.sem(values)
                ends = values.mean() - width, values.mean() + width
                rerun = values.mean() - width * 2**0.5, values.mean() + width * 2**0.5
                assert (row["rerun_low"], row["rerun_high"]) == pytest.approx(rerun)
            assert (row["low"], row["high"]) == pytest.approx(ends)


def test_agents_of_several_runs_are_compared(comparison: Comparison) -> None:
    table = _summarise(comparison)
    differences = table.query("kind == 'difference'")
    pairs = set(zip(differences["agent"], differences["versus"], strict=True))
    assert pairs == {("PopArt-IMPALA, clipped", "IMPALA, clipped")}
    medians = table.query("kind == 'run' and measure == 'aggregate' and task == 'median'")
    impala, _, popart = (runs["value"].to_numpy() for _, runs in medians.groupby("agent"))
    expected = scores.difference_over_seeds(popart, impala)
    (row,) = differences.query("source == 'test' and task == 'median'").to_dict("records")
    numbers = [row[name] for name in ("value", "low", "high", "effect", "p")]
    assert numbers == pytest.approx(list(expected))
    assert row["runs"] == 2
    assert set(differences["task"]) == {
        "pong", "boxing", "crazy_climber", "mean", "median", "mean_capped", "interquartile_mean",
        "probability_of_improvement",
    }  # fmt: skip
    # PopArt runs are at 30%, 60% and 120%, and IMPALA runs at 20% and 40%, so that one loses.
    (chance,) = differences[differences["task"] == "probability_of_improvement"]["value"]
    assert chance == pytest.approx(100 * 5 / 6)


def test_training_is_summed_up_by_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", use_popart=True, level_name="pong,boxing")
    record: dict[str, Any] = {"frames_per_second": 10.0, "memory_mib": 7.0}
    record |= {"shift": dict.fromkeys(("pong", "boxing"), 2.0)}
    record |= {"scale": {"pong": 3.0, "boxing": 4.0}, "largest_target": {"pong": 31.0}}
    # After 50 records up to 80,000 frames a longer one, and one of the last batch.
    for frames, pong in ((100_000, 0.9), (100_001, 1.0)):
        append(run.metrics, record | {"frames": frames, "batch_share": {"pong": pong, "boxing": 0}})
    table = _summarise(compare_runs(tmp_path / "run")).query("kind == 'run'")
    by_measure = {str(name): rows for name, rows in table.groupby("measure")}
    # The memory of a run is the largest of 501 to 550 MiB, and its rate the median.
    (memory,), (rate,) = (by_measure[n]["value"] for n in ("memory_mib", "frames_per_second"))
    assert (memory, rate) == (550, 1000)
    shares = by_measure["batch_share"].set_index("task")
    expected = [0.8 * 0.5 + 0.2 * 0.9, 0.5, 0.9]
    pong = shares.loc["pong", ["value", "lowest", "highest"]].tolist()
    assert pong == pytest.approx(expected, abs=1e-4)
    scales = by_measure["scale"].set_index("task")["value"]
    assert scales.to_dict() == {"pong": 3.0, "boxing": 4.0}
    (largest,), (share,) = (by_measure[n]["value"] for n in ("largest_target", "large_targets"))
    assert (largest, share) == (31.0, 1.0), "of one task, in the records that tell"


def test_learning_curves_of_the_runs_that_count_are_averaged(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"level_name": "pong,boxing"}
    for seed, episodes in ((1, 38), (2, 40), (3, 10)):  # The third lags far behind.
        make_run(tmp_path / f"tested-{seed}", episodes=episodes, seed=seed, **flags)
    make_run(tmp_path / "untested", tests={}, seed=4, **flags)
    make_run(tmp_path / "another", episodes=9, multi_head=True, **flags)
    comparison = compare_runs(*tmp_path.iterdir())
    table = _summarise(comparison).query("measure == 'mean_over_training' and task == 'median'")
    assert set(table["protocol"]) == {"noop"}
    runs = table[table["kind"] == "run"].set_index("run")
    of_runs = curves.tabulate_scores(comparison).groupby("run")
    counted = [str(tmp_path / name) for name in ("tested-1", "tested-2", "another")]
    for run in counted:
        assert runs.loc[run, "value"] == pytest.approx(of_runs["median"].mean()[run])
        assert runs.loc[run, "most_frames"] == of_runs["frames"].max()[run]
    assert set(runs.index) == set(counted)


def test_gradients_count_up_to_the_frames_that_all_runs_have_reached(tmp_path: Path) -> None:
    flags = {"level_name": "pong,boxing", "log_task_gradients": True}
    for name, episodes, agent in (("short", 20, {}), ("long", 40, {"multi_head": True})):
        make_run(tmp_path / name, episodes=episodes, **agent, **flags)
    table = _summarise(compare_runs(tmp_path / "short", tmp_path / "long"))
    # The short run's records end at 49 of its 50, and the long one's count up to the 24th of 50.
    # Task k of two has a size of k/10 in the first record, and so on.
    sizes = agents_numbers(table, "policy_gradient_size", task="boxing")
    assert sizes.set_index("agent")["value"].to_dict() == {
        "IMPALA, clipped": 5.0,
        "MultiHead-IMPALA, clipped": 2.5,
    }
    parts = agents_numbers(table, "total_gradient_part", task="boxing")
    assert parts["value"].tolist() == pytest.approx([0.8] * 2)


def test_what_a_run_that_lags_far_behind_has_recorded_does_not_count(tmp_path: Path) -> None:
    flags = {"level_name": "pong,boxing", "log_task_gradients": True, "use_popart": True}
    for seed, episodes in ((1, 38), (2, 40), (3, 4)):
        make_run(tmp_path / f"{seed}", episodes=episodes, seed=seed, **flags)
    without, table = (
        _summarise(compare_runs(*(tmp_path / seed for seed in seeds))) for seeds in ("12", "123")
    )
    pd.testing.assert_frame_equal(table, without)


def test_populations_are_compared_by_their_best_median_and_worst_members(tmp_path: Path) -> None:
    expected: dict[int, list[list[float]]] = {9: [], 5: []}
    begun: dict[int, Any] = {number: [begin(number)] for number in range(5)}
    for episodes, seed, best in ((9, 1, 1), (9, 2, 2), (5, 1, 4), (5, 2, 0)):
        path = tmp_path / f"{episodes}-{seed}"
        make_population(path, begun, best, pbt_episodes=episodes, seed=seed)
        population = read_run(str(path)).population
        members = population.members.values()
        expected[episodes].append(sorted(member.score or 0.0 for member in members))
    # Members that have not begun, or not all tasks, say nothing of their population.
    make_population(tmp_path / "4", {0: [START]}, seed=4, pbt_episodes=9)
    episodes_log = make_population(tmp_path / "5", begun, seed=5, pbt_episodes=9).member(1).episodes
    episodes_log.write_text(episodes_log.read_text().splitlines(keepends=True)[0])
    alone = make_population(tmp_path / "6", begun, seed=6, pbt_episodes=9).member(1).path
    paths = [path for path in tmp_path.iterdir() if path.name != "6"]
    table = _summarise(compare_runs(*paths, alone))
    label = "PopArt-IMPALA, raw rewards, population of 5, PBT episodes"
    for name, i in (("worst", 0), ("median", 2), ("best", 4)):
        rows = table[table["measure"] == f"{name}_member"]
        agents = rows[rows["kind"] == "agent"].set_index("agent")
        means = {f"{label} {n}": np.mean(values, 0)[i] for n, values in expected.items()}
        assert agents["value"].to_dict() == pytest.approx(means)
        counts = agents[["runs", "fewest_frames", "most_frames"]]
        assert counts.to_numpy().tolist() == [[2, 1200, 1200]] * 2
        (difference,) = rows[rows["kind"] == "difference"].to_dict("records")
        by_hand = means[difference["agent"]] - means[difference["versus"]]
        assert difference["value"] == pytest.approx(by_hand)


def test_learning_curves_are_means_of_recent_episodes_of_all_tasks(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", episodes=300, level_name="catch_1,catch_10")
    lines = pd.DataFrame(read_log(directory.episodes))
    late = lines[(lines["task"] == "catch_1") | (lines["frames"] > 50_000)]
    directory.episodes.unlink()
    append(directory.episodes, *late.to_dict("records"))
    comparison = compare_runs(tmp_path / "run")
    table, references = curves.tabulate_scores(comparison), comparison.suite.reference_scores
    assert 50_000 < table["frames"].min() < 60_000
    for row in table.to_dict("records")[::20]:
        played = late[late["frames"] <= row["frames"]].groupby("task")["episode_return"]
        means = {str(task): returns.tail(100).mean() for task, returns in played}
        percent = [scores.normalise(mean, references[task]) for task, mean in means.items()]
        assert row["mean"] == pytest.approx(np.mean(percent))
        assert row["mean_capped"] == pytest.approx(np.mean(np.minimum(percent, 100)))
    returns = curves.tabulate_returns(comparison, ["catch_10"])
    assert 50_000 < returns["frames"].min() < 60_000


def test_means_of_returns_keep_their_digits_after_larger_ones(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch_1", tests={}, episodes=0)
    for frames, value in enumerate([1e17] * 150 + [0.5] * 150):
        append(directory.episodes, {"task": "catch_1", "episode_return": value, "frames": frames})
    table = curves.tabulate_returns(compare_runs(tmp_path / "run"), ["catch_1"])
    assert set(table["return"][table["frames"] < 150]) == {1e17}
    assert set(table["return"][table["frames"] >= 250]) == {0.5}


def test_stretches_of_gradients_hold_records_of_every_run_if_these_are_even() -> None:
    """Runs write them by the clock, and so at frames of their own and some more than others."""
    records = [
        {"agent": "A", "seed": seed, "run": seed, "task": "catch_1", "frames": frames} | values
        for seed, number in enumerate((10, 11, 200) * 3)
        for frames in np.linspace(900 // number, 1000, number)
        for values in [{"norm": 1.0, "part": seed / 8}]
    ]
    table = gradients.average_over_frames(pd.DataFrame(records))
    assert table["frames"].tolist() == pytest.approx(np.arange(50, 1000, 100))
    assert table["part"].tolist() == pytest.approx([0.5] * 10)
    assert np.isfinite(table["low_part"]).all()


def test_comparisons_are_tabulated_as_the_lineages_have_them(tmp_path: Path) -> None:
    comparison = compare_runs(make_population(tmp_path / "pbt").path)
    table = populations.events(comparison)
    assert table["member"].value_counts().to_dict() == {0: 3, 1: 4, 2: 4, 3: 4}
    (row,) = table[(table["member"] == 2) & (table["comparison"] == 1)].to_dict("records")
    assert (row["frames"], row["partner"], row["source_frames"]) == (400, 1, 650)
    assert (row["copied"], row["learning_rate"], row["seed"]) == (True, 1e-3, 7)
    assert populations.ancestries(comparison)["learned_last"].tolist() == [200, 550, 850, 1150]

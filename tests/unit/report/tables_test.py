"""Tables of what runs recorded, against others computed by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scalable_agent_popart import scores, suites
from scalable_agent_popart.report import curves, gradients, populations
from tests.fakes.programs import read_log
from tests.fakes.synthetic_runs import LINEAGES, append, compare_runs, make_population, make_run

_TWO = {"level_name": "catch_1,catch_10", "tests": {}}
_CATCH = suites.resolve("catch5").reference_scores


def test_learning_curves_are_means_of_recent_episodes_of_all_tasks(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", episodes=300, **_TWO)
    lines = pd.DataFrame(read_log(directory.episodes))
    late = lines[(lines["task"] == "catch_1") | (lines["frames"] > 50_000)]
    directory.episodes.unlink()
    append(directory.episodes, *late.to_dict("records"))
    table = curves.tabulate_scores(compare_runs(tmp_path / "run"))
    assert 50_000 < table["frames"].min() < 60_000
    for row in table.to_dict("records")[::20]:
        played = late[late["frames"] <= row["frames"]].groupby("task")["episode_return"]
        means = {str(task): returns.tail(100).mean() for task, returns in played}
        percent = [scores.normalise(mean, _CATCH[task]) for task, mean in means.items()]
        assert row["mean"] == pytest.approx(np.mean(percent))
        assert row["mean_capped"] == pytest.approx(np.mean(np.minimum(percent, 100)))
    returns = curves.tabulate_returns(compare_runs(tmp_path / "run"), ["catch_10"])
    assert 50_000 < returns["frames"].min() < 60_000


def test_means_of_returns_keep_their_digits_after_larger_ones(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", level_name="catch_1", tests={}, episodes=0)
    line = {"task": "catch_1"}
    values = [1e17] * 150 + [0.5] * 150
    lines = [{**line, "episode_return": value, "frames": i} for i, value in enumerate(values)]
    append(directory.episodes, *lines)
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
    assert len(table) == sum(map(len, LINEAGES.values()))
    (row,) = table[(table["member"] == 2) & (table["comparison"] == 1)].to_dict("records")
    assert (row["frames"], row["partner"], row["source_frames"]) == (400, 1, 650)
    assert (row["copied"], row["learning_rate"], row["seed"]) == (True, 1e-3, 7)
    assert populations.ancestries(comparison)["learned_last"].tolist() == [200, 550, 850, 1150]

"""Normalised scores and their aggregates, against hand values and a published table."""

import pytest

from scalable_agent_popart import scores, suites
from scalable_agent_popart.report import published


@pytest.mark.parametrize(
    ("score", "percent"),
    [(10.0, 0.0), (60.0, 100.0), (35.0, 50.0), (0.0, -20.0), (110.0, 200.0)],
)
def test_random_is_0_percent_and_human_100(score: float, percent: float) -> None:
    assert scores.normalise(score, scores.ReferenceScore(random=10.0, human=60.0)) == percent


def test_normalise_where_scores_are_negative() -> None:
    reference = scores.ReferenceScore(random=-20.0, human=-10.0)
    assert scores.normalise(-15.0, reference) == 50.0
    assert scores.normalise(-30.0, reference) == -100.0


def test_aggregate_of_an_even_number_of_scores() -> None:
    result = scores.aggregate([300.0, -40.0, 20.0, 60.0])
    assert result == (85.0, 40.0, 35.0)
    assert result._fields == ("mean", "median", "mean_capped")


def test_aggregate_of_an_odd_number_of_scores() -> None:
    assert scores.aggregate([150.0, 90.0, 0.0]) == pytest.approx((80.0, 90.0, 190 / 3))


def test_cap_is_at_100_and_from_above_only() -> None:
    assert scores.aggregate([100.0, 101.0]).mean_capped == 100.0
    assert scores.aggregate([-1000.0]).mean_capped == -1000.0


def test_aggregate_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no scores"):
        scores.aggregate([])


def test_aggregate_of_returns_normalises_each_tasks_mean() -> None:
    references = {
        "easy": scores.ReferenceScore(0.0, 10.0),
        "hard": scores.ReferenceScore(100.0, 200.0),
        "not_played": scores.ReferenceScore(0.0, 1.0),
    }
    # Means 20 and 110: 200% and 10%, however many episodes each has.
    returns = {"easy": [10.0, 20.0, 30.0], "hard": [110.0]}
    assert scores.aggregate_returns(returns, references) == pytest.approx((105.0, 105.0, 55.0))


def test_tasks_without_a_reference_score_are_left_out() -> None:
    references = {"known": scores.ReferenceScore(0.0, 10.0)}
    returns = {"known": [5.0], "unknown": [1000.0]}
    assert scores.aggregate_returns(returns, references) == pytest.approx((50.0, 50.0, 50.0))
    assert scores.aggregate_returns({"unknown": [1.0]}, references) is None
    assert scores.aggregate_returns({}, references) is None


def test_impalas_published_table_gives_its_published_median() -> None:
    references = suites.resolve("atari57").reference_scores
    raw = published.impala_by_level("atari57", "noop")
    assert set(raw) == set(references)
    result = scores.aggregate([scores.normalise(raw[game], references[game]) for game in raw])
    assert round(result.median, 1) == 59.7
    by_returns = scores.aggregate_returns({game: [raw[game]] for game in raw}, references)
    assert by_returns == pytest.approx(result)


def test_impalas_published_table_gives_its_published_mean_capped() -> None:
    suite = suites.resolve("dmlab30")
    raw = published.impala_by_level("dmlab30", "test")
    assert set(raw) == {suite.test_version(task) for task in suite.tasks}
    of_task = {task: [raw[suite.test_version(task)]] for task in suite.tasks}
    result = scores.aggregate_returns(of_task, suite.reference_scores)
    assert result is not None
    assert round(result.mean_capped, 1) == 49.4

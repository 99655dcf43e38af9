"""Normalised scores, aggregates and intervals: by hand, by slow resampling, over simulated runs."""

import numpy as np
import pytest

from scalable_agent_popart import scores
from scalable_agent_popart.scores import ReferenceScore

_UNIT = ReferenceScore(random=0.0, human=1.0)


def _episodes(size: int, seed: int = 1, mean: float = 0.5) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 0.2, size)


@pytest.mark.parametrize(
    ("score", "random", "human", "percent"),
    [(10, 10, 60, 0), (60, 10, 60, 100), (0, 10, 60, -20), (110, 10, 60, 200), (-15, -20, -10, 50)],
)
def test_random_is_0_percent_and_human_100(
    score: float, random: float, human: float, percent: float
) -> None:
    assert scores.normalise(score, ReferenceScore(random, human)) == percent


def test_aggregates_are_mean_median_and_mean_capped_from_above_only() -> None:
    result = scores.aggregate([300.0, -40.0, 20.0, 60.0])
    assert result == (85.0, 40.0, 35.0)
    assert result._fields == ("mean", "median", "mean_capped")
    assert scores.aggregate([150.0, 90.0, 0.0]) == pytest.approx((80.0, 90.0, 190 / 3))
    assert scores.aggregate([-1000.0]).mean_capped == -1000.0
    several = scores.aggregate([[300.0, 150.0], [-40.0, 90.0], [20.0, 0.0]])
    np.testing.assert_allclose(several, [[280 / 3, 80], [20, 90], [80 / 3, 190 / 3]])
    with pytest.raises(ValueError, match="no scores"):
        scores.aggregate([])


def test_aggregates_of_returns_are_of_the_means_of_tasks_that_have_a_reference_score() -> None:
    references = {"easy": ReferenceScore(0.0, 10.0), "hard": ReferenceScore(100.0, 200.0)}
    # Means 20 and 110: 200% and 10%, however many episodes each has.
    returns = {"easy": [10.0, 20.0, 30.0], "hard": [110.0], "unknown": [1000.0]}
    assert scores.aggregate_returns(returns, references) == pytest.approx((105.0, 105.0, 55.0))
    assert scores.aggregate_returns({"unknown": [1.0]}, references) is None


def test_interval_of_a_mean_is_that_of_resampled_means() -> None:
    returns = _episodes(40)
    means = np.random.default_rng(5).choice(returns, size=(20_000, 40)).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    # The ends of 2,000 resamples stray by some hundredths of the width.
    assert scores.interval_of_mean(returns) == pytest.approx((low, high), abs=0.1 * (high - low))
    assert scores.interval_of_mean([3.0, 3.0, 3.0]) == (3.0, 3.0)
    assert scores.interval_of_mean([3.0]) is None


def test_aggregates_resample_each_tasks_episodes_by_themselves() -> None:
    returns = {"a": _episodes(30, 1, 0.2), "b": _episodes(60, 2, 0.9), "c": _episodes(20, 3, 1.0)}
    references = {"a": _UNIT, "b": _UNIT, "c": ReferenceScore(0.5, 1.0), "not played": _UNIT}
    random = np.random.default_rng(6)
    means = [random.choice(own, size=(10_000, len(own))).mean(axis=1) for own in returns.values()]
    percent = 100 * np.stack([means[0], means[1], (means[2] - 0.5) / 0.5])
    expected = {
        "mean": percent.mean(axis=0),
        "median": np.median(percent, axis=0),
        "mean_capped": np.minimum(percent, 100).mean(axis=0),
    }
    found = scores.intervals_of_aggregates({**returns, "unknown": [1e9, -1e9]}, references)
    assert found is not None
    assert set(found) == set(expected)
    for name, values in expected.items():
        low, high = np.quantile(values, [0.025, 0.975])
        assert found[name] == pytest.approx((low, high), abs=0.1 * (high - low)), name
    assert scores.intervals_of_aggregates(returns, {}) is None
    assert scores.intervals_of_aggregates({"a": [1.0, 2.0], "b": [1.0]}, references) is None


def test_intervals_over_seeds_are_students_t() -> None:
    # 95% of Student's t with four degrees of freedom lies within 2.776 (any table has it), with
    # one within 12.706.
    runs, width = [1.0, 2.0, 3.0, 4.0, 5.0], 2.776 * (2.5 / 5) ** 0.5
    for of_rerun, own in ((False, width), (True, width * 2**0.5)):
        found = scores.interval_over_seeds(runs, of_rerun)
        assert found == pytest.approx((3 - own, 3 + own), abs=2e-3)
    assert scores.interval_over_seeds([0.0, 2.0]) == pytest.approx((-11.706, 13.706), abs=1e-3)
    assert scores.interval_over_seeds([5.0]) is None

"""Normalised scores, aggregates, intervals and differences: by hand, by slow resampling."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

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


def test_statistics_of_agarwal_et_al_are_those_of_loops() -> None:
    first, second = np.random.default_rng(4).normal(60.0, 40.0, (2, 5, 9)).round(-1)
    second = second[:3]
    for run in first:
        aggregates = scores.reported_aggregates(run)
        inner = sorted(run)[2:7]  # A quarter of nine is two, rounded down.
        assert aggregates["interquartile_mean"] == pytest.approx(sum(inner) / 5)
        gap = sum(100 - min(score, 100) for score in run) / 9
        assert aggregates["optimality_gap"] == pytest.approx(gap)
    of_all = scores.reported_aggregates(first.T)["interquartile_mean"]
    np.testing.assert_allclose(of_all, stats.trim_mean(first.T, 0.25))
    wins = [
        (first[i, t] > second[j, t]) + (first[i, t] == second[j, t]) / 2
        for i in range(5) for j in range(3) for t in range(9)
    ]  # fmt: skip
    assert 0.5 in wins
    chance, low, high = scores.probability_of_improvement(first, second)
    assert chance == pytest.approx(100 * np.mean(wins))
    assert low < chance < high
    ranked = [stats.mannwhitneyu(first[:, t], second[:, t]).statistic / 15 for t in range(9)]
    assert chance == pytest.approx(100 * np.mean(ranked))


def test_the_probability_of_improvement_has_brunner_and_munzels_interval() -> None:
    first, second = np.random.default_rng(7).normal([[0.8], [0.5]], 1.0, (2, 12))[..., None]
    value, low, high = scores.probability_of_improvement(first, second)
    tested = stats.brunnermunzel(first[:, 0], second[:, 0])
    error = (value - 50) / abs(tested.statistic)
    freedom = optimize.brentq(
        lambda n: 2 * stats.t.sf(abs(tested.statistic), n) - tested.pvalue, 2, 40
    )
    width = stats.t.isf(0.025, freedom) * error
    assert (low, high) == pytest.approx((value - width, value + width))
    separate = scores.probability_of_improvement(first + 9, second)
    assert separate[0] == 100
    assert np.isnan(separate[1:]).all()


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
    # The ends of a 90% interval would be off by eight hundredths of the width.
    assert scores.interval_of_mean(returns) == pytest.approx((low, high), abs=0.03 * (high - low))
    assert scores.interval_of_mean([3.0, 3.0, 3.0]) == (3.0, 3.0)
    assert scores.interval_of_mean([3.0]) is None


def test_aggregates_resample_each_tasks_episodes_by_themselves() -> None:
    returns = {"a": _episodes(30, 1, 0.2), "b": _episodes(60, 2, 0.9), "c": _episodes(20, 3, 1.0)}
    references = {"a": _UNIT, "b": _UNIT, "c": ReferenceScore(0.5, 1.0), "not played": _UNIT}
    random = np.random.default_rng(6)
    means = [random.choice(r, size=(10_000, len(r))).mean(axis=1) for r in returns.values()]
    percent = 100 * np.stack([means[0], means[1], (means[2] - 0.5) / 0.5])
    expected = {
        "mean": percent.mean(axis=0),
        "median": np.median(percent, axis=0),
        "mean_capped": np.minimum(percent, 100).mean(axis=0),
    }
    intervals = scores.intervals_of_aggregates({**returns, "unknown": [1e9, -1e9]}, references)
    assert set(intervals) == set(expected)
    for name, values in expected.items():
        low, high = np.quantile(values, [0.025, 0.975])
        assert intervals[name] == pytest.approx((low, high), abs=0.05 * (high - low)), name
    assert scores.intervals_of_aggregates(returns, {}) is None
    assert scores.intervals_of_aggregates({"a": [1.0, 2.0], "b": [1.0]}, references) is None


def test_digits_of_intervals_are_those_of_any_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    returns = {"a": _episodes(50, 1, 0.2), "b": 100 * _episodes(50, 2, 0.9)}
    repeated = []
    for seed in range(20):
        monkeypatch.setattr(scores, "_SEED", seed)
        aggregates = scores.intervals_of_aggregates(returns, dict.fromkeys(returns, _UNIT))
        repeated.append([scores.interval_of_mean(returns["a"]), aggregates["mean"]])
    errors = np.std(repeated, axis=0)
    assert (errors < 0.01 * np.ptp(repeated[0], axis=1)[:, None]).all()


@pytest.mark.parametrize(
    ("low", "high", "style", "text"),
    [
        (0.4812, 12.96, ".1f", "[0.5, 13.0]"),
        (5.31, 37.66, ".1f", "[5, 38]"),
        (-1234.5, 9876.5, ".1f", "[-1200, 9900]"),
        (0.4489, 0.4512, ".2f", "[0.45, 0.45]"),
        (1034.2, 1236.8, ",.4g", "[1,030, 1,240]"),
        (0.01234, 0.3456, ",.4g", "[0.01, 0.35]"),
        (0.1234, 0.1234, ".4g", "[0.1234, 0.1234]"),
    ],
)
def test_intervals_are_written_with_digits_that_resamples_have(
    low: float, high: float, style: str, text: str
) -> None:
    assert scores.write_interval(low, high, style) == text


@pytest.mark.parametrize(
    ("unit", "numbers", "style"),
    [
        ("%", (0.1, -0.4, 0.5), ".1f"),
        ("", (0.1, -0.4, 0.5), ".3f"),
        ("", (5.0, -120.0, 130.0), ".0f"),
        ("", (0.0123,), ".4f"),
        ("", (0.0, 0.0, 0.0), ".0f"),
        ("", (21.5, math.nan, math.nan), ".1f"),
    ],
)
def test_returns_have_digits_by_their_size(unit: str, numbers: tuple, style: str) -> None:
    assert scores.score_style(unit, *numbers) == style


def test_intervals_over_seeds_are_students_t() -> None:
    # 95% of Student's t with four degrees of freedom lies within 2.776 (any table has it), with
    # one within 12.706.
    means, deviations = np.array([3.0, 1.0, 7.0]), np.array([2.5**0.5, 2**0.5, np.nan])
    low, high = scores.students_t(means, deviations, np.array([5, 2, 1]))
    widths = np.array([2.776 * (2.5 / 5) ** 0.5, 12.706, np.nan])
    np.testing.assert_allclose([low, high], [means - widths, means + widths], atol=2e-3)


def _p_by_hand(first: list[float], second: list[float]) -> float:
    """Returns p over all ways to assign the runs: twice the rarer side, and at most 1."""
    runs = [*first, *second]
    difference = np.mean(first) - np.mean(second)
    differences = []
    for chosen in itertools.combinations(range(len(runs)), len(first)):
        others = [runs[i] for i in range(len(runs)) if i not in chosen]
        differences.append(np.mean([runs[i] for i in chosen]) - np.mean(others))
    above = np.mean([each >= difference - 1e-7 for each in differences])
    below = np.mean([each <= difference + 1e-7 for each in differences])
    return min(1.0, 2 * min(above, below))


@pytest.mark.parametrize(
    ("first", "second", "least"),
    [
        ([11.0, 14.0, 12.0, 19.0, 15.0], [1.0, 3.0, 2.0, 2.5, 0.0], 2 / 252),
        ([11.0, 14.0, 12.0, 19.0, 15.0], [12.0, 13.0, 12.0, 16.0], 0.5),
        ([1.0, 2.0], [3.0, 4.0], 2 / 6),
        # Ties, of scores that are rounded here and there.
        ([99.375, 98.125, 98.125, 99.375, 98.125], [100, 100 + 1e-8, 99.375, 98.125, 98.125], 0.4),
        ([3e-7, 0.1, 0.2], [0.1 + 1e-9, 0.3, 0.2], 0.5),
        ([35.6, 54.3, 2.2, 11.3, 64.1], [46.8, 49.1, 0.1, 5.8, 55.4], 222 / 252),
        # A tie of means whose scores have no common unit.
        (
            [10.6678214, 13.9212856, 11.2538491, 10.7486528, 31.6233641],
            [21.9842186, 22.8733641, 21.0546574, 21.3173595, 23.7220939],
            32 / 252,
        ),
    ],
)
def test_differences_are_welchs_and_tested_over_all_assignments(
    first: list[float], second: list[float], least: float
) -> None:
    result = scores.difference_over_seeds(first, second)
    assert result.p == pytest.approx(_p_by_hand(first, second))
    assert result.p >= least - 1e-9
    assert result.mean == pytest.approx(np.mean(first) - np.mean(second))
    # The interval ends where Welch's test has p = 5%.
    for end in (result.low, result.high):
        moved = stats.ttest_ind(np.subtract(first, end), second, equal_var=False)
        assert moved.pvalue == pytest.approx(0.05)
    swapped = scores.difference_over_seeds(second, first)
    assert swapped == pytest.approx(
        (-result.mean, -result.high, -result.low, -result.effect, result.p)
    )


def test_effects_are_in_standard_deviations_of_runs() -> None:
    # Both deviations are 1, and of 3 + 3 runs Hedges' correction is 1 - 3/15.
    result = scores.difference_over_seeds([11.0, 12.0, 13.0], [1.0, 2.0, 3.0])
    assert (result.mean, result.effect) == pytest.approx((10.0, 8.0))
    constant = scores.difference_over_seeds([0.1] * 3, [0.1] * 3)
    assert constant.mean == 0
    assert all(map(math.isnan, (constant.low, constant.high, constant.effect)))
    assert constant.p == 1
    many = scores.difference_over_seeds(_episodes(20, 1, 0.5), _episodes(20, 2, 0.9))
    # None of 50,000 random ways is as rare, but the way that was found counts, too.
    assert many.p == pytest.approx(2 / 50_001)

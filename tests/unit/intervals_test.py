"""Intervals, against slow resampling, closed forms and many simulated runs."""

import numpy as np
import pytest
from scipy import stats

from scalable_agent_popart import intervals
from scalable_agent_popart.scores import ReferenceScore

_UNIT = ReferenceScore(random=0.0, human=1.0)


def _episodes(size: int, seed: int = 1, mean: float = 0.5) -> list[float]:
    return np.random.default_rng(seed).normal(mean, 0.2, size).tolist()


def test_interval_of_a_mean_is_that_of_resampled_means() -> None:
    returns = _episodes(40)
    random = np.random.default_rng(5)
    means = [np.mean(random.choice(returns, size=40)) for _ in range(20_000)]
    low, high = np.quantile(means, [0.025, 0.975])
    # The ends of 2,000 resamples stray by some hundredths of the width.
    assert intervals.of_mean(returns) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = 0
    for seed in range(200):
        low, high = intervals.of_mean(_episodes(50, seed)) or (0, 0)
        held += low <= 0.5 <= high
    # 95%, a little less for so few episodes; three standard errors of 200 trials are 5%.
    assert 0.88 * 200 <= held < 200


def test_episodes_that_are_all_alike_have_an_interval_without_width() -> None:
    assert intervals.of_mean([3.0, 3.0, 3.0]) == (3.0, 3.0)


def test_very_many_episodes_have_a_narrow_interval() -> None:
    low, high = intervals.of_mean(_episodes(300_000)) or (0, 0)
    assert low < 0.5 < high < low + 0.005


def test_one_episode_says_nothing_of_the_spread() -> None:
    assert intervals.of_mean([3.0]) is None
    assert intervals.of_aggregates({"a": [1.0, 2.0], "b": [1.0]}, {"a": _UNIT, "b": _UNIT}) is None


def test_aggregates_resample_each_tasks_episodes_by_themselves() -> None:
    returns = {"a": _episodes(30, 1, 0.2), "b": _episodes(60, 2, 0.9), "c": _episodes(20, 3, 1.0)}
    references = {"a": _UNIT, "b": _UNIT, "c": ReferenceScore(0.5, 1.0), "not played": _UNIT}
    random = np.random.default_rng(6)
    resampled = []
    for _ in range(10_000):
        means = [np.mean(random.choice(values, size=len(values))) for values in returns.values()]
        resampled.append([100 * means[0], 100 * means[1], 100 * (means[2] - 0.5) / 0.5])
    matrix = np.array(resampled)
    expected = {
        "mean": matrix.mean(axis=1),
        "median": np.median(matrix, axis=1),
        "mean_capped": np.minimum(matrix, 100).mean(axis=1),
    }
    found = intervals.of_aggregates(returns, references)
    assert found is not None
    assert set(found) == set(expected)
    for name, values in expected.items():
        low, high = np.quantile(values, [0.025, 0.975])
        assert found[name] == pytest.approx((low, high), abs=0.1 * (high - low)), name


def test_tasks_without_reference_scores_are_left_out_of_aggregates() -> None:
    returns = {"a": _episodes(10), "unknown": [1e9, -1e9]}
    alone = intervals.of_aggregates({"a": returns["a"]}, {"a": _UNIT})
    assert intervals.of_aggregates(returns, {"a": _UNIT}) == alone
    assert intervals.of_aggregates(returns, {}) is None


@pytest.mark.parametrize("count", [3, 5])
def test_intervals_over_seeds_hold_the_truth_as_often_as_they_say(count: int) -> None:
    held = 0
    for scores in np.random.default_rng(count).normal(3.0, 7.0, (2000, count)):
        low, high = intervals.over_seeds(scores.tolist()) or (0, 0)
        held += low <= 3.0 <= high
    # Three standard errors of 2,000 trials are 1.5%.
    assert 0.935 * 2000 <= held <= 0.965 * 2000


def test_the_interval_over_seeds_is_that_of_students_t() -> None:
    for scores in ([-0.6, 26.0], [10.0, 40.0, 100.0], [-0.6, 26.0, 12.3, 8.1, 14.5]):
        middle, error = np.mean(scores), stats.sem(scores)
        expected = stats.t.interval(0.95, len(scores) - 1, loc=middle, scale=error)
        assert intervals.over_seeds(scores) == pytest.approx(expected)
    # 95% of Student's t with four degrees of freedom lies within 2.776 (any table has it).
    found = intervals.over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == pytest.approx((3 - 2.776 / 2**0.5, 3 + 2.776 / 2**0.5), abs=1e-3)


def test_one_seed_says_nothing_of_the_others() -> None:
    assert intervals.over_seeds([5.0]) is None
    assert intervals.over_seeds([5.0, 5.0]) == (5.0, 5.0)


def test_reruns_are_where_they_are_said_to_be_as_often_as_is_said() -> None:
    random = np.random.default_rng(4)
    first, second = random.normal(3.0, 7.0, (2, 2000, 5))  # 2,000 pairs of five runs.
    held = 0
    for one, other in zip(first, second.mean(axis=1), strict=True):
        low, high = intervals.of_rerun(one.tolist()) or (0, 0)
        held += low <= other <= high
    # Three standard errors of 2,000 trials are 1.5%.
    assert 0.935 * 2000 <= held <= 0.965 * 2000


def test_the_interval_for_a_rerun_is_that_of_students_t() -> None:
    # 95% of Student's t with four degrees of freedom lies within 2.776 (any table has it).
    low, high = intervals.of_rerun([1.0, 2.0, 3.0, 4.0, 5.0]) or (0, 0)
    assert (low, high) == pytest.approx((3 - 2.776, 3 + 2.776), abs=1e-3)
    assert intervals.of_rerun([5.0]) is None
    assert intervals.of_rerun([5.0, 5.0]) == (5.0, 5.0)

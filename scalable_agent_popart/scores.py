"""Human-normalised scores, their aggregates, 95% intervals of both, and how agents differ by them.

A task's normalised score is 100 (score - random) / (human - random). Atari-57 is reported as the
median over games, DmLab-30 as the mean over levels with each level capped at 100. Interquartile
mean, optimality gap and probability of improvement are those of Agarwal et al. (2021). A run counts
as a whole: its aggregates are over its own tasks, and are averaged over runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy  # Its parts load when they are used, which environments' processes never do.

CONFIDENCE = 0.95
RECENT_EPISODES = 100  # A task's score while training is the mean over so many latest episodes.
# Many episodes make narrow intervals, whose ends are as exact with fewer resamples.
_MIN_RESAMPLES, _MAX_RESAMPLES, _MAX_SAMPLED = 2000, 20_000, 2_000_000
_ERROR = 0.005  # Standard error of an end by 20,000 resamples, as a part of the interval's width.
_SEED = 1
_MAX_BATCH = 100_000  # Episodes that are drawn at once, in some megabytes.
_MAX_ASSIGNMENTS = 50_000  # Ways to assign runs to two agents; nine of each have 48,620.
_EQUAL = 1e-6  # Means that differ by less, as a part of the range of scores, are equal.

Score = TypeVar("Score", float, np.ndarray)
Scores = Sequence[float] | np.ndarray
Interval = tuple[float, float]


class ReferenceScore(NamedTuple):
    """Raw scores that define 0% and 100% of a task's normalised score."""

    random: float
    human: float


class Aggregate(NamedTuple):
    """Scores over tasks, in percent."""

    mean: float
    median: float
    mean_capped: float


class Difference(NamedTuple):
    """Difference between the mean scores of two agents' runs, with its uncertainty."""

    mean: float  # The first agent's mean minus the second's.
    low: float  # To `high`: the 95% interval by Welch's t; NaN where both agents' spreads are 0.
    high: float
    effect: float  # Hedges' g: the mean in standard deviations of runs; NaN where these are 0.
    p: float  # By a two-sided permutation test.


def normalise(score: Score, reference: ReferenceScore) -> Score:
    """Returns a raw score, or an array of them, in percent of the way from random to human."""
    return 100.0 * (score - reference.random) / (reference.human - reference.random)


def aggregate(normalised: Any) -> Aggregate:
    """Computes the aggregates `[...]` of normalised scores `[tasks, ...]` of one or more tasks."""
    scores: Any = np.asarray(normalised, np.float64)
    return Aggregate(
        mean=np.mean(scores, axis=0),
        median=np.median(scores, axis=0),
        mean_capped=np.mean(np.minimum(scores, 100.0), axis=0),
    )


def aggregate_returns(
    returns: Mapping[str, Scores], references: Mapping[str, ReferenceScore]
) -> Aggregate | None:
    """Aggregates the tasks with a reference score, by mean raw episode returns; None of none."""
    normalised = [
        normalise(float(np.mean(values)), references[task])
        for task, values in returns.items()
        if task in references
    ]
    return aggregate(normalised) if normalised else None


def reported_aggregates(normalised: Any) -> dict[str, Any]:
    """Computes all aggregates `[...]` of a report from normalised scores `[tasks, ...]`, by name.

    An interquartile mean leaves out a quarter of the tasks at either end. An optimality gap is what
    scores lack to 100 in the mean.
    """
    usual, cut = aggregate(normalised), len(normalised) // 4
    middle = np.sort(np.asarray(normalised), axis=0)[cut : len(normalised) - cut].mean(axis=0)
    gap = 100 - usual.mean_capped
    return {**usual._asdict(), "interquartile_mean": middle, "optimality_gap": gap}


def interval_of_mean(returns: Scores) -> Interval | None:
    """Bootstraps the mean of a task's returns over its episodes; None of fewer than two."""
    if len(returns) < 2:
        return None
    low, high = _bootstrap([returns], lambda means: means)
    return float(low[0]), float(high[0])


def intervals_of_aggregates(
    returns: Mapping[str, Scores],
    references: Mapping[str, ReferenceScore],
    compute: Callable[[Any], Mapping[str, Any]] = lambda scored: aggregate(scored)._asdict(),
) -> dict[str, Interval] | None:
    """Bootstraps one agent's aggregate scores, by name and in percent, over its episodes.

    Only tasks with a reference score count; None of none, or if one has fewer than two episodes.
    """
    scored = [task for task in returns if task in references]
    if not scored or min(len(returns[task]) for task in scored) < 2:
        return None
    normalised = [normalise(np.asarray(returns[task]), references[task]) for task in scored]
    low, high = _bootstrap(normalised, lambda means: np.stack(list(compute(means).values())))
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(compute([0.0]))}


def score_style(unit: str, score: float, low: float = math.nan, high: float = math.nan) -> str:
    """Returns the style of a score's numbers: one decimal of percent, or three digits of returns.

    The digits of a return are those of its interval's width, or without one of the return itself.
    """
    if unit:
        return ".1f"
    size = high - low if high > low else abs(score)
    if not size > 0 or math.isinf(size):
        return ".0f"
    return f".{min(max(2 - math.floor(math.log10(size)), 0), 9)}f"


def write_interval(low: float, high: float, style: str) -> str:
    """Writes an interval by bootstrap, without the digits that depend on the resamples drawn.

    The style is one of numbers, such as `.1f` or `,.4g`, and has the most digits to be written.
    """
    if high > low:
        decimals = math.floor(-math.log10(_ERROR * (high - low)))
        if style.endswith("f"):
            decimals = min(decimals, int(style[-2]))
            style = f"{style[:-2]}{max(decimals, 0)}f"
        low, high = round(low, decimals), round(high, decimals)
    return f"[{low:{style}}, {high:{style}}]"


def students_t(means: Any, deviations: Any, counts: Any) -> tuple[Any, Any]:
    """Computes the ends of m ± t·s/√n, 95% intervals of means over runs; NaN of a single run.

    Deviations s have n - 1 in the denominator. A bootstrap of so few scores would be too narrow.
    The tasks of a run share weights and do not vary independently, so its aggregate is one score.
    With s·√2 the ends are of the mean of as many new runs.
    """
    widths = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, counts - 1) * deviations / np.sqrt(counts)
    return means - widths, means + widths


def difference_over_seeds(first: Scores, second: Scores) -> Difference:
    """Compares the scores of two agents' runs, two or more of each.

    The permutation test assigns the runs to the two agents in every possible way, or in 50,000
    random ones if there are more. Its p is twice the share of ways in which the means differ at
    least as far to the same side, at most 1. It takes both agents to have one distribution.
    """
    mean = float(np.mean(first) - np.mean(second))
    variances, counts = _variances(first, second), np.array([len(first), len(second)])
    width = _welchs_width(variances, counts)
    pooled = np.sqrt(variances @ (counts - 1) / (counts.sum() - 2))
    correction = 1 - 3 / (4 * counts.sum() - 9)  # Effects of small samples come out too large.
    effect = float(correction * mean / pooled) if pooled else np.nan
    # Differences by rounding would break ties, so the means' difference is a whole number of units.
    # The root keeps fractions of the range from lying in the middle between two of them.
    unit = _EQUAL * np.sqrt(2) * np.ptp([*first, *second]) or 1.0
    p = scipy.stats.permutation_test(
        (first, second),
        lambda ours, theirs, axis: np.round((ours.mean(axis) - theirs.mean(axis)) / unit),
        n_resamples=_MAX_ASSIGNMENTS,
        vectorized=True,
        rng=_SEED,
    ).pvalue
    return Difference(mean, mean - width, mean + width, effect, float(p))


def _variances(*samples: Scores) -> np.ndarray:
    """Computes the variance of each sample; scores that are all alike leave no rounding in it."""
    return np.array([np.var(runs, ddof=1) * (np.ptp(runs) > 0) for runs in samples])


def _welchs_width(variances: np.ndarray, counts: np.ndarray) -> float:
    """Computes half the 95% interval of a difference of two means; NaN if no score varies."""
    squares = variances / counts
    if not squares.any():
        return np.nan
    # Degrees of freedom by Welch and Satterthwaite.
    degrees = squares.sum() ** 2 / (squares**2 / (counts - 1)).sum()
    return float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, degrees) * np.sqrt(squares.sum()))


def probability_of_improvement(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Computes how often a run of one agent beats one of another, in percent, averaged over tasks.

    Scores are `[runs, tasks]`, of two or more runs each. A tie counts as half a win, as in the
    Mann-Whitney U statistic. Returns the value with its 95% interval, which is that of Brunner and
    Munzel (2000): Student's t of how often each run of an agent wins against the other's runs. The
    interval held the truth in 90 to 96% of simulations with five runs each. Its ends are NaN if all
    runs win alike.
    """
    wins = 50 + 50 * np.sign(first[:, None] - second[None]).mean(axis=-1)  # [runs, runs]
    variances = _variances(wins.mean(axis=1), wins.mean(axis=0))
    value, width = float(wins.mean()), _welchs_width(variances, np.array(wins.shape))
    low, high = np.clip([value - width, value + width], 0.0, 100.0).tolist()
    return value, low, high


def _bootstrap(
    samples: Sequence[Scores], of_means: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Computes percentile intervals of functions of samples' means: `[tasks, N]` to `[K, N]`."""
    random, largest = np.random.default_rng(_SEED), max(map(len, samples))
    count = int(np.clip(_MAX_SAMPLED / largest, _MIN_RESAMPLES, _MAX_RESAMPLES))
    means = np.empty((len(samples), count))
    for of_task, sample in zip(means, map(np.asarray, samples), strict=True):
        for batch in np.array_split(of_task, -(-count * len(sample) // _MAX_BATCH)):
            drawn = random.integers(len(sample), size=(len(batch), len(sample)))
            batch[:] = sample[drawn].mean(axis=1)
    low, high = np.quantile(of_means(means), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=-1)
    return low, high

"""How far scores may be trusted: 95% intervals over episodes, over seeds, and for other seeds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from scalable_agent_popart.scores import Aggregate, ReferenceScore, Scores, normalise

CONFIDENCE = 0.95
_RESAMPLES = 2000
# With very many episodes, whose intervals are narrow, fewer.
_MOST_DRAWS, _FEWEST_RESAMPLES = 1_000_000, 100
_SEED = 1
# Resamples drawn at once; 57 games of 10,000 episodes then take some 100 MB.
_BATCH = 20

Interval = tuple[float, float]


def of_mean(returns: Scores) -> Interval | None:
    """Interval of a task's mean return over its episodes; None if there are fewer than two."""
    if len(returns) < 2:
        return None
    low, high = _bootstrap([returns], lambda means: means)
    return float(low[0]), float(high[0])


def of_aggregates(
    returns: Mapping[str, Scores], references: Mapping[str, ReferenceScore]
) -> dict[str, Interval] | None:
    """Interval of each aggregate score of one agent, by name (`scores.Aggregate`), in percent.

    Each task's episodes are resampled by themselves. Tasks without a reference score are left
    out; None if there are no others, or any of them has fewer than two episodes.
    """
    scored = [task for task in returns if task in references]
    if not scored or min(len(returns[task]) for task in scored) < 2:
        return None
    normalised = [[normalise(score, references[t]) for score in returns[t]] for t in scored]
    low, high = _bootstrap(
        normalised,
        lambda means: np.stack(
            [
                np.mean(means, axis=0),
                np.median(means, axis=0),
                np.mean(np.minimum(means, 100.0), axis=0),
            ]
        ),
    )
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(Aggregate._fields)}


def over_seeds(scores: Scores) -> Interval | None:
    """Interval of the mean of a score over runs, by Student's t; None if there are fewer than two.

    A percentile bootstrap of so few scores would be too narrow: of five normal ones it holds the
    truth some 84 times in 100, and of three 75 times. Give a multi-task run's aggregate as one
    score: its tasks share their weights, and so do not vary independently.
    """
    if len(scores) < 2:
        return None
    low, high = students_t(np.mean(scores), np.std(scores, ddof=1), len(scores))
    return float(low), float(high)


def of_rerun(scores: Scores) -> Interval | None:
    """Interval for the mean score of as many new runs; None if there are fewer than two.

    Student's t, for scores of runs that are normally distributed: m ± t·s·√(2/n), where one 1/n is
    the spread of this mean about the truth and the other that of the new runs' mean. It is wider
    than `over_seeds`, which tells where the truth is, and so not where other runs' mean will be.
    """
    if len(scores) < 2:
        return None
    deviation = np.std(scores, ddof=1) * 2**0.5
    low, high = students_t(np.mean(scores), deviation, len(scores))
    return float(low), float(high)


def students_t(means: Any, deviations: Any, counts: Any) -> tuple[Any, Any]:
    """Intervals of means of normally distributed values, m ± t·s/√n; NaN of a single value.

    Args:
      means: numbers, arrays or columns of tables.
      deviations: standard deviations of the values, with n - 1 in the denominator.
      counts: how many values the means are of.

    Returns:
      The lower and the upper ends.
    """
    widths = stats.t.ppf((1 + CONFIDENCE) / 2, counts - 1) * deviations / np.sqrt(counts)
    return means - widths, means + widths


def _bootstrap(
    samples: Sequence[Scores], of_means: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile intervals of functions of the samples' means: `[tasks, ...]` to `[K, ...]`."""

    def statistic(*resampled: np.ndarray, axis: int) -> np.ndarray:
        return of_means(np.stack([sample.mean(axis=axis) for sample in resampled]))

    largest = max(len(sample) for sample in samples)
    interval = stats.bootstrap(
        samples,
        statistic,
        n_resamples=int(np.clip(_MOST_DRAWS / largest, _FEWEST_RESAMPLES, _RESAMPLES)),
        batch=_BATCH,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=_SEED,
    ).confidence_interval
    return interval.low, interval.high

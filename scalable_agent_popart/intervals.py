"""How far scores may be trusted: 95% intervals over episodes, over seeds, and for other seeds."""

from collections.abc import Callable, Mapping, Sequence

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
    """Interval of the mean of an aggregate score over runs; None if there are fewer than two.

    Runs are resampled whole: the tasks of one multi-task agent share its weights, so resampling
    each by itself, as is right for runs of single tasks, would make intervals that are too short.
    """
    if len(scores) < 2:
        return None
    low, high = _bootstrap([scores], lambda means: means)
    return float(low[0]), float(high[0])


def of_rerun(scores: Scores) -> Interval | None:
    """Interval for the mean score of as many new runs; None if there are fewer than two.

    Student's t, for scores of runs that are normally distributed: m ± t·s·√(2/n), where one 1/n is
    the spread of this mean about the truth and the other that of the new runs' mean. It is wider
    than `over_seeds`, which tells where the truth is, and so not where other runs' mean will be.
    """
    n = len(scores)
    if n < 2:
        return None
    mean, deviation = float(np.mean(scores)), float(np.std(scores, ddof=1))
    width = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation * (2 / n) ** 0.5
    return mean - width, mean + width


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

"""Human-normalised scores and their aggregates.

A task's normalised score is 100 (score - random) / (human - random). Atari-57 is reported as
the median over games, DmLab-30 as the mean over levels with each level capped at 100.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

Score = TypeVar("Score", float, np.ndarray)
Scores = Sequence[float] | np.ndarray


class ReferenceScore(NamedTuple):
    """Raw scores that define 0% and 100% of a task's normalised score."""

    random: float
    human: float


class Aggregate(NamedTuple):
    """Scores over tasks, in percent."""

    mean: float
    median: float
    mean_capped: float


def normalise(score: Score, reference: ReferenceScore) -> Score:
    """A raw score, or an array of them, in percent of the way from random to human."""
    return 100.0 * (score - reference.random) / (reference.human - reference.random)


def aggregate(normalised: Scores) -> Aggregate:
    """Mean, median and mean capped at 100 of normalised scores.

    Raises:
      ValueError: if there are none.
    """
    if not len(normalised):
        raise ValueError("no scores to aggregate")
    scores = np.asarray(normalised, np.float64)
    return Aggregate(
        mean=float(np.mean(scores)),
        median=float(np.median(scores)),
        mean_capped=float(np.mean(np.minimum(scores, 100.0))),
    )


def aggregate_returns(
    returns: Mapping[str, Scores], references: Mapping[str, ReferenceScore]
) -> Aggregate | None:
    """Aggregate over the tasks of `returns`, each by its mean raw episode return.

    Tasks without a reference score are left out; None if there is no other.
    """
    normalised = [
        normalise(float(np.mean(values)), references[task])
        for task, values in returns.items()
        if task in references
    ]
    return aggregate(normalised) if normalised else None

"""Population-based training (Jaderberg et al., 2017) as in IMPALA's appendix F.

Members of a population learn side by side. One that has finished enough episodes is compared with
another one, drawn at random. If that one is more than five points fitter, the member goes on with
its weights and hyperparameters (exploit). Whether it does or not, its hyperparameters then change
a little (explore).

Pure functions, of a generator where there is chance. Who knows whose fitness, and when, is
`member`'s business.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from scalable_agent_popart import scores
from scalable_agent_popart.suites.search_space import Distribution, LogUniform, OneOf

# Points of mean capped human-normalised score, in percent.
EXPLOIT_THRESHOLD = 5.0
EXPLORE_PROBABILITY = 0.33
EXPLORE_FACTOR = 1.2


def draw(search_space: Mapping[str, Distribution], seed: Sequence[int]) -> dict[str, float]:
    """Hyperparameters to start with.

    Args:
      search_space: flag to the distribution of its value.
      seed: the same numbers draw the same values.
    """
    seeds = np.random.SeedSequence(list(seed)).generate_state(2 * len(search_space)) >> 1
    return {
        name: float(_distribution(described).sample(seed=pair.astype(np.int32)))
        for (name, described), pair in zip(
            search_space.items(), seeds.reshape(-1, 2), strict=True
        )
    }  # fmt: skip


def _distribution(described: Distribution) -> tfp.distributions.Distribution:
    # In float64, so that no value leaves its range by rounding.
    if isinstance(described, OneOf):
        values = tf.constant(described.values, tf.float64)
        return tfp.distributions.FiniteDiscrete(values, probs=tf.ones_like(values) / len(values))
    if isinstance(described, LogUniform):
        low, high = np.log(described)
        return tfp.bijectors.Exp()(tfp.distributions.Uniform(low, high))
    return tfp.distributions.Uniform(np.float64(described.low), np.float64(described.high))


def fitness(
    returns: Mapping[str, scores.Scores], references: Mapping[str, scores.ReferenceScore]
) -> float | None:
    """Mean capped human-normalised score, in percent.

    Args:
      returns: raw, of each task's episodes.
      references: random and human scores; tasks that have none do not count.

    Returns:
      None while a task that counts has no episode.
    """
    counted = {task: own for task, own in returns.items() if task in references}
    if not all(map(len, counted.values())):
        return None
    aggregate = scores.aggregate_returns(counted, references)
    return aggregate.mean_capped if aggregate else None


def choose_partner(others: Sequence[int], generator: np.random.Generator) -> int | None:
    """One of the others, each as likely as any; None if there is none."""
    return int(generator.choice(others)) if others else None


def exploits(own: float, others: float) -> bool:
    """Whether a member of fitness `own` goes on from the other one's checkpoint."""
    return others - own > EXPLOIT_THRESHOLD


def explore(
    hyperparameters: Mapping[str, float], generator: np.random.Generator
) -> dict[str, float]:
    """Hyperparameters, each of them changed or not, independently of the others."""
    changed = {}
    for name, value in hyperparameters.items():
        changes, grows = generator.random(2) < (EXPLORE_PROBABILITY, 0.5)
        factor = EXPLORE_FACTOR if grows else 1 / EXPLORE_FACTOR
        changed[name] = value * factor if changes else value
    return changed

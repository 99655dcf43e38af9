"""The rules of population-based training (Jaderberg et al., 2017) as in IMPALA's appendix F.

A member that has finished enough episodes is compared with another one, chosen at random among
those that have. If the other is more than five points fitter, the member copies its weights and
hyperparameters (exploit). In either case it then changes its hyperparameters a little (explore).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from scalable_agent_popart import scores
from scalable_agent_popart.suites.search_space import Distribution, LogUniform, OneOf

EXPLOIT_THRESHOLD = 5.0  # Points of mean capped human-normalised score, in percent.
EXPLORE_PROBABILITY = 0.33
EXPLORE_FACTOR = 1.2


def sample(search_space: Mapping[str, Distribution], seed: Sequence[int]) -> dict[str, float]:
    """Samples a value for each flag of a search space; the same seed gives the same values."""
    pairs = np.random.SeedSequence(list(seed)).generate_state(2 * len(search_space)) >> 1
    seeds = pairs.reshape(-1, 2).astype(np.int32)
    return {
        flag: float(_distribution(described).sample(seed=flag_seed))
        for (flag, described), flag_seed in zip(search_space.items(), seeds, strict=True)
    }


def _distribution(described: Distribution) -> tfp.distributions.Distribution:
    """Makes the distribution in float64, so that rounding takes no value out of its range."""
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
    """Computes the mean capped human-normalised score, in percent, of raw episode returns by task.

    It is None if no task has a reference score, or if one of those that have has no episode yet.
    """
    counted = {task: r for task, r in returns.items() if task in references}
    if not all(map(len, counted.values())):
        return None
    aggregate = scores.aggregate_returns(counted, references)
    return aggregate.mean_capped if aggregate else None


def exploits(fitness: float, partner_fitness: float) -> bool:
    return partner_fitness - fitness > EXPLOIT_THRESHOLD


def explore(
    hyperparameters: Mapping[str, float], generator: np.random.Generator
) -> dict[str, float]:
    """Returns the hyperparameters, each perturbed or not, independently of the others."""
    changed = {}
    for name, value in hyperparameters.items():
        changes, grows = generator.random(2) < (EXPLORE_PROBABILITY, 0.5)
        factor = EXPLORE_FACTOR if grows else 1 / EXPLORE_FACTOR
        changed[name] = value * factor if changes else value
    return changed

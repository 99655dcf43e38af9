"""The chance and the rules of population-based training, against the paper's words.

Seeds are fixed, so a test that passes goes on passing; a p-value below `_SIGNIFICANCE` means that
the distribution is another one.
"""

import itertools
import json
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from scalable_agent_popart.population import rules
from scalable_agent_popart.scores import ReferenceScore, Scores
from scalable_agent_popart.suites.search_space import PAPER_ATARI

_SIGNIFICANCE = 1e-5

# Population seeds and members that are sampled.
_POPULATIONS, _MEMBERS = 16, 12
_NAMES = ("entropy_cost", "learning_rate", "epsilon", "max_grad_norm")
_EPSILONS = (1e-1, 1e-3, 1e-5, 1e-7)
_CONTINUOUS = {
    "entropy_cost": stats.loguniform(5e-5, 1e-2),
    "learning_rate": stats.loguniform(5e-6, 5e-3),
    "max_grad_norm": stats.uniform(loc=10, scale=90),
}


# Hyperparameters to start with.


@pytest.fixture(scope="module")
def samples() -> dict[str, np.ndarray]:
    """Samples of the members (columns) of the populations (rows), by name."""
    sampled = [
        [rules.sample(PAPER_ATARI, [seed, member]) for member in range(_MEMBERS)]
        for seed in range(_POPULATIONS)
    ]
    return {name: np.array([[one[name] for one in row] for row in sampled]) for name in _NAMES}


@pytest.mark.parametrize("name", _CONTINUOUS)
def test_samples_have_the_papers_distribution(samples: dict[str, np.ndarray], name: str) -> None:
    values, expected = samples[name].ravel(), _CONTINUOUS[name]
    low, high = expected.support()
    assert np.all((low <= values) & (values <= high))
    assert stats.kstest(values, expected.cdf).pvalue > _SIGNIFICANCE


def test_each_epsilon_is_as_likely_as_any(samples: dict[str, np.ndarray]) -> None:
    values, counts = np.unique(samples["epsilon"], return_counts=True)
    assert tuple(values) == _EPSILONS[::-1]
    assert stats.chisquare(counts).pvalue > _SIGNIFICANCE


def test_hyperparameters_members_and_populations_are_sampled_independently(
    samples: dict[str, np.ndarray],
) -> None:
    pairs = [(samples[one], samples[other]) for one, other in itertools.combinations(_NAMES, 2)]
    pairs += [(values[:, 1:], values[:, :-1]) for values in samples.values()]
    pairs += [(values[1:], values[:-1]) for values in samples.values()]
    for first, second in pairs:
        assert stats.spearmanr(first.ravel(), second.ravel()).pvalue > _SIGNIFICANCE


def test_the_same_seed_samples_the_same_plain_numbers(samples: dict[str, np.ndarray]) -> None:
    sampled = rules.sample(PAPER_ATARI, [3, 5])
    assert sampled == {name: samples[name][3, 5] for name in _NAMES}
    assert json.loads(json.dumps(sampled)) == sampled
    assert rules.sample(PAPER_ATARI, [2**63, 5]) != sampled


# Fitness.

_REFERENCES = {"easy": ReferenceScore(0.0, 10.0), "hard": ReferenceScore(-20.0, 200.0)}


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ({"easy": [0.0], "hard": [-20.0]}, 0.0),  # Random play scores so.
        ({"easy": [10.0], "hard": [200.0]}, 100.0),  # People score so.
        ({"easy": [0.0, 40.0], "hard": [-20.0]}, 50.0),  # Capped after the mean over episodes,
        ({"easy": [-30.0], "hard": [200.0]}, -100.0),  # and from above only.
        ({"easy": [10.0] * 99, "hard": [-20.0]}, 50.0),  # A task counts once.
        ({"easy": [5.0], "unknown": [1e9]}, 50.0),  # Tasks without reference scores do not count,
        ({"easy": [10.0], "unknown": []}, 100.0),  # but all others must have an episode.
        ({"easy": [10.0], "hard": np.array([])}, None),
        ({"unknown": [1e9]}, None),
    ],
)
def test_fitness_is_the_mean_capped_score(
    returns: dict[str, Scores], expected: float | None
) -> None:
    fitness = rules.fitness(returns, _REFERENCES)
    assert fitness is None if expected is None else fitness == pytest.approx(expected)


# Exploit.


def test_a_member_copies_one_that_is_more_than_five_points_fitter() -> None:
    quarters = range(-80, 401, 7)  # The unit is a quarter of a point.
    for fitness, partner in itertools.product(quarters, repeat=2):
        assert rules.exploits(fitness / 4, partner / 4) == (partner - fitness > 20)
    little = 2.0**-40  # All sums and differences with it are exact.
    for value in (0.0, 64.0, -2.5):
        assert not rules.exploits(value, value + 5.0)
        assert rules.exploits(value, value + 5.0 + little)


# Explore.


def _directions(before: Mapping[str, float], after: Mapping[str, float]) -> list[int]:
    """Returns which way values went: 0, or 1 or -1 by no other factor than the paper's."""
    went = [round(np.log(after[name] / before[name]) / np.log(1.2)) for name in before]
    for name, direction in zip(before, went, strict=True):
        assert after[name] / before[name] == pytest.approx(1.2**direction, rel=1e-12)
    assert list(after) == list(before)
    assert {-1, 0, 1}.issuperset(went)
    return went


def test_each_value_changes_one_time_in_three_up_as_often_as_down_and_independently() -> None:
    start = {"entropy_cost": 1e-3, "learning_rate": 6e-4, "epsilon": 1e-7, "max_grad_norm": 40.0}
    generator = np.random.default_rng(4)
    explored = np.array([_directions(start, rules.explore(start, generator)) for _ in range(8_000)])
    pairs = list(itertools.combinations(explored.T, 2))
    for series in (*explored.T, explored.ravel()):
        changed, up = int(np.sum(series != 0)), int(np.sum(series == 1))
        assert stats.binomtest(changed, len(series), 0.33).pvalue > _SIGNIFICANCE
        assert stats.binomtest(up, changed, 0.5).pvalue > _SIGNIFICANCE
        pairs.append((series[1:], series[:-1]))
    for first, second in pairs:
        table = stats.contingency.crosstab(first, second).count
        assert stats.chi2_contingency(table).pvalue > _SIGNIFICANCE
    assert rules.explore({"max_grad_norm": 0.0}, generator) == {"max_grad_norm": 0.0}

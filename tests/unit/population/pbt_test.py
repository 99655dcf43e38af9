"""Population-based training's chance and its rules, against what the paper says of them.

Seeds are fixed, so a test that passes goes on passing; a p-value below `_SIGNIFICANCE` means that
the distribution is another one.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from scalable_agent_popart import suites
from scalable_agent_popart.population import pbt
from scalable_agent_popart.scores import ReferenceScore, Scores
from scalable_agent_popart.suites import search_space
from scalable_agent_popart.suites.search_space import PAPER_ATARI

_SIGNIFICANCE = 1e-5

# Of the draws below; population seeds and members.
_POPULATIONS, _MEMBERS = 16, 12
_NAMES = ("entropy_cost", "learning_rate", "epsilon", "max_grad_norm")
_EPSILONS = (1e-1, 1e-3, 1e-5, 1e-7)
_LOG_RANGES = {"entropy_cost": (5e-5, 1e-2), "learning_rate": (5e-6, 5e-3)}
_RANGES = {**_LOG_RANGES, "max_grad_norm": (10.0, 100.0)}

_EXPLORED = 20_000
_DOWN, _SAME, _UP = -1, 0, 1


def _is_independent(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two series of draws could well be independent, going by their order."""
    return stats.spearmanr(first.ravel(), second.ravel()).pvalue > _SIGNIFICANCE


def _are_unrelated(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two series of a few values could well be independent."""
    _, rows = np.unique(first.ravel(), return_inverse=True)
    _, columns = np.unique(second.ravel(), return_inverse=True)
    counts = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(counts, (rows, columns), 1)
    return stats.chi2_contingency(counts).pvalue > _SIGNIFICANCE


# Hyperparameters to start with.


@pytest.fixture(scope="module")
def draws() -> dict[str, np.ndarray]:
    """By name: what the members (columns) of the populations (rows) draw, as they do."""
    drawn = [
        [pbt.draw(PAPER_ATARI, [seed, member]) for member in range(_MEMBERS)]
        for seed in range(_POPULATIONS)
    ]
    return {name: np.array([[one[name] for one in row] for row in drawn]) for name in _NAMES}


def test_search_space_is_the_papers_and_the_norm_of_gradients_is_tuned_on_atari_only() -> None:
    for suite in suites.ALL:
        expected = _NAMES if suite.name == "atari57" else _NAMES[:3]
        assert tuple(suite.search_space) == expected
        assert suites.resolve(suite.tasks[0]).search_space == suite.search_space
        assert suite.search_space["entropy_cost"] == search_space.LogUniform(5e-5, 1e-2)
        assert suite.search_space["learning_rate"] == search_space.LogUniform(5e-6, 5e-3)
        assert suite.search_space["epsilon"] == search_space.OneOf(_EPSILONS)
    assert PAPER_ATARI["max_grad_norm"] == search_space.Uniform(10.0, 100.0)
    assert suites.resolve("atari57").search_space is PAPER_ATARI


@pytest.mark.parametrize(("name", "limits"), _RANGES.items())
def test_draws_lie_in_their_range_and_fill_it(
    draws: dict[str, np.ndarray], name: str, limits: tuple[float, float]
) -> None:
    low, high = limits
    values = draws[name]
    assert np.all((low <= values) & (values <= high))
    scale = np.log if name in _LOG_RANGES else np.asarray
    places = (scale(values) - scale(low)) / (scale(high) - scale(low))
    # That one of ten equal parts stays empty has a probability of 1.6e-8.
    assert np.histogram(places, bins=10, range=(0, 1))[0].min() > 0


@pytest.mark.parametrize(("name", "limits"), _RANGES.items())
def test_draws_are_uniform_in_their_logarithm_or_else_in_themselves(
    draws: dict[str, np.ndarray], name: str, limits: tuple[float, float]
) -> None:
    low, high = limits
    expected, other = stats.uniform(low, high - low), stats.loguniform(low, high)
    if name in _LOG_RANGES:
        expected, other = other, expected
    values = draws[name].ravel()
    assert stats.kstest(values, expected.cdf).pvalue > _SIGNIFICANCE
    assert stats.kstest(values, other.cdf).pvalue < _SIGNIFICANCE


def test_each_epsilon_is_as_likely_as_any(draws: dict[str, np.ndarray]) -> None:
    values, counts = np.unique(draws["epsilon"], return_counts=True)
    assert tuple(values) == _EPSILONS[::-1]
    assert stats.chisquare(counts).pvalue > _SIGNIFICANCE


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(_NAMES, 2)])
def test_hyperparameters_are_drawn_independently(
    draws: dict[str, np.ndarray], first: str, second: str
) -> None:
    assert _is_independent(draws[first], draws[second])


@pytest.mark.parametrize("name", _NAMES)
def test_members_draw_independently_of_each_other_and_of_other_populations(
    draws: dict[str, np.ndarray], name: str
) -> None:
    values = draws[name]
    assert _is_independent(values[:, 1:], values[:, :-1])
    assert _is_independent(values[1:], values[:-1])
    assert _is_independent(values[1:, 1:], values[:-1, :-1])
    if name != "epsilon":
        assert len(np.unique(values)) == values.size


def test_same_seed_draws_the_same_plain_numbers(draws: dict[str, np.ndarray]) -> None:
    drawn = pbt.draw(PAPER_ATARI, [3, 5])
    assert drawn == {name: draws[name][3, 5] for name in _NAMES}
    assert json.loads(json.dumps(drawn)) == drawn
    assert pbt.draw(PAPER_ATARI, [2**63, 5]) != drawn


# Fitness.

_REFERENCES = {
    "easy": ReferenceScore(0.0, 10.0),
    "hard": ReferenceScore(-20.0, 200.0),
    "huge": ReferenceScore(1e4, 1e7),
}


def _slow_fitness(
    returns: Mapping[str, Scores], references: Mapping[str, ReferenceScore]
) -> float | None:
    """Mean capped human-normalised score in percent, one episode after the other."""
    total, num_tasks = Fraction(0), 0
    for task, episodes in returns.items():
        if task not in references:
            continue
        if len(episodes) == 0:
            return None
        mean = Fraction(0)
        for one in episodes:
            mean += Fraction(float(one)) / len(episodes)
        random, human = map(Fraction, references[task])
        total += min(100 * (mean - random) / (human - random), Fraction(100))
        num_tasks += 1
    return float(total / num_tasks) if num_tasks else None


def test_fitness_is_the_mean_capped_score() -> None:
    generator = np.random.default_rng(1)
    for _ in range(300):
        returns = {
            task: generator.normal(human / 2, human, generator.integers(1, 6))
            for task, (_, human) in _REFERENCES.items()
        }
        returns["unknown"] = generator.normal(size=generator.integers(3))
        chosen = {task: own for task, own in returns.items() if generator.random() < 0.7}
        fitness, expected = pbt.fitness(chosen, _REFERENCES), _slow_fitness(chosen, _REFERENCES)
        assert (fitness is None) == (expected is None)
        assert expected is None or fitness == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("easy", "hard", "expected"),
    [
        ([0.0], [-20.0], 0.0),  # As random play does.
        ([10.0], [200.0], 100.0),  # As people do.
        ([10.0, 0.0], [90.0], 50.0),
        ([1e6], [-20.0], 50.0),  # A task's part is capped at 100,
        ([0.0, 40.0], [-20.0], 50.0),  # after the mean over its episodes,
        ([-30.0], [200.0], -100.0),  # and from above only.
        ([10.0] * 99, [-20.0], 50.0),  # A task counts once, however many its episodes.
    ],
)
def test_fitness_of_single_cases(easy: list[float], hard: list[float], expected: float) -> None:
    assert pbt.fitness({"easy": easy, "hard": hard}, _REFERENCES) == pytest.approx(expected)


def test_fitness_is_not_known_before_every_task_that_counts_has_an_episode() -> None:
    assert pbt.fitness({"easy": [10.0], "hard": []}, _REFERENCES) is None
    assert pbt.fitness({"easy": [], "hard": []}, _REFERENCES) is None
    assert pbt.fitness({"easy": [10.0], "hard": np.array([])}, _REFERENCES) is None
    assert pbt.fitness({"easy": [10.0], "unknown": []}, _REFERENCES) == 100.0


def test_tasks_without_reference_scores_do_not_count() -> None:
    assert pbt.fitness({"easy": [5.0], "unknown": [1e9]}, _REFERENCES) == 50.0
    assert pbt.fitness({"unknown": [1e9]}, _REFERENCES) is None
    assert pbt.fitness({}, _REFERENCES) is None


# Partners.


@pytest.mark.parametrize("others", [(0, 1), (0, 1, 3, 7), tuple(sorted({*range(24)} - {11}))])
def test_each_other_member_is_as_likely_a_partner_as_any(others: Sequence[int]) -> None:
    generator = np.random.default_rng(2)
    chosen = np.array([pbt.choose_partner(others, generator) for _ in range(5000)])
    values, counts = np.unique(chosen, return_counts=True)
    assert tuple(values) == tuple(others)
    assert stats.chisquare(counts).pvalue > _SIGNIFICANCE
    assert _are_unrelated(chosen[1:], chosen[:-1])


def test_partner_is_a_plain_number_and_none_if_nobody_is_there() -> None:
    generator = np.random.default_rng(3)
    assert {pbt.choose_partner([5], generator) for _ in range(20)} == {5}
    assert type(pbt.choose_partner([5, 6], generator)) is int
    assert pbt.choose_partner([], generator) is None


# Exploit.


@pytest.mark.parametrize("own", [0.0, 10.0, 64.0, -5.0, -2.5, -40.0])
def test_exploits_at_more_than_five_points(own: float) -> None:
    other, little = own + 5.0, 2.0**-40  # All sums and differences of them are exact.
    assert not pbt.exploits(own, other)
    assert not pbt.exploits(own, other - little)
    assert pbt.exploits(own, other + little)
    assert not pbt.exploits(own, own)
    assert not pbt.exploits(other + 50.0, own)
    assert pbt.exploits(own, own + 50.0)


def test_exploits_by_the_difference_alone() -> None:
    for own, other in itertools.product(range(-80, 401, 7), repeat=2):  # In quarters of a point.
        assert pbt.exploits(own / 4, other / 4) == (other - own > 20)


# Explore.


def _direction(before: float, after: float) -> int:
    """Which way a value went; by no other factor than the paper's."""
    if after == before:
        return _SAME
    went = _UP if after > before else _DOWN
    assert after / before == pytest.approx(1.2**went, rel=1e-12)
    return went


@pytest.fixture(scope="module")
def explored() -> np.ndarray:
    """Directions, `[_EXPLORED, hyperparameters]`, of one generator after the other."""
    start = {"entropy_cost": 1e-3, "learning_rate": 6e-4, "epsilon": 1e-7, "max_grad_norm": 40.0}
    generator = np.random.default_rng(4)
    changed = [pbt.explore(start, generator) for _ in range(_EXPLORED)]
    return np.array([[_direction(start[name], one[name]) for name in _NAMES] for one in changed])


@pytest.mark.parametrize("place", range(len(_NAMES)), ids=_NAMES)
def test_one_in_three_is_changed_up_as_often_as_down(explored: np.ndarray, place: int) -> None:
    own = explored[:, place]
    changed, up = int(np.sum(own != _SAME)), int(np.sum(own == _UP))
    assert stats.binomtest(changed, len(own), 0.33).pvalue > _SIGNIFICANCE
    assert stats.binomtest(up, changed, 0.5).pvalue > _SIGNIFICANCE


def test_all_changes_together_are_a_third_up_as_often_as_down(explored: np.ndarray) -> None:
    changed, up = int(np.sum(explored != _SAME)), int(np.sum(explored == _UP))
    assert stats.binomtest(changed, explored.size, 0.33).pvalue > _SIGNIFICANCE
    assert stats.binomtest(up, changed, 0.5).pvalue > _SIGNIFICANCE


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(range(4), 2)])
def test_hyperparameters_change_independently(
    explored: np.ndarray, first: int, second: int
) -> None:
    assert _are_unrelated(explored[:, first], explored[:, second])


def test_changes_are_independent_of_those_before(explored: np.ndarray) -> None:
    for own in explored.T:
        assert _are_unrelated(own[1:], own[:-1])


def test_members_change_independently_of_each_other_and_of_their_partners_number() -> None:
    start, others = {"entropy_cost": 1e-3, "epsilon": 1e-7}, range(3)
    partners, directions = np.zeros((60, 60), int), np.zeros((60, 60), int)
    for member, comparison in np.ndindex(60, 60):
        generator = np.random.default_rng([member, comparison])
        partners[member, comparison] = pbt.choose_partner(others, generator)
        changed = pbt.explore(start, generator)
        directions[member, comparison] = _direction(1e-3, changed["entropy_cost"])
    assert _are_unrelated(partners, directions)
    for own in (partners, directions):
        assert _are_unrelated(own[1:], own[:-1])
        assert _are_unrelated(own[:, 1:], own[:, :-1])
        assert _are_unrelated(own, own.T)
    num_changed = int(np.sum(directions != _SAME))
    assert stats.binomtest(num_changed, directions.size, 0.33).pvalue > _SIGNIFICANCE


def test_steps_compose_so_that_as_many_up_as_down_return() -> None:
    start = {"entropy_cost": 1e-2, "max_grad_norm": 99.0}
    values: dict[str, float] = start
    steps = dict.fromkeys(start, 0)
    generator = np.random.default_rng(5)
    returned = 0
    for _ in range(500):
        before, values = values, pbt.explore(values, generator)
        for name in start:
            steps[name] += _direction(before[name], values[name])
            # Beyond the range of the first draw as well.
            assert values[name] == pytest.approx(start[name] * 1.2 ** steps[name], rel=1e-10)
            returned += steps[name] == 0 and before[name] != values[name]
    assert returned > 0


def test_explore_leaves_what_it_is_given_and_keeps_the_names() -> None:
    start = {"epsilon": 1e-7, "a": 2.0, "entropy_cost": 1e-3}
    before = dict(start)
    changed = pbt.explore(start, np.random.default_rng(6))
    assert start == before
    assert list(changed) == list(start)
    assert json.loads(json.dumps(changed)) == changed
    assert pbt.explore(start, np.random.default_rng(6)) == changed
    assert pbt.explore({}, np.random.default_rng(6)) == {}
    assert pbt.explore({"max_grad_norm": 0.0}, np.random.default_rng(6)) == {"max_grad_norm": 0.0}

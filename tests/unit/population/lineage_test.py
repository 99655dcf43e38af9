"""Ancestries by hand, also of members whose source has no lineage."""

from typing import Any

import pytest

from scalable_agent_popart.population.lineage import trace
from tests.fakes.synthetic_runs import LINEAGES, START, make_event

_ANEW = make_event(2, 300, fitness=None, started_over=True)


def test_ancestry_of_several_copies_from_ahead_and_behind() -> None:
    segments, unknown = trace(LINEAGES, 3)
    assert unknown is None
    first, second = (0, 0, 200, 0), (1, 300, 650, -100)  # Member, first, last and offset.
    assert segments == (first, second, (2, 400, 700, 150), (3, 900, None, -50))


@pytest.mark.parametrize(
    ("changed", "member", "expected"),
    [
        # What the source did at the frames of its checkpoint is not inherited, what before is.
        ({0: [START, make_event(1, 600, (3, 500))]}, 2, [(0, 0, 600, 0), (2, 700, None, -100)]),
        ({0: [START, make_event(1, 599, (3, 500))]}, 2,
         [(3, 0, 500, 0), (0, 599, 600, -99), (2, 700, None, -199)]),
        # Two copies at the same frames leave the later one.
        ({1: [START], 2: [START, make_event(1, 100, (0, 40)), make_event(2, 100, (1, 60))]}, 2,
         [(1, 0, 60, 0), (2, 100, None, -40)]),
        # Weights that were sampled anew have learned from nothing before.
        ({0: [START, make_event(1, 100, (1, 50)), _ANEW]}, 0, [(0, 300, None, -300)]),
    ],
)  # fmt: skip
def test_an_ancestry_begins_where_weights_last_became_others(
    changed: dict[int, Any], member: int, expected: list[tuple]
) -> None:
    assert trace({**LINEAGES, **changed}, member) == (tuple(expected), None)


def test_of_a_member_without_a_lineage_nothing_is_counted() -> None:
    lineages = {number: events for number, events in LINEAGES.items() if number != 2}
    segments, unknown = trace(lineages, 3)
    assert segments == ((3, 900, None, 0),)
    assert "member 2" in (unknown or "")
    assert trace({}, 3)[0] == ((3, 0, None, 0),)


def test_an_ancestry_ends_where_a_member_that_began_again_is_its_own_ancestor() -> None:
    lineages = {0: [START, make_event(1, 50, (1, 90))], 1: [START, make_event(1, 60, (0, 80))]}
    segments, unknown = trace(lineages, 0)
    assert "member 0" in (unknown or "")
    assert [segment.member for segment in segments] == [0, 1, 0]

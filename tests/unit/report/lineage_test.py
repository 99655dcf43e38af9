"""Ancestries by hand, and what is left out where lineages lack lines or contradict each other."""

import itertools
from typing import Any

import numpy as np
import pytest

from scalable_agent_popart.report.lineage import Segment, in_effect, trace
from tests.fakes.synthetic_runs import LINEAGES, make_event

_START = make_event(0, 0)


def test_ancestry_of_several_copies_from_ahead_and_behind() -> None:
    segments, unknown = trace(LINEAGES, 3)
    assert unknown is None
    # 200 frames in 0; 350 in 1, from 300 to 650; 300 in 2, from 400 to 700; then in 3 from 900 on.
    assert segments == (
        Segment(0, 0, 200, 0),
        Segment(1, 300, 650, -100),
        Segment(2, 400, 700, 150),
        Segment(3, 900, None, -50),
    )
    for before, after in itertools.pairwise(segments):
        assert before.last is not None
        assert before.last + before.offset == after.first + after.offset


def test_what_the_source_did_at_the_frames_of_its_checkpoint_is_not_inherited() -> None:
    at_once = {**LINEAGES, 0: [_START, make_event(1, 600, (3, 500))]}
    assert trace(at_once, 2).segments == (Segment(0, 0, 600, 0), Segment(2, 700, None, -100))
    earlier = {**LINEAGES, 0: [_START, make_event(1, 599, (3, 500))]}
    assert trace(earlier, 2).segments == (
        Segment(3, 0, 500, 0),
        Segment(0, 599, 600, -99),
        Segment(2, 700, None, -199),
    )


def test_two_copies_at_the_same_frames_leave_the_later_one() -> None:
    twice = [_START, make_event(1, 100, (0, 40)), make_event(2, 100, (1, 60), fitness=None)]
    segments = trace({0: [_START], 1: [_START], 2: twice}, 2).segments
    assert segments == (Segment(1, 0, 60, 0), Segment(2, 100, None, -40))


def test_weights_that_were_sampled_anew_have_learned_from_nothing_before() -> None:
    anew = make_event(2, 300, fitness=None, started_over=True)
    lineages = {
        0: [_START, make_event(1, 100, (1, 50)), anew],
        1: [_START, make_event(1, 400, (0, 350))],
    }
    assert trace(lineages, 0) == ((Segment(0, 300, None, -300),), None)
    assert trace(lineages, 1) == ((Segment(0, 300, 350, -300), Segment(1, 400, None, -350)), None)


def test_frames_belong_to_a_segment_up_to_its_end_and_not_from_its_beginning() -> None:
    frames = np.array([0, 299, 300, 301, 650, 651])
    assert Segment(1, 300, 650, 0).holds(frames).tolist() == [False] * 3 + [True] * 2 + [False]
    assert Segment(1, 0, 300, 0).holds(frames).tolist() == [True] * 3 + [False] * 3
    assert Segment(1, 650, None, 0).holds(frames).tolist() == [False] * 5 + [True]


def test_a_comparison_that_was_made_again_counts_as_it_was_last() -> None:
    again = [*LINEAGES[1][:2], make_event(1, 320), make_event(2, 500)]
    assert [event.frames for event in in_effect(again)] == [0, 320, 500]
    assert trace({1: again}, 1) == ((Segment(1, 0, None, 0),), None)


@pytest.mark.parametrize(
    ("changed", "expected", "says"),
    [
        ({2: None}, [(3, 900, 0)], "member 2, of which nothing can be read"),
        ({1: []}, [(2, 400, 0), (3, 900, -200)], "member 1: nothing can be read"),
        ({3: []}, [(3, 0, 0)], "member 3: nothing can be read"),
        # The start is no copy, and needs no line.
        (
            {1: [make_event(1, 300), make_event(2, 500)]},
            [(1, 0, 0), (2, 400, 250), (3, 900, 50)],
            None,
        ),
        # A line is missing before, within and after what was inherited of a member.
        ({2: [_START, make_event(2, 550)]}, [(2, 550, 0), (3, 900, -200)], "member 2: between"),
        (
            {1: [make_event(2, 500), make_event(3, 650)]},
            [(1, 500, 0), (2, 400, 250), (3, 900, 50)],
            "1",
        ),
        ({2: [*LINEAGES[2][:2], make_event(3, 800)]}, [(3, 900, 0)], "comparisons 1 and 3"),
        # Frames that go back; sources that cannot be.
        ({3: [_START, make_event(1, 500), make_event(2, 400)]}, [(3, 400, 0)], "contradicts"),
        ({2: [make_event(0, 950), make_event(1, 980)]}, [(3, 900, 0)], "begins too late"),
        ({3: [_START, make_event(1, 500, (3, 400))]}, [(3, 500, 0)], "is not told"),
        ({3: [_START, make_event(1, 500, (2, 0))]}, [(3, 500, 0)], "is not told"),
        ({3: [_START, make_event(1, 500, (7, 400))]}, [(3, 500, 0)], "of member 7"),
        ({3: [_START, make_event(1, 500, copied=True)]}, [(3, 500, 0)], "is not told"),
    ],
)
def test_what_is_not_known_of_an_ancestry_is_left_out(
    changed: dict[int, Any], expected: list[tuple[int, int, int]], says: str | None
) -> None:
    lineages = {n: own for n, own in {**LINEAGES, **changed}.items() if own is not None}
    segments, unknown = trace(lineages, 3)
    assert [(s.member, s.first, s.offset) for s in segments] == expected
    assert unknown is None if says is None else says in (unknown or "")


def test_lineages_that_go_round_in_a_circle_come_to_an_end() -> None:
    circle = {i: [_START, make_event(1, 100, (1 - i, 1000))] for i in (0, 1)}
    segments, unknown = trace(circle, 0)
    assert [segment.member for segment in segments] == [0, 1, 0][-len(segments) :]
    assert "its own ancestor" in (unknown or "")

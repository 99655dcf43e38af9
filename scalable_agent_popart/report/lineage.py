"""Follows the weights of a population's member back through every copy to where they started.

A member's own count of frames goes on whatever it copies. Weights have learned from the frames of
one member after another, and the paper's curves are functions of the sum of these.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalable_agent_popart.population.directory import Event


class Segment(NamedTuple):
    """Frames of one member that an ancestry passes through."""

    member: int
    first: int  # The last of the member's frames before it, or 0 if it begins with the run.
    last: int | None  # The last in it; None if it goes on to the present.
    offset: int  # With the member's frames, the frames that the weights have learned from.

    def holds(self, frames: np.ndarray) -> np.ndarray:
        """Tells which of a member's frames lie in the segment."""
        ends = np.inf if self.last is None else self.last
        return ((frames > self.first) | (self.first == 0)) & (frames <= ends)


class Ancestry(NamedTuple):
    """The segments of one line of descent, without gap or overlap in frames learned from.

    Where it is not known whose weights the oldest one went on from, frames are counted as its
    member counts them.
    """

    segments: tuple[Segment, ...]  # Oldest first.
    unknown: str | None  # The reason why older ones are not known; None if they reach a start.


def in_effect(events: Sequence[Event]) -> list[Event]:
    """Leaves out the events of comparisons that were made again later."""
    kept: list[Event] = []
    for event in events:
        while kept and kept[-1].comparison >= event.comparison:
            kept.pop()
        kept.append(event)
    return kept


def trace(lineages: Mapping[int, Sequence[Event]], member: int) -> Ancestry:
    """Follows a member's weights back to where they started.

    Lineages may lack lines or contradict each other: what is older than that is left out.

    Args:
      lineages: events by member, in the order of the log; members that cannot be read are missing.
      member: the one whose present weights are followed.
    """
    newest_first: list[tuple[int, int, int | None]] = []  # member, first, last
    followed: set[tuple[int, int]] = set()  # Copies: member and comparison.
    last: int | None = None
    while True:
        event, unknown = _origin(in_effect(lineages.get(member, ())), last)
        if event or not newest_first:  # Better the member's own log as it is than nothing.
            newest_first.append((member, event.frames if event else 0, last))
        if event and not unknown:
            if not event.copied:
                break
            source = f"what it copied at comparison {event.comparison}"
            if (member, event.comparison) in followed:
                unknown = f"comparison {event.comparison} is its own ancestor"
            elif event.partner in (None, member) or not event.source_frames:
                unknown = f"{source} is not told"
            elif event.partner not in lineages:
                unknown = f"{source} is of member {event.partner}, of which nothing can be read"
        if unknown:
            unknown = f"member {member}: {unknown}"
            break
        assert event
        assert event.partner is not None
        followed.add((member, event.comparison))
        member, last = event.partner, event.source_frames
    segments: list[Segment] = []
    learned = newest_first[-1][1] if unknown else 0
    for number, first, end in reversed(newest_first):
        segments.append(Segment(number, first, end, learned - first))
        learned += (end or first) - first
    return Ancestry(tuple(segments), unknown)


def _origin(events: list[Event], last: int | None) -> tuple[Event | None, str | None]:
    """Finds where the weights that a member had at `last`, or has now, came from.

    Returns:
      The start, first or anew, or the copy that they go back to. If a line is missing that might
      tell of a later one, the event after it, or None if that came after `last`; and what is
      missing.
    """
    if not events:
        return None, "nothing can be read of its lineage"
    if events[0].comparison:  # The start is no copy, and needs no line.
        events = [Event(0, 0, None, None, None, False, None, {}), *events]
    before = sum(1 for _ in itertools.takewhile(lambda e: last is None or e.frames < last, events))
    if not before:
        return None, "its lineage begins too late"
    if before < len(events) and (gap := _gap(*events[before - 1 : before + 1])):
        return None, gap
    for i in range(before - 1, 0, -1):
        if events[i].copied or events[i].started_over:
            return events[i], None
        if gap := _gap(*events[i - 1 : i + 1]):
            return events[i], gap
    return events[0], None


def _gap(event: Event, following: Event) -> str | None:
    """Tells if anything may have come between two events."""
    if following.comparison == event.comparison + 1 and following.frames >= event.frames:
        return None
    return (
        f"between comparisons {event.comparison} and {following.comparison} its lineage lacks "
        "lines or contradicts itself"
    )

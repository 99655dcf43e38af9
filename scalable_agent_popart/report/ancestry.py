"""Whose weights a member of a population carries: back through every copy to a start.

A member's own count of frames goes on whatever it copies. Weights have learned from the frames of
one member after another, and the paper's curves are functions of the sum of these.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalable_agent_popart.population.directory import Event


class Segment(NamedTuple):
    """Frames of one member that an ancestry passes through.

    Attributes:
      member: its number.
      first: the last of the member's frames that is not in it, or 0 if it begins with the run.
      last: the last that is; None if it goes on to the present.
      offset: the member's frames and this make the frames that the weights have learned from.
    """

    member: int
    first: int
    last: int | None
    offset: int

    def holds(self, frames: np.ndarray) -> np.ndarray:
        """Which of a member's frames lie in the segment."""
        ends = np.inf if self.last is None else self.last
        return ((frames > self.first) | (self.first == 0)) & (frames <= ends)


class Ancestry(NamedTuple):
    """Segments of one line of descent.

    Attributes:
      segments: oldest first, without gap or overlap in frames learned from. Where it is not known
        whose weights the oldest one went on from, frames are counted as its member counts them.
      unknown: why older ones are not known; None if they reach back to a start.
    """

    segments: tuple[Segment, ...]
    unknown: str | None


def in_effect(events: Sequence[Event]) -> list[Event]:
    """The lines of a lineage but those of comparisons that were made again later."""
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
      lineages: by member, their events in the order of the log; none of what cannot be read.
      member: the one whose present weights are followed.
    """
    newest_first: list[tuple[int, int, int | None]] = []  # member, first, last
    followed: set[tuple[int, int]] = set()  # Copies: member and comparison.
    last: int | None = None
    while True:
        event, unknown = _origin(in_effect(lineages.get(member, ())), last)
        if event is not None:
            newest_first.append((member, event.frames, last))
        elif not newest_first:  # Better the member's own log as it is than nothing.
            newest_first.append((member, 0, None))
        if unknown is None and event is not None and event.copied:
            unknown = _contradiction(event, member, lineages)
            if (member, event.comparison) in followed:
                unknown = f"comparison {event.comparison} is its own ancestor"
        if unknown is not None:
            unknown = f"member {member}: {unknown}"
            break
        if event is None or event.partner is None or not event.copied:
            break
        followed.add((member, event.comparison))
        member, last = event.partner, event.source_frames
    *_, (_, first, _) = newest_first
    learned = 0 if unknown is None else first
    return Ancestry(_placed(newest_first[::-1], learned), unknown)


def _origin(events: list[Event], last: int | None) -> tuple[Event | None, str | None]:
    """Where the weights that a member had at `last`, or has now, came from.

    Returns:
      The start, first or anew, or the copy that they go back to. If a line is missing that might
      tell of a later one, the event after it, or None if that came after `last`; and what is
      missing.
    """
    if not events:
        return None, "nothing can be read of its lineage"
    if events[0].comparison:  # The start is no copy, and needs no line.
        events = [Event(0, 0, None, None, None, False, None, {}), *events]
    place = sum(1 for _ in itertools.takewhile(lambda e: last is None or e.frames < last, events))
    if not place:
        return None, "its lineage begins too late"
    if place < len(events) and not _follows(events[place - 1], events[place]):
        return None, _gap(events[place - 1], events[place])
    while place > 1 and not (events[place - 1].copied or events[place - 1].started_over):
        place -= 1
        if not _follows(events[place - 1], events[place]):
            return events[place], _gap(events[place - 1], events[place])
    return events[place - 1], None


def _follows(event: Event, following: Event) -> bool:
    """Whether nothing can have come in between."""
    return following.comparison == event.comparison + 1 and following.frames >= event.frames


def _gap(event: Event, following: Event) -> str:
    return (
        f"between comparisons {event.comparison} and {following.comparison} its lineage lacks "
        "lines or contradicts itself"
    )


def _contradiction(
    event: Event, member: int, lineages: Mapping[int, Sequence[Event]]
) -> str | None:
    """What is wrong with a copy, if anything."""
    source = f"what it copied at comparison {event.comparison}"
    if event.partner is None or event.partner == member or not event.source_frames:
        return f"{source} is not told"
    if event.partner not in lineages:
        return f"{source} is of member {event.partner}, of which nothing can be read"
    return None


def _placed(
    oldest_first: Sequence[tuple[int, int, int | None]], learned: int
) -> tuple[Segment, ...]:
    """Segments one after another on the axis of frames learned from, which begins at `learned`."""
    segments: list[Segment] = []
    for member, first, last in oldest_first:
        segments.append(Segment(member, first, last, learned - first))
        if last is not None:
            learned += last - first
    return tuple(segments)

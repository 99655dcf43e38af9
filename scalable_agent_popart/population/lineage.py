"""Follows the weights of a population's member back through every copy to where they started.

A member counts its own frames, whatever it copies. Weights have learned from the frames of
one member after another, and the paper's curves are functions of the sum of these.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalable_agent_popart.population.directory import Event


class Segment(NamedTuple):
    """Frames of one member that an ancestry passes through."""

    member: int
    first: int  # The last of the member's frames before it, or 0 if it begins with the run.
    last: int | None  # The last in it; None if it lasts to the present.
    offset: int  # With the member's frames, the frames that the weights have learned from.

    def holds(self, frames: np.ndarray) -> np.ndarray:
        """Returns which of a member's frames lie in the segment."""
        ends = np.inf if self.last is None else self.last
        return ((frames > self.first) | (self.first == 0)) & (frames <= ends)


def trace(
    lineages: Mapping[int, Sequence[Event]], member: int
) -> tuple[tuple[Segment, ...], str | None]:
    """Follows a member's present weights back to where they started.

    Returns segments, oldest first, without gap or overlap in frames learned from, and why older
    ones are not known, or None if these reach a start. Where lineages lack lines or contradict each
    other, frames are counted as the oldest known member counts them.
    """
    newest_first: list[tuple[int, int, int | None]] = []  # member, first, last
    followed: set[tuple[int, int]] = set()  # Copies: member and comparison.
    last: int | None = None
    while True:
        event, unknown = _origin(lineages.get(member, ()), last)
        if event or not newest_first:  # Better the member's own log as it is than nothing.
            newest_first.append((member, event.frames if event else 0, last))
        if not event or unknown or not event.copied:
            break
        source = f"what it copied at comparison {event.comparison}"
        if (member, event.comparison) in followed:
            unknown = f"comparison {event.comparison} is its own ancestor"
        elif event.partner in (None, member) or not event.source_frames:
            unknown = f"{source} is not recorded"
        elif event.partner not in lineages:
            unknown = f"{source} is of member {event.partner}, of which nothing can be read"
        if unknown or event.partner is None:
            break
        followed.add((member, event.comparison))
        member, last = event.partner, event.source_frames
    segments: list[Segment] = []
    learned = newest_first[-1][1] if unknown else 0
    for number, first, end in reversed(newest_first):
        segments.append(Segment(number, first, end, learned - first))
        learned += (end or first) - first
    return tuple(segments), f"member {member}: {unknown}" if unknown else None


def _origin(events: Sequence[Event], last: int | None) -> tuple[Event | None, str | None]:
    """Finds the first or a later start, or the copy that the weights at `last`, or now, go back to.

    Returns the event after a missing line, or None if that came after `last`; and what is missing.
    """
    if not events:
        return None, "nothing can be read of its lineage"
    if events[0].comparison:  # The start is no copy, and needs no line.
        events = [Event(0, 0, None, None, None, False, None, {}), *events]
    later = next((i for i, e in enumerate(events) if last is not None and e.frames >= last), None)
    if later == 0:
        return None, "its lineage begins too late"
    found, following = None, None if later is None else events[later]
    for event in reversed(events[:later]):
        if following and (
            following.comparison != event.comparison + 1 or following.frames < event.frames
        ):
            return found, (
                f"between comparisons {event.comparison} and {following.comparison} its lineage "
                "lacks lines or contradicts itself"
            )
        found = following = event
        if event.copied or event.started_over:
            break
    return found, None

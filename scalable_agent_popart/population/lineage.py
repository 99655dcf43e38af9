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

    Returns segments, oldest first, without gap or overlap in frames learned from. The second value
    says why older ones are not known, and is None if these reach a start. Of a member that was
    copied and has no lineage, frames are counted as the copy counts them.
    """
    newest_first: list[tuple[int, int, int | None]] = []  # member, first, last
    followed: set[tuple[int, int]] = set()  # Copies: member and comparison.
    last, unknown = None, None
    while True:
        events = lineages.get(member, ())
        if not events:
            unknown = f"nothing can be read of member {member}'s lineage"
            break
        # What a member did at the frames of a checkpoint came after it.
        before = [event for event in events if last is None or event.frames < last] or events[:1]
        began = [event for event in before if event.copied or event.started_over] or before[:1]
        newest_first.append((member, began[-1].frames, last))
        if not began[-1].copied:
            break
        if (copy := (member, began[-1].comparison)) in followed:  # A member began again since.
            unknown = f"what member {member} copied at comparison {copy[1]} is its own ancestor"
            break
        followed.add(copy)
        assert began[-1].partner is not None
        member, last = began[-1].partner, began[-1].source_frames
    newest_first = newest_first or [(member, 0, None)]
    segments: list[Segment] = []
    learned = newest_first[-1][1] if unknown else 0
    for number, first, end in reversed(newest_first):
        segments.append(Segment(number, first, end, learned - first))
        learned += (end or first) - first
    return tuple(segments), unknown

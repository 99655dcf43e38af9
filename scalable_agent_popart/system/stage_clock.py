"""Measures where the time of threads goes."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any


class StageClock:
    """Seconds that one thread has spent in each stage of its work."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forgets what was counted and counts from now on."""
        self.seconds: Any = Counter()
        self._since = time.perf_counter()

    def finish(self, stage: str) -> None:
        """Counts the time since the last call, or since the start, as this stage's."""
        now = time.perf_counter()
        self.seconds[stage] += now - self._since
        self._since = now


def shares(clocks: Iterable[StageClock]) -> dict[str, float]:
    """Returns each stage's share, in [0, 1], of the time of all clocks."""
    # A thread may be adding a stage to its own.
    seconds: Any = sum((clock.seconds.copy() for clock in clocks), Counter())
    total = seconds.total()
    return {stage: value / total for stage, value in seconds.items()} if total else {}

"""Where the time of a thread goes."""

import time
from collections.abc import Iterable


class StageClock:
    """Seconds that one thread has spent in each stage of its work."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def finish(self, stage: str) -> None:
        """Counts the time since the last call, or since the start, as this stage's."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def restart(self) -> None:
        """Forgets what was counted."""
        self.seconds = {}
        self._since = time.perf_counter()


def shares(clocks: Iterable[StageClock]) -> dict[str, float]:
    """Stage to its share of the clocks' time together, in [0, 1]."""
    seconds: dict[str, float] = {}
    for clock in clocks:
        for stage, value in list(clock.seconds.items()):  # Its thread may be adding one.
            seconds[stage] = seconds.get(stage, 0.0) + value
    total = sum(seconds.values())
    return {stage: value / total for stage, value in seconds.items()} if total else {}

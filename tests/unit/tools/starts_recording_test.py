"""The starts that are sampled from played games."""

from typing import Any

import numpy as np
import pytest

from scalable_agent_popart.suites import EnvironmentOptions
from tools import starts_recording

OPTIONS = EnvironmentOptions(4, 2, 2, "full", training=False)


class _Counting:
    """Plays games of 3, 1 and 8 steps; a state is its place in all, and the seventh has a fault."""

    def __init__(self, *_: Any):
        self._steps = enumerate([False, False, True, True, *[False] * 7, True])

    def begin(self, num_noops: int) -> np.ndarray:
        return np.zeros((2, 2, 1), np.uint8)

    def step(self, action: int) -> tuple[float, bool, np.ndarray]:
        place, over = next(self._steps)
        self.state = bytes([place])
        return 0.0, over, self.begin(0)

    def fault(self, state: bytes) -> str | None:
        return "over" if state[0] == 6 else None


def test_every_step_is_as_likely_a_start_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts_recording, "Emulator", _Counting)
    repetitions, counts, firsts = 1000, np.zeros(12, int), np.zeros(12, int)
    for seed in range(repetitions):
        states = starts_recording.record_starts("none", lambda output: 0, 3, 3, seed, OPTIONS)
        chosen = [state[0] for state in states]
        counts[chosen] += 1
        firsts[chosen[0]] += 1
    eligible = [0, 1, 4, 5, 7, 8, 9, 10]  # Not the last of a game, nor the seventh.
    assert counts.sum() == counts[eligible].sum() == 3 * repetitions
    for found, probability in ((counts, 3 / 8), (firsts, 1 / 8)):
        deviation = np.sqrt(repetitions * probability * (1 - probability))
        assert np.abs(found[eligible] - repetitions * probability).max() < 4 * deviation

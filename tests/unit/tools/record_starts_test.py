"""The starts that tools/record_starts.py samples from played games, and its files."""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalable_agent_popart.suites import EnvironmentOptions
from scalable_agent_popart.suites.atari import starts as atari_starts
from scalable_agent_popart.suites.atari.emulator import Emulator
from tests.fakes.programs import run_python
from tools import record_starts


def _run_tool(directory: Path, *given: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(directory)}
    return run_python("tools/record_starts.py", "--human_starts_dir=~", *given, env=environment)


def test_tool_records_games_played_at_random(tmp_path: Path) -> None:
    given = ("--level_name=bowling", "--random", "--num_games=1", "--num_starts=6")
    result = _run_tool(tmp_path, *given)
    assert result.stdout.startswith("bowling: 6 starts of 1 games, after"), result.stderr
    assert len(atari_starts.read_starts(tmp_path, "bowling")) == 6


def test_tool_takes_states_in_the_order_of_their_files(tmp_path: Path) -> None:
    emulator = Emulator("breakout", EnvironmentOptions(4, 84, 84, "full", training=False))
    folder, states = tmp_path / "breakout", {}
    folder.mkdir()
    for name in "cab":
        emulator.step(1)
        states[name] = emulator.state
        (folder / name).write_bytes(emulator.state)
    given = ("--level_name=breakout", f"--states={tmp_path}")
    result = _run_tool(tmp_path, *given)
    assert result.stdout.startswith("breakout: 3 starts of"), result.stderr
    in_order = [states[name] for name in "abc"]
    assert atari_starts.read_starts(tmp_path, "breakout") == in_order
    (folder / "d").write_bytes(b"of no use")
    result = _run_tool(tmp_path / "other", *given)
    assert result.stderr == f"error: {folder / 'd'} is no state of this game; leave it out\n"


OPTIONS = EnvironmentOptions(4, 2, 2, "full", training=False)


class _Counting:
    """Plays games of 3, 1 and 8 steps; a state is its index, and the seventh has a fault."""

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
    monkeypatch.setattr(record_starts, "Emulator", _Counting)
    repetitions, counts, firsts = 1000, np.zeros(12, int), np.zeros(12, int)
    for seed in range(repetitions):
        states = record_starts.record_starts("none", lambda *_: 0, 3, 3, seed, OPTIONS)
        chosen = [state[0] for state in states]
        counts[chosen] += 1
        firsts[chosen[0]] += 1
    eligible = [0, 1, 4, 5, 7, 8, 9, 10]  # The last of a game and the seventh are not.
    assert counts.sum() == counts[eligible].sum() == 3 * repetitions
    for chosen_often, probability in ((counts, 3 / 8), (firsts, 1 / 8)):
        deviation = np.sqrt(repetitions * probability * (1 - probability))
        assert np.abs(chosen_often[eligible] - repetitions * probability).max() < 4 * deviation

"""tools/record_starts.py, as a program."""

import subprocess
import sys
from pathlib import Path

from scalable_agent_popart import suites
from scalable_agent_popart.suites.atari import starts as atari_starts
from scalable_agent_popart.suites.atari.emulator import Emulator
from tests.fakes.programs import DEADLINE_SECONDS, ROOT


def _run_tool(directory: Path, *given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/record_starts.py", f"--human_starts_dir={directory}", *given]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )


def test_tool_records_games_played_at_random(tmp_path: Path) -> None:
    given = ("--level_name=breakout,bowling", "--random", "--num_games=1", "--num_starts=6")
    result = _run_tool(tmp_path, *given)
    assert result.stdout.count(": 6 starts of 1 games, after") == 2, result.stderr
    assert all(atari_starts.read_starts(tmp_path, game) for game in ("breakout", "bowling"))


def test_tool_takes_states_in_the_order_of_their_files(tmp_path: Path) -> None:
    emulator = Emulator("breakout", suites.EnvironmentOptions(4, 84, 84, "full", training=False))
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

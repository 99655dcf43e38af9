"""Populations in processes of their own that are killed, interrupted and started again."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.runs.checkpoints import saved_frames
from tests.fakes.programs import (
    DEADLINE_SECONDS,
    Programs,
    children,
    is_alive,
    logged_frames,
    wait_until,
)
from tests.runs.population_runs_test import TINY

_TINY = {**TINY, "log_seconds": 0.01}


class _Population(Programs):
    """Starts programs that train a population, and reads what they leave."""

    def __init__(self, root: Path):
        super().__init__()
        self.root = root
        self._members = [PopulationDirectory(str(root)).member(number) for number in range(2)]

    def frames(self, number: int) -> int:
        return logged_frames(self._members[number].path)

    def saved_frames(self, number: int) -> int:
        return saved_frames(self._members[number].checkpoints) or 0


@pytest.fixture
def population(tmp_path: Path) -> Iterator[_Population]:
    with contextlib.closing(_Population(tmp_path / "population")) as population:
        yield population


def test_a_worker_that_is_killed_is_started_again(population: _Population) -> None:
    program = population.run(**_TINY, logdir=population.root, pbt_places=2)
    wait_until(lambda: min(population.frames(n) for n in range(2)) > 0, program)
    killed = children(program.pid)
    assert len(killed) == 2
    for process in killed:
        os.kill(process, signal.SIGKILL)
    _, output = program.communicate(timeout=DEADLINE_SECONDS)
    assert program.returncode == 0, output
    for number in range(2):
        assert population.saved_frames(number) >= _TINY["total_environment_frames"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_save_and_end_with_the_process_that_started_them(
    population: _Population, number: signal.Signals
) -> None:
    endless = {**_TINY, "total_environment_frames": 10**9, "pbt_episodes": 10**9}
    program = population.run(**endless, logdir=population.root)
    wait_until(lambda: population.frames(0) > 0, program)
    (worker,) = children(program.pid)
    program.send_signal(number)
    _, output = program.communicate(timeout=DEADLINE_SECONDS)
    wait_until(lambda: not is_alive(worker))
    assert population.saved_frames(0) == population.frames(0)
    if number == signal.SIGINT:
        assert program.returncode == 128 + signal.SIGINT
        frames = sum(population.frames(member) for member in range(2))
        assert output.splitlines()[-1].startswith(f"saved at {frames:,} frames")

"""Populations in processes of their own that are killed, interrupted and started again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from scalable_agent_popart.population.directory import PopulationDirectory
from tests.fakes.programs import DEADLINE_SECONDS, Programs, is_alive, metrics, wait_until

_TINY = {
    "mode": "pbt",
    "population_size": 2,
    "level_name": "catch5",
    "use_popart": True,
    "num_actors": 10,
    "batch_size": 4,
    "unroll_length": 10,
    "pbt_burn_in_frames": 200,
    "pbt_episodes": 20,
    "total_environment_frames": 600,
    "log_seconds": 0.01,
}


class _Population(Programs):
    """Starts programs that train a population, and reads what they leave."""

    def __init__(self, root: Path):
        super().__init__()
        self.root = root
        self._members = [PopulationDirectory(str(root)).member(number) for number in range(2)]

    def start(self, **given: Any) -> subprocess.Popen[str]:
        flags = {**_TINY, "logdir": self.root, **given}
        return self.run(*(f"--{name}={value}" for name, value in flags.items()))

    def frames(self, number: int) -> int:
        lines = metrics(self._members[number].path)
        return lines[-1]["frames"] if lines else 0

    def saved(self, number: int, name: str) -> int:
        """Reads a variable of a member's newest checkpoint."""
        reader = tf.train.load_checkpoint(str(self._members[number].checkpoints))
        return int(reader.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE"))

    def num_comparisons(self, number: int) -> int:
        return self._members[number].read_lineage()[-1].comparison


@pytest.fixture
def population(tmp_path: Path) -> Iterator[_Population]:
    population = _Population(tmp_path / "population")
    yield population
    population.close()


def _workers(parent: int) -> list[int]:
    """Lists the processes that train for another one."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if is_alive(int(child))]


def test_a_worker_that_is_killed_is_started_again(population: _Population) -> None:
    program = population.start(pbt_places=2)
    wait_until(lambda: min(population.frames(n) for n in range(2)) > 0, program)
    killed = _workers(program.pid)
    assert len(killed) == 2
    for process in killed:
        os.kill(process, signal.SIGKILL)
    _, output = program.communicate(timeout=DEADLINE_SECONDS)
    assert program.returncode == 0, output
    for number in range(2):
        assert population.saved(number, "learner/frames") >= _TINY["total_environment_frames"]
        assert population.saved(number, "num_comparisons") == population.num_comparisons(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_save_and_end_with_the_process_that_started_them(
    population: _Population, number: signal.Signals
) -> None:
    program = population.start(total_environment_frames=10**9, pbt_episodes=10**9)
    wait_until(lambda: population.frames(0) > 0, program)
    (worker,) = _workers(program.pid)
    program.send_signal(number)
    _, output = program.communicate(timeout=DEADLINE_SECONDS)
    wait_until(lambda: not is_alive(worker))
    assert population.saved(0, "learner/frames") == population.frames(0)
    if number == signal.SIGINT:
        assert program.returncode == 128 + signal.SIGINT
        frames = sum(population.frames(member) for member in range(2))
        line = f"saved at {frames:,} frames in {population.root}; the same command goes on"
        assert output.splitlines()[-1] == line

"""All thirty levels at once; one that is slow; what a killed run leaves behind."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.training.local_actors import LocalActors
from tests.fakes.programs import ROOT, wait_until
from tests.runs.dmlab30_runs_test import SMALL, StandIn, engine_files
from tests.runs.experiment_test import saved


def rollouts_by_task(config: Config, enough: Callable[[Counter], bool]) -> Counter:
    """Returns the rollouts of each task in at least 200 batches, and until there are enough."""
    spec = factory.make_rollout_spec(config)
    learner = factory.make_learner(config, spec)
    tasks: Counter = Counter()
    taken = 0
    with LocalActors(config, spec, learner) as pool:
        while taken < 200 or not enough(tasks):
            batch = pool.next_batch()
            if batch is not None:
                taken += 1
                tasks.update(config.suite.tasks[i] for i in batch.task_id.numpy())
    return tasks


def test_every_level_takes_part_though_one_is_slow_to_reset(stand_in: StandIn) -> None:
    slow = "explore_goal_locations_large"
    stand_in(**{"*": {"reset_seconds": 0.01}, slow: {"reset_seconds": 1.0}})
    config = Config.from_flags({**SMALL, "level_name": "dmlab30", "dataset_path": "dummy"})
    tasks = rollouts_by_task(config, lambda tasks: tasks[slow] >= 15)
    assert set(tasks) == set(config.suite.tasks)
    others = [count for task, count in tasks.items() if task != slow]
    assert min(others) > 0.5 * np.mean(others)


def children_of(process: int) -> set[int]:
    """Returns the processes that another has started and that have not ended."""
    command = ["pgrep", "--parent", str(process), "--runstates", "RSD"]
    result = subprocess.run(command, capture_output=True, text=True)
    return {int(number) for number in result.stdout.split()}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_and_no_file_outlives_a_run(
    stand_in: StandIn, tmp_path: Path, number: signal.Signals
) -> None:
    stand_in(lt_chasm={"reset_seconds": 0.2})
    settings = {**SMALL, "logdir": tmp_path / "run", "level_name": "lt_chasm,rooms_watermaze"}
    settings |= {"num_actors": 6, "log_seconds": 1e-9}
    process = subprocess.Popen(
        [sys.executable, "experiment.py", *(f"--{k}={v}" for k, v in settings.items())],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_bytes()) > 0, process)
    children = children_of(process.pid)
    assert len(children) == 6
    assert list(tmp_path.glob("temporary/environment_processes_*/*/baselab")), "files to remove"
    process.send_signal(number)
    process.wait(60)
    wait_until(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children))
    wait_until(lambda: not engine_files(tmp_path))
    if number == signal.SIGTERM:
        assert saved(tmp_path / "run")

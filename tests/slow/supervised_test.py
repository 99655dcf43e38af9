"""Owners of processes whose processes die, or that die themselves, again and again."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scalable_agent_popart.suites import process_pool
from tests.fakes.process_environments import Counting, Dying
from tests.fakes.programs import ROOT, is_alive, metrics, wait_until
from tests.unit.bazel.run_local_test import Jobs
from tests.unit.suites.process_pool_test import MakePool, make_pool, play, steps_of

__all__ = ["make_pool"]  # A fixture.


def test_a_pool_goes_on_through_a_hundred_deaths(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_FIRST_PAUSE_SECONDS", 1e-3)
    pool = make_pool(*[functools.partial(Dying, 12, 7)] * 4, Counting)
    received = play(pool, lambda ready: pool.restarts.sum() == 100)
    for i in range(4):
        attempts = [output.observation["number"][2] for _, output, _ in steps_of(received, i)]
        counts = np.bincount(attempts)
        assert len(counts) >= pool.restarts[i]
        assert np.all(counts[:-1] == 13), "twelve steps and the first"
    assert sum(not step.fresh for step in steps_of(received, 4)) > 1000


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


def test_nothing_is_left_of_a_local_job_whenever_it_is_killed(jobs: Jobs) -> None:
    """Killed while it starts processes, again and again."""
    for count in range(1, 20):
        process = jobs.start(actor="1")
        wait_until(lambda count=count: len(jobs.all()) >= 4 * count)  # type: ignore[misc]
        process.kill()
    wait_until(lambda: not jobs.any_alive())


def test_processes_of_a_local_job_that_do_not_listen_are_killed_in_the_end(jobs: Jobs) -> None:
    process = jobs.start(learner="wait,0", actor="deaf", evaluator="1")
    os.kill(jobs.wait_for_all()[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert not jobs.any_alive()


@contextlib.contextmanager
def _experiment(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """Runs two agents that do not end by themselves; yields the tool and their directories."""
    files = [folder / f"{name}.flags" for name in ("impala", "popart")]
    for path in files:
        flags = [
            "--level_name=catch5",
            "--log_seconds=0.1",
            "--use_popart" * (path.stem == "popart"),
        ]
        path.write_text("\n".join([*flags, "--total_environment_frames=1000000000"]))
    command = [sys.executable, "tools/run_experiment.py", f"--logdir={folder / 'runs'}"]
    command += [f"--report_dir={folder / 'report'}", "--places=2", *map(str, files)]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE)
    try:
        yield process, [folder / "runs" / f"{path.stem}-1" for path in files]
    finally:
        process.kill()
        process.wait()


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in listed]


@pytest.mark.parametrize("begun", [False, True])
def test_an_experiment_that_is_stopped_saves_and_leaves_nothing(
    tmp_path: Path, begun: bool
) -> None:
    with _experiment(tmp_path) as (process, runs):
        logs = [run.parent / f"{run.name}.log" for run in runs]
        wait_until(lambda: all(log.exists() for log in logs), process)
        if begun:
            wait_until(lambda: all(len(metrics(run)) > 1 for run in runs), process)
        children = _children(process.pid)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
        assert not any(map(is_alive, children))
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in error
    for run in runs if begun else []:
        assert list((run / "checkpoints").glob("*.index"))
        (line,) = (run / "processes.jsonl").read_text().splitlines()
        assert json.loads(line)["memory_kib"] > 100_000

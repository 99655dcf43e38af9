"""Populations in processes of their own that are killed, interrupted and started again."""

import os
import signal
from pathlib import Path

import pytest

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


@pytest.fixture
def members(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"member-0{number}" for number in range(2)]


def test_a_worker_that_is_killed_is_started_again(
    programs: Programs, members: list[Path], tmp_path: Path
) -> None:
    program = programs.run(**_TINY, logdir=tmp_path, pbt_places=2)
    wait_until(lambda: min(map(logged_frames, members)) > 0, program)
    killed = children(program.pid)
    assert len(killed) == 2
    for process in killed:
        os.kill(process, signal.SIGKILL)
    _, output = program.communicate(timeout=DEADLINE_SECONDS)
    assert program.returncode == 0, output
    for member in members:
        assert saved_frames(member / "checkpoints") >= _TINY["total_environment_frames"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_save_and_end_with_the_process_that_started_them(
    programs: Programs, members: list[Path], tmp_path: Path, number: signal.Signals
) -> None:
    endless = {**_TINY, "total_environment_frames": 10**9, "pbt_episodes": 10**9}
    program = programs.run(**endless, logdir=tmp_path)
    wait_until(lambda: logged_frames(members[0]) > 0, program)
    (worker,) = children(program.pid)
    program.send_signal(number)
    _, output = program.communicate(timeout=DEADLINE_SECONDS)
    wait_until(lambda: not is_alive(worker))
    assert saved_frames(members[0] / "checkpoints") == logged_frames(members[0])
    if number == signal.SIGINT:
        assert program.returncode == 128 + signal.SIGINT
        frames = sum(map(logged_frames, members))
        assert output.splitlines()[-1].startswith(f"saved at {frames:,} frames")

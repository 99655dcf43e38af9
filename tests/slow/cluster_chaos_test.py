"""Actor jobs and learners of one run are killed at random: it reaches its end and loses little."""

import random
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.programs import DEADLINE_SECONDS, Programs, metrics, wait_until

_ACTOR_JOBS = 4
_FRAMES, _FRAMES_BETWEEN_KILLS = 250_000, 4000
_KILLS = ["actor"] * 20 + ["learner"] * 5
_CHECKPOINT_SECONDS = 5.0
# A kill may cut off the saving of a checkpoint, and the update before it.
_SAVING_SECONDS = 1.0


@pytest.fixture
def programs() -> Iterator[Programs]:
    programs = Programs()
    yield programs
    programs.close()


def test_killed_jobs_cost_no_more_than_is_trained_between_checkpoints(
    programs: Programs, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("", 0))
        address = f"--learner_address=localhost:{probe.getsockname()[1]}"
    settings = ["--level_name=catch5", "--use_popart", "--num_actors=10", "--log_seconds=0.5"]
    settings += [f"--total_environment_frames={_FRAMES}", address]
    settings += [f"--checkpoint_seconds={_CHECKPOINT_SECONDS}"]

    def start_learner() -> subprocess.Popen[str]:
        return programs.run(*settings, "--job_name=learner", f"--logdir={tmp_path}")

    def start_actor(task: int) -> subprocess.Popen[str]:
        return programs.run(*settings, "--job_name=actor", f"--task={task}")

    def frames() -> int:
        lines = metrics(tmp_path)
        return lines[-1]["frames"] if lines else 0

    learner = start_learner()
    actors = [start_actor(task) for task in range(_ACTOR_JOBS)]
    generator = random.Random(0)
    wait_until(lambda: frames() > 0, learner)
    for victim in generator.sample(_KILLS, len(_KILLS)):
        goal = min(frames() + _FRAMES_BETWEEN_KILLS, int(0.9 * _FRAMES))
        wait_until(_reaches(frames, goal), learner)
        if victim == "actor":
            task = generator.randrange(_ACTOR_JOBS)
            _kill(actors[task])
            actors[task] = start_actor(task)
            continue
        _kill(learner)
        before = metrics(tmp_path)
        learner = start_learner()
        # The new learner cuts the log back to its checkpoint.
        wait_until(_differs(tmp_path, before), learner)
        after = metrics(tmp_path)
        kept = sum(a == b for a, b in zip(after, before, strict=False))
        lost = before[-1]["time"] - before[max(kept - 1, 0)]["time"]
        assert lost <= _CHECKPOINT_SECONDS + _SAVING_SECONDS
    assert learner.wait(DEADLINE_SECONDS) == 0
    for actor in actors:
        if actor.poll() is None:  # One that was too late for the learner's farewell.
            actor.terminate()
        assert actor.wait(DEADLINE_SECONDS) in (0, 128 + signal.SIGTERM)
    assert frames() >= _FRAMES


def _reaches(frames: Callable[[], int], goal: int) -> Callable[[], bool]:
    return lambda: frames() >= goal


def _differs(logdir: Path, before: list[dict[str, object]]) -> Callable[[], bool]:
    return lambda: metrics(logdir) != before


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()

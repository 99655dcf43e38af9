"""Actor jobs and learners of one run are killed at random, and it still ends and loses little."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.programs import DEADLINE_SECONDS, Programs, logged_frames, metrics, wait_until

_ACTOR_JOBS = 4
_FRAMES, _FRAMES_BETWEEN_KILLS = 250_000, 4000
_KILLS = ["actor"] * 20 + ["learner"] * 5
_CHECKPOINT_SECONDS = 5.0
# A kill may cut off the saving of a checkpoint, and the update before it.
_SAVING_SECONDS = 1.0
_SETTINGS = ["--level_name=catch5", "--use_popart", "--num_actors=10", "--log_seconds=0.5"]
_SETTINGS += [f"--total_environment_frames={_FRAMES}"]
_SETTINGS += [f"--checkpoint_seconds={_CHECKPOINT_SECONDS}"]


class Jobs(Programs):
    """Starts jobs of one run."""

    def __init__(self, directory: Path):
        super().__init__()
        self.logdir = directory / "run"
        self._settings = [*_SETTINGS, f"--logdir={self.logdir}"]

    def learner(self) -> subprocess.Popen[str]:
        where = "--learner_address=localhost:0"
        return self.run("--job_name=learner", *self._settings, where)

    def actor(self, task: int) -> subprocess.Popen[str]:
        return self.run("--job_name=actor", *self._settings, f"--task={task}")

    def frames(self) -> int:
        return logged_frames(self.logdir)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


def test_killed_jobs_cost_no_more_than_is_trained_between_checkpoints(jobs: Jobs) -> None:
    actors = [jobs.actor(task) for task in range(_ACTOR_JOBS)]
    learner = jobs.learner()
    generator = random.Random(0)
    wait_until(lambda: jobs.frames() > 0, learner)
    for victim in generator.sample(_KILLS, len(_KILLS)):
        goal = min(jobs.frames() + _FRAMES_BETWEEN_KILLS, int(0.9 * _FRAMES))
        wait_until(lambda goal=goal: jobs.frames() >= goal, learner)  # type: ignore[misc]
        if victim == "actor":
            task = generator.randrange(_ACTOR_JOBS)
            actors[task].kill()
            actors[task].wait()
            actors[task] = jobs.actor(task)
            continue
        learner.kill()
        learner.wait()
        before = metrics(jobs.logdir)
        learner = jobs.learner()
        # The new learner cuts the log back to its checkpoint.
        wait_until(lambda old=before: metrics(jobs.logdir) != old, learner)  # type: ignore[misc]
        after = metrics(jobs.logdir)
        kept = sum(a == b for a, b in zip(after, before, strict=False))
        lost = before[-1]["time"] - before[max(kept - 1, 0)]["time"]
        assert lost <= _CHECKPOINT_SECONDS + _SAVING_SECONDS
    assert learner.wait(DEADLINE_SECONDS) == 0
    for actor in actors:
        assert actor.wait(DEADLINE_SECONDS) == 0
    assert jobs.frames() >= _FRAMES

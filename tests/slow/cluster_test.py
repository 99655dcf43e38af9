"""Learner, actor jobs and evaluator in processes that find, lose and refuse each other."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scalable_agent_popart.config import Config
from tests.fakes.programs import DEADLINE_SECONDS, Programs, free_port, metrics, wait_until

SETTINGS = {
    "level_name": "catch5",
    "use_popart": True,
    "num_actors": 5,
    "actor_threads": 1,
    "batch_size": 4,
    "unroll_length": 10,
}


class Jobs(Programs):
    """Starts jobs of one run."""

    def __init__(self, directory: Path):
        super().__init__()
        self.logdir = directory / "run"
        self.address = f"localhost:{free_port()}"

    def learner(self, **flags: Any) -> subprocess.Popen[str]:
        where = {"learner_address": self.address, "logdir": self.logdir}
        return self.run(**SETTINGS, **where, **flags)

    def actor(self, task: int, **flags: Any) -> subprocess.Popen[str]:
        where = {"job_name": "actor", "learner_address": self.address, "task": task}
        return self.run(**{**SETTINGS, **where, **flags})

    def frames(self) -> int:
        """Returns the environment frames of the log's last line."""
        lines = metrics(self.logdir)
        return lines[-1]["frames"] if lines else 0


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


def test_actors_come_first_outlive_their_learner_and_end_with_the_run(jobs: Jobs) -> None:
    actors = [jobs.actor(task) for task in range(2)]
    often = {"checkpoint_seconds": 0.5, "log_seconds": 0.1, "total_environment_frames": 10**8}
    first = jobs.learner(**often)
    wait_until(lambda: jobs.frames() > 2000, first, *actors)
    first.kill()
    first.wait()
    actors[0].kill()  # One returns, the other was there all the time.
    before = jobs.frames()
    second = jobs.learner(**often)
    back = jobs.actor(0)
    wait_until(lambda: jobs.frames() > before + 2000, second, back, actors[1])
    second.terminate()
    _, output = second.communicate(timeout=DEADLINE_SECONDS)
    assert second.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in output

    last = jobs.learner(total_environment_frames=jobs.frames() + 4000)
    for process in (last, back, actors[1]):
        _, output = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, output
        assert "Traceback" not in output
    text = (jobs.logdir / "episodes.jsonl").read_text()
    episodes = [json.loads(line) for line in text.splitlines()]
    tasks = Config.from_flags(SETTINGS).suite.tasks
    assert {episode["task"] for episode in episodes} == set(tasks)
    frames = [episode["frames"] for episode in episodes]
    assert frames == sorted(frames)


def test_an_actor_of_another_configuration_is_refused_on_both_sides(jobs: Jobs) -> None:
    learner = jobs.learner(log_seconds=0.1)
    good = jobs.actor(0)
    wait_until(lambda: jobs.frames() > 0, learner, good)
    bad = jobs.actor(3, network="deep", unroll_length=12)
    _, output = bad.communicate(timeout=DEADLINE_SECONDS)
    assert bad.returncode == 1
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    differences = (
        "--network is shallow at the learner and deep at actor job 3; "
        "--unroll_length is 10 at the learner and 12 at actor job 3"
    )
    assert differences in line
    seen = jobs.frames()
    wait_until(lambda: jobs.frames() > seen + 2000, learner, good)
    learner.terminate()
    _, output = learner.communicate(timeout=DEADLINE_SECONDS)
    assert f"actor job 3 refused: {differences}" in output


def test_an_evaluator_follows_the_run(jobs: Jobs) -> None:
    evaluator = jobs.run(job_name="evaluator", logdir=jobs.logdir, test_num_episodes=5)
    training, actor = jobs.learner(checkpoint_seconds=1), jobs.actor(0)
    log = jobs.logdir / "evaluations.jsonl"
    wait_until(
        lambda: log.exists() and len(log.read_text().splitlines()) >= 2, evaluator, training, actor
    )
    training.terminate()
    training.wait(DEADLINE_SECONDS)
    # Another checkpoint, and with it the run's end.
    more = {"logdir": jobs.logdir, "total_environment_frames": jobs.frames() + 40}
    last = jobs.run(**SETTINGS, **more)
    assert last.wait(DEADLINE_SECONDS) == 0
    evaluator.terminate()
    assert evaluator.wait(DEADLINE_SECONDS) in (0, 128 + signal.SIGTERM)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["frames"] for line in lines] == sorted({line["frames"] for line in lines})
    assert set(lines[0]) >= {"frames", "starts", "mean", "median", "mean_capped", "mean_return"}

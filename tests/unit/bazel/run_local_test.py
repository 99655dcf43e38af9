"""A job on one machine: who is started again, who ends it, and in which order all end."""

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.cluster_jobs import FAKE, ClusterJobs
from tests.fakes.programs import ROOT, is_alive, wait_until

_PROGRAM = ROOT / "bazel" / "cluster" / "run_local.py"
# Waits for the program it starts, and leaves it alone when told to end: so does a zip of Bazel's.
_LAUNCHER = (
    "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, {!r}, *sys.argv[1:]]))"
)


class Jobs(ClusterJobs):
    """Starts local jobs of the stand-in."""

    def start(
        self, *arguments: str, executable: Path = FAKE, **behaviour: str
    ) -> subprocess.Popen[str]:
        own = [f"--executable={executable}", "--actor_jobs=2", "--evaluator"]
        command = [sys.executable, str(_PROGRAM), *own, "--restart_seconds=0.01", *arguments]
        return self.popen(command, {}, behaviour)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


def test_all_end_when_the_learner_is_through(jobs: Jobs) -> None:
    process = jobs.start(learner="wait,0", actor="1,kill,0,wait", evaluator="0")
    learner = jobs.wait_for_all()[0]
    wait_until(lambda: jobs.num_starts() == [1, 3, 3, 1])
    os.kill(learner, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert jobs.num_starts() == [2, 3, 3, 1]
    assert not jobs.any_alive()
    assert "[learner] was ended by signal 9; starts again in 0.01 s\n" in output


def test_processes_are_told_who_they_are(jobs: Jobs) -> None:
    flag_file = jobs.directory / "job.flags"
    flag_file.write_text("# Pong.\n--level_name=pong\n")
    own = ["--logdir=runs/x", "--port=8471", f"--flag_file={flag_file}"]
    process = jobs.start(*own, "--use_popart")
    jobs.wait_for_all()
    flags, logdir = ["--level_name=pong", "--use_popart"], ["--logdir=runs/x"]
    address = ["--learner_address=127.0.0.1:8471"]
    jobs.check_told(flags, learner=[*address, *logdir], actor=address, evaluator=logdir)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    for text in ("actor says wait", "over", "and an unfinished line"):
        assert f"[actor 1] {text}\n" in output, "each line stands behind its writer's name"


def test_signal_lets_a_learner_within_a_zip_save_before_all_end(jobs: Jobs) -> None:
    executable = jobs.directory / "experiment.zip"
    with zipfile.ZipFile(executable, "w") as archive:
        archive.writestr("__main__.py", _LAUNCHER.format(str(FAKE)))
    (jobs.directory / "slow_disk").touch()
    process = jobs.start(executable=executable)
    learner, *_ = jobs.wait_for_all()
    process.send_signal(signal.SIGINT)
    wait_until((jobs.directory / "learner.saving").exists)
    assert process.poll() is None
    assert is_alive(learner)
    (jobs.directory / "slow_disk").unlink()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert (jobs.directory / "learner.saved").exists()
    assert (jobs.directory / "actor.saved").exists(), "others are asked as well"
    assert jobs.num_starts() == [1, 1, 1, 1], "nothing is started again"
    assert not jobs.any_alive()


def test_evaluator_may_test_the_end_of_the_run_until_a_signal_comes(jobs: Jobs) -> None:
    (jobs.directory / "slow_disk").touch()
    process = jobs.start(learner="wait,0", evaluator="busy")
    os.kill(jobs.wait_for_all()[0], signal.SIGKILL)
    assert process.stdout
    assert any(line.startswith("[learner] is through") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert not (jobs.directory / "evaluator.saving").exists(), "it is not asked to end"
    wait_until(lambda: not jobs.any_alive())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_does_not_wait_or_is_killed_itself(jobs: Jobs, number: int) -> None:
    (jobs.directory / "slow_disk").touch()
    process = jobs.start(actor="deaf")
    pids = jobs.wait_for_all()
    process.send_signal(signal.SIGINT)
    wait_until((jobs.directory / "learner.saving").exists)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (128 + number if number == signal.SIGINT else -number)
    wait_until(lambda: not jobs.any_alive())
    assert not (jobs.directory / "learner.saved").exists()
    assert jobs.all() == pids


def test_learner_that_fails_at_once_is_given_up(jobs: Jobs) -> None:
    process = jobs.start(learner="3")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "[learner] failed 5 times at once; giving up" in output
    assert jobs.num_starts()[0] == 5

"""A job on one machine: who is started again, who ends it, and in which order all end."""

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.fake_cluster_program import starts
from tests.fakes.programs import ROOT, is_alive, wait_until

_PROGRAM = ROOT / "bazel" / "cluster" / "run_local.py"
_FAKE = ROOT / "tests" / "fakes" / "fake_cluster_program.py"
_PROCESSES = ("learner", "actor0", "actor1", "evaluator")
# Waits for the program it starts, and leaves it alone when told to end: so does a zip of Bazel's.
_LAUNCHER = (
    "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, {!r}, *sys.argv[1:]]))"
)


class Jobs:
    """Starts jobs of the stand-in; kills what is left of them."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._processes: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: str, executable: Path = _FAKE, **behaviour: str
    ) -> subprocess.Popen[str]:
        environment = {f"FAKE_{role.upper()}": words for role, words in behaviour.items()}
        own = [f"--executable={executable}", "--actor_jobs=2", "--evaluator"]
        own += ["--restart_seconds=0.01", *arguments]
        process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), *own],
            env=os.environ | {"FAKE_DIR": str(self.directory)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        return process

    def wait_for_all(self) -> list[int]:
        """Waits until every process runs; returns their ids."""
        wait_until(lambda: all(starts(self.directory, each) for each in _PROCESSES))
        return self.all()

    def all(self) -> list[int]:
        """Returns the ids of whatever was started so far."""
        return [start["pid"] for each in _PROCESSES for start in starts(self.directory, each)]

    def any_alive(self) -> bool:
        return any(map(is_alive, self.all()))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        wait_until(lambda: not self.any_alive())


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


def test_all_end_when_the_learner_is_through(jobs: Jobs) -> None:
    """Its first life is over before it is through, and all others are up by then."""
    process = jobs.start(learner="wait,0", actor="1,kill,0,wait", evaluator="0")
    os.kill(jobs.wait_for_all()[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert len(starts(jobs.directory, "learner")) == 2
    assert not jobs.any_alive()
    assert "[learner] was ended by signal 9; starts again in 0.01 s\n" in output


def test_processes_are_told_who_they_are(jobs: Jobs) -> None:
    """And who wrote a line is told before it."""
    flag_file = jobs.directory / "job.flags"
    flag_file.write_text("# Pong.\n--level_name=pong\n")
    own = ["--logdir=runs/x", "--port=8471", f"--flag_file={flag_file}"]
    process = jobs.start(*own, "--use_popart")
    jobs.wait_for_all()
    flags, address = ["--level_name=pong", "--use_popart"], "--learner_address=127.0.0.1:8471"
    records = {each: starts(jobs.directory, each)[0] for each in _PROCESSES}
    assert {each: record["arguments"] for each, record in records.items()} == {
        "learner": [*flags, "--job_name=learner", address, "--logdir=runs/x"],
        "actor0": [*flags, "--job_name=actor", "--task=0", address],
        "actor1": [*flags, "--job_name=actor", "--task=1", address],
        "evaluator": [*flags, "--job_name=evaluator", "--logdir=runs/x"],
    }
    devices = {each: record["devices"] for each, record in records.items()}
    assert devices.pop("learner") == os.environ.get("CUDA_VISIBLE_DEVICES")
    assert set(devices.values()) == {"-1"}, "GPUs are the learner's"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    for name, role in (("learner", "learner"), ("actor 0", "actor"), ("actor 1", "actor")):
        for text in (f"{role} says wait", "over", "and an unfinished line"):
            assert f"[{name}] {text}\n" in output
    assert "runs whatever it is sent" in output.splitlines()[0]


def test_actors_that_die_are_started_again_and_those_that_are_through_are_not(jobs: Jobs) -> None:
    process = jobs.start(actor="1,kill,0,wait")
    wait_until(lambda: len(starts(jobs.directory, "actor0")) == 3)
    wait_until(lambda: len(starts(jobs.directory, "actor1")) == 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert len(jobs.all()) == 8


def test_signal_lets_a_learner_within_a_zip_save_before_all_end(jobs: Jobs) -> None:
    """Its launcher dies of the signal at which the program saves."""
    executable = jobs.directory / "experiment.zip"
    with zipfile.ZipFile(executable, "w") as archive:
        archive.writestr("__main__.py", _LAUNCHER.format(str(_FAKE)))
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
    assert len(jobs.all()) == len(_PROCESSES), "nothing is started again"
    assert not jobs.any_alive()


def test_second_signal_does_not_wait(jobs: Jobs) -> None:
    (jobs.directory / "slow_disk").touch()
    process = jobs.start()
    jobs.wait_for_all()
    process.send_signal(signal.SIGINT)
    wait_until((jobs.directory / "learner.saving").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert not (jobs.directory / "learner.saved").exists()
    wait_until(lambda: not jobs.any_alive())


@pytest.mark.parametrize("signalled", [False, True])
def test_evaluator_may_test_the_end_of_the_run_until_a_signal_comes(
    jobs: Jobs, signalled: bool
) -> None:
    (jobs.directory / "slow_disk").touch()
    process = jobs.start(learner="wait,0", evaluator="busy")
    os.kill(jobs.wait_for_all()[0], signal.SIGKILL)
    assert process.stdout
    assert any(line.startswith("[learner] is through") for line in process.stdout)
    if signalled:
        process.send_signal(signal.SIGINT)
    else:
        (jobs.directory / "slow_disk").unlink()
    process.communicate(timeout=60)
    assert process.returncode == (128 + signal.SIGINT if signalled else 0)
    assert not (jobs.directory / "evaluator.saving").exists(), "it is not asked to end"
    wait_until(lambda: not jobs.any_alive())


@pytest.mark.parametrize("behaviour", ["wait", "deaf"])
def test_nothing_is_left_when_it_is_killed_itself(jobs: Jobs, behaviour: str) -> None:
    process = jobs.start(learner=behaviour, actor=behaviour, evaluator=behaviour)
    pids = jobs.wait_for_all()
    process.kill()
    wait_until(lambda: not jobs.any_alive())
    assert jobs.all() == pids


@pytest.mark.parametrize(("code", "words"), [(3, "learner says 3"), (126, "cannot be started: ")])
def test_learner_that_fails_at_once_is_given_up(jobs: Jobs, code: int, words: str) -> None:
    text = jobs.directory / "text"
    text.write_text("text\n")
    text.chmod(0o700)
    process = jobs.start(learner="3", executable=_FAKE if code == 3 else text)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"[learner] {words}" in output
    assert "[learner] failed 5 times at once; giving up" in output
    assert len(starts(jobs.directory, "learner")) == (5 if code == 3 else 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--actor_jobs=1"], "--executable"),
        (["--executable=gone.py", "--actor_jobs=1"], "--executable=gone.py is no file"),
        ([f"--executable={ROOT / 'Makefile'}", "--actor_jobs=1"], "is no program"),
        ([f"--executable={_FAKE}", "--actor_jobs=0"], "--actor_jobs must be"),
        ([f"--executable={_FAKE}", "--actor_jobs=1", "--port=-1"], "--port must lie"),
        ([f"--executable={_FAKE}", "--actor_jobs=1", "--restart_seconds=nan"], "got nan"),
    ],
)
def test_impossible_job_is_answered_with_one_line(arguments: list[str], expected: str) -> None:
    command = [sys.executable, str(_PROGRAM), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert expected in line

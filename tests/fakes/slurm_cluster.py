"""A real Slurm on this machine, which keeps all files of its daemons in one directory.

Each node is a `slurmd` of its own that claims four cores; nothing binds jobs to them.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
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
    """Slurm with nodes `node0`, `node1` and so on, for as long as the block lasts."""

    def __init__(self, directory: Path, num_nodes: int):
        self.directory = directory
        self.nodes = [f"node{index}" for index in range(num_nodes)]
        self.environment = os.environ | {"PATH": _PATH, "SLURM_CONF": str(directory / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = _free_ports(1 + num_nodes)
        host = socket.gethostname().partition(".")[0]
        (directory / "state").mkdir()
        text = _CONFIGURATION.format(
            directory=directory, host=host, ports=ports, user=getpass.getuser()
        )
        for name, port in zip(self.nodes, ports[1:], strict=True):
            (directory / f"spool-{name}").mkdir()
            text += _NODE.format(name=name, host=host, port=port) + "\n"
        (directory / "slurm.conf").write_text(text)
        key = directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    def __enter__(self) -> "SlurmCluster":
        try:
            files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
            options = [f"--{f}={self.directory}/munge.{f.removesuffix('-file')}" for f in files]
            self._start("munged", "--foreground", "--force", *options)
            self._wait((self.directory / "munge.socket").exists)
            self._start("slurmctld", "-D", "-i")
            for name in self.nodes:
                self.start_node(name)
            self._wait(lambda: self.run("sinfo", "-h", "-o", "%T %D") == f"idle {len(self.nodes)}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if "slurmctld" in self._daemons:
            subprocess.run(
                ["scancel", "--me"], env=self.environment, capture_output=True, timeout=30
            )
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and self.run("squeue", "-h", "-o", "%i", check=False):
                time.sleep(0.5)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for name in self.nodes:  # A daemon does not know all that ran on its node before it.
            self._kill_jobs(name)

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
        for process in _processes_of_jobs(self.environment["SLURM_CONF"], node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def run(self, *command: str, check: bool = True) -> str:
        """Returns what one of Slurm's programs wrote."""
        result = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60
        )
        if check and result.returncode:
            raise RuntimeError(f"{command} ended with {result.returncode}: {result.stderr}")
        return result.stdout.strip()

    def _start(self, name: str, *arguments: str) -> None:
        program = shutil.which(name.partition("-")[0], path=_PATH)
        with (self.directory / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [str(program), *arguments],
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                if ready():
                    return
            except RuntimeError:
                pass
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise RuntimeError(f"{name} ended: {self.directory}/{name}.out")
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm did not start: see {self.directory}")
            time.sleep(0.2)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _processes_of_jobs(configuration: str, node: str) -> list[int]:
    """Lists what jobs run on the node, with the daemons of their steps."""
    wanted = {f"SLURM_CONF={configuration}".encode(), f"SLURMD_NODENAME={node}".encode()}
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            if wanted <= set(variables):
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                found.add(int(process.name))
                if Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                    found.add(parent)
    return sorted(found)

"""Runs a cluster's job as processes on this machine: a learner, actor jobs, maybe an evaluator.

  python bazel/cluster/run_local.py --executable=experiment.py --actor_jobs=2 --evaluator \
    --logdir=runs/pong --level_name=pong --use_popart --num_actors=16

All arguments that are not this program's own are flags of the experiment. Each line that a process
writes is passed on behind its name. A process that dies is started again, later with each death
in a row. The end comes with the learner's: when it is through, when SIGINT or SIGTERM has made it
save (a second signal does not wait for that), or when it fails again and again. Its exit code is
this program's. Once it is through, the evaluator may test the run's end, until a signal comes.

However this program ends, by SIGKILL as well, no process of its job stays: all of them are in one
process group, whose leader does nothing but read from a pipe that only this program holds. At the
pipe's end it kills the group. (Processes that leave the group are left; those of environments do,
and end with the actor that they belong to.)

A process is over when its output is, since a Python zip's launcher may die before the program
that it holds: that one may still be writing to the run directory.
"""

import argparse
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from scalable_agent_popart.system.supervisor import Group, Restarts, describe_exit

_MAX_PAUSE_SECONDS = 60.0
# A process that lived so long did not fail at once.
_HEALTHY_SECONDS = 60.0
# Restarts in a row after which a learner that fails is thought hopeless. Actors may have to wait
# for it for long.
_MAX_LEARNER_RESTARTS = 4
# What actors and evaluator have to end in, once the learner is gone.
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_CANNOT_START = 126  # As shells say it.


@dataclass(frozen=True)
class LocalJob:
    """A job as processes of this machine.

    Attributes:
      executable: path of a program, a Python zip or a Python script.
      flags: of the experiment, for all processes.
      logdir: for learner and evaluator; None leaves the default.
      pause_seconds: before a process that died is started again for the first time.
    """

    executable: Path
    flags: tuple[str, ...]
    num_actor_jobs: int
    evaluator: bool
    logdir: str | None
    port: int
    pause_seconds: float

    def commands(self) -> dict[str, list[str]]:
        """Name of a process to its command; the learner's is the first."""
        address = [f"--learner_address=127.0.0.1:{self.port}"]
        logdir = [f"--logdir={self.logdir}"] if self.logdir is not None else []
        commands = {"learner": ["--job_name=learner", *address, *logdir]}
        for task in range(self.num_actor_jobs):
            commands[f"actor {task}"] = ["--job_name=actor", f"--task={task}", *address]
        if self.evaluator:
            commands["evaluator"] = ["--job_name=evaluator", *logdir]
        start = [str(self.executable), *self.flags]
        if self.executable.suffix in (".py", ".zip"):
            start.insert(0, sys.executable)
        return {name: [*start, *own] for name, own in commands.items()}


class Process:
    """One of a job's processes, started again whenever it fails.

    Attributes:
      file: descriptor to read from or wait for while it runs: its output, and after that its end.
      exit_code: of its last life; 1 before the first has ended.
      over: whether it is not to be started any more.
    """

    def __init__(self, name: str, command: Sequence[str], group: Group, first_pause: float):
        self._name = name
        self._command = command
        self._group = group
        self._environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        max_restarts = math.inf
        if name == "learner":
            max_restarts = _MAX_LEARNER_RESTARTS
        else:
            self._environment["CUDA_VISIBLE_DEVICES"] = "-1"  # GPUs are the learner's.
        self._restarts = Restarts(first_pause, _MAX_PAUSE_SECONDS, max_restarts)
        self._due = 0.0
        self._unfinished_line = b""
        self.file: int | None = None
        self.exit_code = 1
        self.over = False

    def start_if_due(self) -> None:
        """Starts it, unless it runs, is over or pauses."""
        if self.file is not None or self.over or time.monotonic() < self._due:
            return
        try:
            self._child = self._group.start(
                self._command, output=subprocess.PIPE, environment=self._environment
            )
        except OSError as error:
            _say(self._name, f"cannot be started: {error}")
            self._handle_exit(_CANNOT_START, healthy=False)
            return
        assert self._child.output
        self.file = self._child.output.fileno()
        if self.over:  # A signal came meanwhile, too early for this process to be asked.
            self._child.send_signal(signal.SIGTERM)

    def attend(self) -> None:
        """Prints the lines that it has printed, or handles its end.

        What a progress bar writes over itself, after carriage returns, are lines as well.
        """
        if self.file == self._child.ends:
            code = self._child.wait()
            assert code is not None
            self.file = None
            self._handle_exit(code, time.monotonic() - self._child.began >= _HEALTHY_SECONDS)
            return
        assert self.file is not None
        chunk = os.read(self.file, 2**16)
        *lines, rest = re.split(rb"[\r\n]+", self._unfinished_line + (chunk or b"\n"))
        self._unfinished_line = rest
        for line in filter(None, lines):
            _say(self._name, line.decode(errors="replace"))
        if not chunk:
            self.file = self._child.ends

    def _handle_exit(self, code: int, healthy: bool) -> None:
        self.exit_code = code
        if self.over or code == 0:
            self.over = True
            return
        pause = self._restarts.pause(healthy)
        if pause is None:
            _say(self._name, f"failed {self._restarts.deaths} times at once; giving up")
            self.over = True
        else:
            _say(self._name, f"{describe_exit(code)}; starts again in {pause:g} s")
            self._due = time.monotonic() + pause


class LocalRun:
    """Keeps a job's processes running until the learner is done."""

    def __init__(self, job: LocalJob, group: Group):
        self._group = group
        self._processes = {
            name: Process(name, command, group, job.pause_seconds)
            for name, command in job.commands().items()
        }
        self._stopping = False

    def run(self) -> int:
        """Returns the learner's last exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)
        learner, evaluator = self._processes["learner"], self._processes.get("evaluator")
        while not learner.over or learner.file is not None:
            self._attend()
        through = learner.exit_code == 0 and not self._stopping
        self._start_no_more()
        if through and evaluator and evaluator.file is not None:
            _say("learner", "is through; the evaluator is waited for, until a signal comes")
            while evaluator.file is not None:
                self._attend()
        self._group.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._attend() and time.monotonic() < deadline:
            pass
        return learner.exit_code

    def _start_no_more(self) -> None:
        self._stopping = True
        for process in self._processes.values():
            process.over = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ends the run, the learner's way first and then any way."""
        if self._stopping:
            sys.exit(128 + number)
        self._start_no_more()
        self._group.send_signal(signal.SIGTERM)

    def _attend(self) -> bool:
        """Starts what is due and passes on what is printed; returns whether anything ran."""
        for process in self._processes.values():
            process.start_if_due()
        running = {p.file: p for p in self._processes.values() if p.file is not None}
        poll = select.poll()
        for file in running:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(1000 * _POLL_SECONDS):
            running[file].attend()
        return bool(running)


def _say(name: str, line: str) -> None:
    print(f"[{name}] {line}", flush=True)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"error: {message}")


def _job(arguments: Sequence[str]) -> LocalJob:
    parser = _Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--executable", required=True, help="a program, a Python zip or a Python script")
    add("--actor_jobs", type=int, required=True, help="number of actor processes")
    add("--evaluator", action=argparse.BooleanOptionalAction, default=False)
    add("--flag_file", help="file of flags of the experiment")
    add("--logdir", help="run directory")
    add("--port", type=int, default=0, help="of the learner; default: a free one")
    add("--restart_seconds", type=float, default=1.0, help="first pause before a restart")
    own, flags = parser.parse_known_args(arguments)
    # A program that Bazel starts finds its files from here, its user's from where that one is.
    executable = Path(own.executable).absolute()
    if not executable.is_file():
        parser.error(f"--executable={own.executable} is no file")
    if executable.suffix not in (".py", ".zip") and not os.access(executable, os.X_OK):
        parser.error(f"--executable={own.executable} is no program")
    if own.flag_file and not Path(own.flag_file).is_file():
        parser.error(f"--flag_file={own.flag_file} is no file")
    if own.actor_jobs < 1:
        parser.error(f"--actor_jobs must be 1 or above, got {own.actor_jobs}")
    if not 0 <= own.port < 2**16:
        parser.error(f"--port must lie in [0, 65535], got {own.port}")
    if not own.restart_seconds > 0:
        parser.error(f"--restart_seconds must be above 0, got {own.restart_seconds}")
    lines = Path(own.flag_file).read_text().splitlines() if own.flag_file else []
    return LocalJob(
        executable=executable,
        flags=(
            *(line for line in lines if line.startswith("--")),
            *(flag for flag in flags if flag != "--"),
        ),
        num_actor_jobs=own.actor_jobs,
        evaluator=own.evaluator,
        logdir=own.logdir,
        port=own.port or _free_port(),
        pause_seconds=own.restart_seconds,
    )


def _free_port() -> int:
    """A port that was free a moment ago, and is not given away again soon."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def main(arguments: Sequence[str]) -> int:
    """Runs the job; returns the exit code."""
    job = _job(arguments)
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    print(
        f"note: the learner takes rollouts on port {job.port}, on all interfaces of this machine, "
        "and runs whatever it is sent; let a firewall close it to others",
        flush=True,
    )

    with Group() as group:
        return LocalRun(job, group).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

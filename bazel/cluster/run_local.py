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
import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_LONG_PAUSE_SECONDS = 60.0
# A process that lived so long did not fail at once.
_HEALTHY_SECONDS = 60.0
# Of the learner's, after which it is thought hopeless. Actors may have to wait for it for long.
_MAX_QUICK_FAILURES = 5
# What actors and evaluator have to end in, once the learner is gone.
_GRACE_SECONDS = 5.0

_CANNOT_START = 126  # As shells say it.

_GUARD = """\
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
sys.stdin.read()
os.killpg(0, signal.SIGKILL)
"""


@dataclass(frozen=True)
class Job:
    """What is to run.

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


class Group:
    """The process group of all that is started; use as a context manager."""

    def __enter__(self) -> "Group":
        self._guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._guard.stdout
        self._guard.stdout.readline()  # From now on it outlives TERM.
        return self

    def __exit__(self, *exception: object) -> None:
        """Kills whatever is left."""
        self._guard.communicate()

    async def start(self, command: Sequence[str], environment: dict[str, str]) -> Process:
        """Starts a process in the group."""
        supervisor = os.getpid()

        def leave_if_alone() -> None:
            # In the group by now: dead before this, it is seen here, dead later, by the guard.
            if os.getppid() != supervisor:
                os._exit(1)

        return await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=environment,
            process_group=self._guard.pid,
            preexec_fn=leave_if_alone,
        )

    def terminate(self) -> None:
        """Asks all processes to end."""
        os.killpg(self._guard.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends all processes; the group can start no more."""
        os.killpg(self._guard.pid, signal.SIGKILL)


class Supervisor:
    """Keeps a job's processes running until the learner is done."""

    def __init__(self, job: Job, group: Group):
        self._job = job
        self._group = group
        self._stopping = asyncio.Event()
        self._learner_exit_code = 1

    async def run(self) -> int:
        """Returns the learner's last exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop, number)
        tasks = {
            name: asyncio.create_task(self._keep_running(name, command))
            for name, command in self._job.commands().items()
        }
        await tasks.pop("learner")
        through = self._learner_exit_code == 0 and not self._stopping.is_set()
        self._stopping.set()  # Nothing is started any more.
        if through and "evaluator" in tasks:
            _say("learner", "is through; the evaluator is waited for, until a signal comes")
            await tasks["evaluator"]
        self._group.terminate()
        _, alive = await asyncio.wait(tasks.values(), timeout=_GRACE_SECONDS)
        if alive:
            self._group.kill()
            await asyncio.wait(alive)
        return self._learner_exit_code

    def _stop(self, number: int) -> None:
        """Ends the run, the learner's way first and then any way."""
        if self._stopping.is_set():
            sys.exit(128 + number)
        self._stopping.set()
        self._group.terminate()

    async def _keep_running(self, name: str, command: list[str]) -> None:
        is_learner = name == "learner"
        # GPUs are the learner's.
        environment = os.environ | ({} if is_learner else {"CUDA_VISIBLE_DEVICES": "-1"})
        environment["PYTHONUNBUFFERED"] = "1"
        failures = 0  # Quick ones, in a row.
        while not self._stopping.is_set():
            began = time.monotonic()
            exit_code = await self._run_once(name, command, environment)
            if is_learner:
                self._learner_exit_code = exit_code
            if exit_code == 0 or self._stopping.is_set():
                return
            failures = failures + 1 if time.monotonic() - began < _HEALTHY_SECONDS else 1
            if is_learner and failures == _MAX_QUICK_FAILURES:
                _say(name, f"failed {failures} times at once; giving up")
                return
            pause = min(self._job.pause_seconds * 2 ** (failures - 1), _LONG_PAUSE_SECONDS)
            _say(name, f"ended with exit code {exit_code}; starts again in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _run_once(self, name: str, command: list[str], environment: dict[str, str]) -> int:
        try:
            process = await self._group.start(command, environment)
        except OSError as error:
            _say(name, f"cannot be started: {error}")
            return _CANNOT_START
        assert process.stdout
        if self._stopping.is_set():  # Too late to have been asked with the others.
            process.terminate()
        await _pass_on(name, process.stdout)
        exit_code = await process.wait()
        return exit_code if exit_code >= 0 else 128 - exit_code


async def _pass_on(name: str, output: asyncio.StreamReader) -> None:
    """Prints lines as they come, until the last process that may write them is gone.

    What a progress bar writes over itself, after carriage returns, are lines as well.
    """
    rest = b""
    while chunk := await output.read(2**16):
        *lines, rest = re.split(rb"[\r\n]+", rest + chunk)
        for line in filter(None, lines):
            _say(name, line.decode(errors="replace"))
    if rest:
        _say(name, rest.decode(errors="replace"))


def _say(name: str, line: str) -> None:
    print(f"[{name}] {line}", flush=True)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"error: {message}")


def _job(arguments: Sequence[str]) -> Job:
    parser = _Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--executable", required=True, help="a program, a Python zip or a Python script")
    add("--actor_jobs", type=int, required=True, help="number of actor processes")
    add("--evaluator", action=argparse.BooleanOptionalAction, default=False)
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
    if own.actor_jobs < 1:
        parser.error(f"--actor_jobs must be 1 or above, got {own.actor_jobs}")
    if not 0 <= own.port < 2**16:
        parser.error(f"--port must lie in [0, 65535], got {own.port}")
    if not own.restart_seconds > 0:
        parser.error(f"--restart_seconds must be above 0, got {own.restart_seconds}")
    return Job(
        executable=executable,
        flags=tuple(flag for flag in flags if flag != "--"),
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

    async def run() -> int:
        return await Supervisor(job, group).run()

    with Group() as group:
        return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

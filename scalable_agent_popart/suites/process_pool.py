"""Environments in processes of their own, so that a slow or dying one delays no other.

A child that is gone is counted and started again, later with each death in a row. One that hangs is
killed first. See `environment_process` for what passes between parent and children.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from environments import EnvironmentLostError, EpisodeCounter, InvalidStepError, Ready, StepOutput
from scalable_agent_popart.suites import environment_process
from scalable_agent_popart.suites.environment_process import ANSWER, MakeEnvironment
from scalable_agent_popart.system import supervisor
from scalable_agent_popart.system.supervisor import Child, Restarts

_COMMAND = "from scalable_agent_popart.suites.environment_process import play; play()"
_PIPE_BYTES = 2**16  # Linux keeps so much.
_GATHER_SECONDS = 0.01  # Ready ones wait so long for others to share a call of the policy.
_SLOW_SECONDS = 0.1  # A process with the turn for longer may have ended; nobody waits for it.
_FIRST_PAUSE_SECONDS, _MAX_RESTARTS_IN_A_ROW = 0.1, 8
_HEALTHY_STEPS = 10  # A death after so many begins a new row.
_MAX_TURN_SECONDS = 15 * 60.0  # Compiling a map on a busy machine takes minutes.
_UNSEEN_SECONDS = 5.0
_GRACE_SECONDS = 5.0
_MAX_OUTPUT_BYTES = 2**18  # The output's end may hold a map compiler's (10 kB).


class ProcessPool:
    """N environments, each in a process of its own: an `environments.EnvironmentPool`."""

    lockstep = False

    def __init__(
        self, names: Sequence[str], make: Sequence[MakeEnvironment], task_ids: np.ndarray, spec: Any
    ):
        """Messages use the names; `make` must pickle; `spec` is an observation's `ArraySpec`s."""
        size = len(task_ids)
        self.task_ids, self.groups = task_ids, np.arange(size)
        self.restarts = np.zeros(size, np.int64)
        self._names, self._make = names, make
        self._resources = contextlib.ExitStack()
        # Through the pipe, children send the numbers of environments that have returned the turn.
        self._answers, self._answer = os.pipe()
        os.set_blocking(self._answers, False)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        memory = _create_shared_memory()
        for file in (memory, self._answers, self._answer):
            self._resources.callback(os.close, file)
        self._shared = (memory, size, spec)
        self._rows = environment_process.Rows(*self._shared)
        self._counter = EpisodeCounter(size)
        self._children: dict[int, Child] = {}
        self._policies = [
            Restarts(_MAX_RESTARTS_IN_A_ROW, _FIRST_PAUSE_SECONDS) for _ in range(size)
        ]
        self._steps = np.zeros(size, np.int64)  # The present processes' steps, from -1.
        self._due = np.full(size, np.inf)  # The times to start processes again.
        self._has_turn, self._answered = np.zeros((2, size), bool)  # Received ones have neither.
        self._turn_began = np.zeros(size)
        self._seen = 0.0  # The time of the last look at the processes.
        self._logged: set[str] = set()  # Last words that a warning had.

    def start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="environment_processes_"))
        self._resources.callback(shutil.rmtree, self._directory, ignore_errors=True)
        self._resources.callback(self._end_children)
        for i in range(len(self.task_ids)):
            self._start(i)

    def receive(self, seconds: float) -> Ready:
        """Waits as in the protocol; once one is ready, a little longer for more than half."""
        end = time.monotonic() + seconds
        wait = 0.0  # Ended processes matter even if many others are ready.
        while True:
            self._attend(wait)
            ids = np.flatnonzero(self._answered)
            now = time.monotonic()
            expected = self._answered | (self._has_turn & (now - self._turn_began < _SLOW_SECONDS))
            if len(ids):  # The first moment of this decides.
                end = min(end, now + _GATHER_SECONDS)
            if 2 * len(ids) > np.count_nonzero(expected) or now >= end:
                break
            wait = min(end - now, self._due.min() - now, _SLOW_SECONDS)
        self._answered[ids] = False
        self._steps[ids] += 1
        self._has_turn[ids] = False
        reward, done, observation = self._rows.read(ids)
        fresh = self._steps[ids] == 0
        info = self._counter.step(reward, done & ~fresh, ids, begins=fresh)
        output = StepOutput(reward.astype(np.float32), info, done, observation)
        return Ready(ids, output, fresh)

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        self._rows.action[ids] = actions
        self._has_turn[ids] = True
        self._turn_began[ids] = time.monotonic()
        for i in ids.tolist():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # It has ended.
                self._children[i].connection.send(b".")

    def close(self) -> None:
        self._resources.close()

    def _end_children(self) -> None:
        for child in self._children.values():  # So all end at the same time.
            child.connection.close()
        supervisor.end(self._children.values(), _GRACE_SECONDS)

    def _attend(self, seconds: float) -> None:
        """Waits at most so long for an answer, and handles processes that end."""
        self._poll.poll(1000 * max(0.0, seconds))
        now = time.monotonic()
        unseen, self._seen = now - self._seen, now
        if unseen > _UNSEEN_SECONDS:  # The whole machine may have stood still meanwhile.
            self._turn_began = np.minimum(self._turn_began + unseen, now)
        slow = self._has_turn & ~self._answered & (now - self._turn_began > _SLOW_SECONDS)
        ended = []
        for i in np.flatnonzero(slow).tolist():
            if self._children[i].wait(0.0) is not None:
                ended.append(i)
            elif now - self._turn_began[i] > _MAX_TURN_SECONDS:
                self._children[i].send_signal(signal.SIGKILL)
        with contextlib.suppress(BlockingIOError):  # There is no answer.
            # Answers are read last, because a child may have answered before it ended.
            self._answered[np.frombuffer(os.read(self._answers, _PIPE_BYTES), ANSWER)] = True
        for i in ended:
            self._handle_exit(i)
        for i in np.flatnonzero(self._due <= now).tolist():
            self._start(i)

    def _start(self, i: int) -> None:
        self._steps[i], self._due[i] = -1, np.inf
        self._has_turn[i] = True
        self._turn_began[i] = time.monotonic()
        attempt = int(self.restarts[i])
        directory = self._directory / f"{i}_{attempt}"
        directory.mkdir()
        payload = (self._make[i], attempt, i, self._answer, self._shared)
        files = (self._answer, self._shared[0])
        self._children[i] = _start_child(directory, [_COMMAND], payload, files)

    def _handle_exit(self, i: int) -> None:
        """Removes what a child leaves behind, and decides when to start its successor, if ever."""
        self._has_turn[i] = self._answered[i] = False
        code = self._children.pop(i).wait()
        assert code is not None
        if time.monotonic() - self._turn_began[i] > _MAX_TURN_SECONDS:
            end = f"was killed, having hung for {_MAX_TURN_SECONDS:g} s"
        else:
            end = supervisor.describe_exit(code)
        directory = self._directory / f"{i}_{self.restarts[i]}"
        output = supervisor.tail(directory / "output", _MAX_OUTPUT_BYTES)
        words = supervisor.last_words(output) + supervisor.where_raised(output)
        shutil.rmtree(directory, ignore_errors=True)
        if code == environment_process.INVALID:
            raise InvalidStepError(f"{self._names[i]} (environment {i}): {words}")
        if not self.restarts[i] and code == environment_process.REFUSED and self._steps[i] < 0:
            raise EnvironmentLostError(f"{self._names[i]} cannot be played: {words}")
        what = f"the process of {self._names[i]} {end}"
        pause = self._policies[i].pause(healthy=bool(self._steps[i] >= _HEALTHY_STEPS))
        if pause is None:
            row = f"the last of {self._policies[i].deaths} in a row; its last words: {words}"
            raise EnvironmentLostError(f"{what}, {row}")
        message = "as before" if words in self._logged else words
        self._logged.add(words)
        logging.warning("%s; starting another in %g s: %s", what, pause, message)
        self.restarts[i] += 1
        self._due[i] = time.monotonic() + pause


def _create_shared_memory() -> int:
    """Returns a descriptor of memory that children can share, as long as anyone holds it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("environments")
    # Python, such as conda's and uv's, may be built for an older Linux.
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        return os.dup(file.fileno())


def _start_child(
    directory: Path, code: Sequence[str], payload: Any, files: Sequence[int] = ()
) -> Child:
    """Starts Python code with its arguments; its files and its `output` are in the directory."""
    # A child's arrays are small. With 0, Mesa's software renderer draws in the calling thread.
    variables = {
        **supervisor.python_environment(),
        **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")},
        "LP_NUM_THREADS": "0",
        "TMPDIR": str(directory),
    }
    with open(directory / "output", "ab") as output:
        return Child([sys.executable, "-P", "-u", "-c", *code], payload, files, output, variables)


def run_child(code: str, *arguments: str, payload: Any = None) -> tuple[int | None, str]:
    """Runs Python code in a process, which it may end; returns the exit code and all output."""
    with tempfile.TemporaryDirectory() as directory:
        exit_code = _start_child(Path(directory), [code, *arguments], payload).wait()
        return exit_code, Path(directory, "output").read_text(errors="replace")

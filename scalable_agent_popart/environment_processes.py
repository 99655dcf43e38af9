"""Environments in processes of their own, so that a slow or dying one holds up nobody else.

Parent and child share a block of memory in which each environment has its rows, and a pair of
sockets over which one byte passes the turn: whoever has it may write the rows. An end of file
means that the other is gone. A child whose parent is gone closes its environment, removes its
files and ends; a child that is gone is started again, later each time, and counted.

No TensorFlow here, as in all that the children import.
"""

import contextlib
import mmap
import os
import pickle
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tree
from absl import logging

from environments import (
    ArraySpec,
    Environment,
    EnvironmentLostError,
    EpisodeCounter,
    Ready,
    StepOutput,
)

# Makes an environment, in its process. Given how often it was made before, so that it need not
# repeat what ended it, and a directory for its files, which is removed after it.
MakeEnvironment = Callable[[int, Path], Environment]

_TURN = b"."
_CHILD = "from scalable_agent_popart import environment_processes as p; p.play()"
# Exit code of a child whose environment could not even begin.
_REFUSED = 3
# How long environments that are ready wait for others to share a call of the policy.
_GATHER_SECONDS = 0.01
# Starting again after a death: how long it takes, doubling from the first in a row.
_FIRST_DELAY_SECONDS = 0.1
_MOST_DEATHS_IN_A_ROW = 8
# A death is not one in a row with those before if this many steps came between.
_SOUND_STEPS = 10
_GRACE_SECONDS = 5.0
_MAX_OUTPUT_BYTES = 2**20


class _Rows:
    """Arrays `[N, ...]` over shared memory: action, reward, done and observation."""

    def __init__(self, memory: int, num_environments: int, observation: Any):
        """Maps the memory, making it large enough.

        Args:
          memory: file descriptor.
          num_environments: N.
          observation: nested `ArraySpec`s of one environment.
        """
        scalars = [ArraySpec((), np.int32), ArraySpec((), np.float32), ArraySpec((), np.bool_)]
        specs = [*scalars, *tree.flatten(observation)]
        shapes = [(num_environments, *spec.shape) for spec in specs]
        sizes = [
            int(np.prod(shape)) * np.dtype(spec.dtype).itemsize
            for shape, spec in zip(shapes, specs, strict=True)
        ]
        ends = np.cumsum([-(-size // 64) * 64 for size in sizes]).tolist()  # Whole cache lines.
        os.ftruncate(memory, ends[-1])
        buffer = mmap.mmap(memory, ends[-1])
        arrays = [
            np.ndarray(shape, spec.dtype, buffer, offset)
            for shape, spec, offset in zip(shapes, specs, [0, *ends], strict=False)
        ]
        self.action, self.reward, self.done = arrays[:3]
        self.observation = tree.unflatten_as(observation, arrays[3:])

    def write(self, row: int, reward: float, done: bool, observation: Any) -> None:
        """Stores a step of one environment."""
        self.reward[row] = reward
        self.done[row] = done

        def store(array: np.ndarray, value: Any) -> None:
            array[row] = value

        tree.map_structure(store, self.observation, observation)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        """Copies of reward, done and observation of some environments, `[M, ...]`."""
        observation = tree.map_structure(lambda array: array[rows], self.observation)
        return self.reward[rows], self.done[rows], observation


@dataclass(frozen=True)
class _Task:
    """What a child is told through its standard input."""

    make: MakeEnvironment
    attempt: int
    directory: Path
    row: int
    connection: int  # file descriptors
    memory: int
    num_environments: int
    observation: Any


def play() -> None:
    """A child's life: makes its environment and steps it until its parent is gone."""
    task: _Task = pickle.load(sys.stdin.buffer)
    rows = _Rows(task.memory, task.num_environments, task.observation)
    connection = socket.socket(fileno=task.connection)
    try:
        environment = task.make(task.attempt, task.directory)
        rows.write(task.row, 0.0, True, environment.reset())
    except Exception:
        traceback.print_exc()
        sys.exit(_REFUSED)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(_TURN)
        while connection.recv(1):
            reward, done, observation = environment.step(int(rows.action[task.row]))
            rows.write(task.row, reward, done, observation)
            if done and os.fstat(sys.stderr.fileno()).st_size > _MAX_OUTPUT_BYTES:
                os.ftruncate(sys.stderr.fileno(), 0)
            connection.send(_TURN)
    environment.close()
    shutil.rmtree(task.directory, ignore_errors=True)
    with contextlib.suppress(OSError):  # The last of the pool removes what held them all.
        task.directory.parent.rmdir()


class _Child:
    """An environment's process, as its parent sees it."""

    def __init__(self, spec: _Task, connection: socket.socket, process: subprocess.Popen):
        self.connection = connection
        self.process = process
        self.attempt = spec.attempt
        self.directory = spec.directory
        self.steps = -1  # The first turn it passes is no step.

    def send(self) -> None:
        """Passes the turn."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # Found out on receiving.
            self.connection.send(_TURN)

    def answered(self) -> bool:
        """Takes the turn back; False if the process is gone."""
        try:
            turn = self.connection.recv(1)
        except ConnectionResetError:
            return False
        self.steps += len(turn)
        return bool(turn)

    def end(self, seconds: float) -> list[str]:
        """Waits so long for the process to end, then kills it; returns what it said last."""
        self.connection.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        try:
            with open(self.directory / "output", "rb") as output:
                output.seek(max(0, output.seek(0, os.SEEK_END) - 2000))
                words = output.read().decode(errors="replace").strip()
        except OSError:
            words = ""
        shutil.rmtree(self.directory, ignore_errors=True)
        return words.splitlines() or ["(it left no words)"]


class ProcessPool:
    """N environments, each in a process of its own: an `environments.EnvironmentPool`."""

    def __init__(
        self,
        names: Sequence[str],
        make: Sequence[MakeEnvironment],
        task_ids: np.ndarray,
        observation: Any,
    ):
        """Prepares the pool; `start` starts the processes.

        Args:
          names: what the environments play, for messages.
          make: makes each environment, in its process; must pickle.
          task_ids: int32 `[N]`.
          observation: nested `ArraySpec`s of one environment.
        """
        self.task_ids = task_ids
        self.restarts = np.zeros(len(task_ids), np.int64)
        self._names = names
        self._make = make
        self._observation = observation
        self._directory = Path(tempfile.mkdtemp(prefix="environment_processes_"))
        self._memory = os.memfd_create("environments")
        self._rows = _Rows(self._memory, len(task_ids), observation)
        self._counter = EpisodeCounter(len(task_ids))
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}
        self._due: dict[int, float] = {}  # Environment to when it is started again.
        self._deaths = np.zeros(len(task_ids), np.int64)  # In a row.
        self._waiting = 0  # Environments whose turn it is.

    def start(self) -> None:
        for i in range(len(self.task_ids)):
            self._start(i, attempt=0)

    def receive(self, seconds: float) -> Ready:
        """As in the protocol; once one is ready, waits a little for more than half to be.

        Raises:
          EnvironmentLostError: if an environment could not even begin, or died too often in a
            row.
        """
        ids = np.array(sorted(self._gather(seconds)), np.int64)
        reward, done, observation = self._rows.read(ids)
        fresh = np.array([self._children[i].steps == 0 for i in ids], bool)
        info = self._counter.step(reward, done & ~fresh, ids, begins=fresh)
        return Ready(ids, StepOutput(reward, info, done, observation), fresh)

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        self._rows.action[ids] = actions
        for i in ids.tolist():
            self._children[i].send()
        self._waiting += len(ids)

    def close(self) -> None:
        self._selector.close()
        for child in self._children.values():
            child.connection.close()  # All of them end at the same time.
        end = time.monotonic() + _GRACE_SECONDS
        for child in self._children.values():
            child.end(max(0.0, end - time.monotonic()))
        self._children.clear()
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _gather(self, seconds: float) -> list[int]:
        """Environments that have passed the turn back."""
        ready: list[int] = []
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for i in [i for i, due in self._due.items() if due <= now]:
                del self._due[i]
                self._start(i, int(self.restarts[i]))
            limit = min([end, *self._due.values()])
            for key, _ in self._selector.select(max(0.0, limit - now)):
                if self._children[key.data].answered():
                    if not ready:
                        end = min(end, time.monotonic() + _GATHER_SECONDS)
                    ready.append(key.data)
                    self._waiting -= 1
                else:
                    self._bury(key.data)
            if len(ready) > self._waiting or time.monotonic() >= end:
                return ready

    def _start(self, i: int, attempt: int) -> None:
        ours, theirs = socket.socketpair()
        directory = self._directory / f"{i}_{attempt}"
        directory.mkdir()
        task = _Task(
            self._make[i],
            attempt,
            directory,
            i,
            theirs.fileno(),
            self._memory,
            len(self.task_ids),
            self._observation,
        )
        with theirs, open(directory / "output", "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=_child_environment(directory),
                pass_fds=(theirs.fileno(), self._memory),
                start_new_session=True,  # Ctrl-C is for the parent.
            )
        assert process.stdin
        with contextlib.suppress(BrokenPipeError), process.stdin:
            pickle.dump(task, process.stdin)
        self._children[i] = _Child(task, ours, process)
        self._selector.register(ours, selectors.EVENT_READ, i)
        self._waiting += 1

    def _bury(self, i: int) -> None:
        """Sees to a child that is gone."""
        child = self._children.pop(i)
        self._waiting -= 1
        self._selector.unregister(child.connection)
        words = child.end(_GRACE_SECONDS)
        died = f"{self._names[i]} ended by itself with exit code {child.process.returncode}"
        if child.attempt == 0 and child.process.returncode == _REFUSED:
            raise EnvironmentLostError(f"{self._names[i]} cannot be played: {words[-1]}")
        self._deaths[i] = 1 if child.steps >= _SOUND_STEPS else self._deaths[i] + 1
        if self._deaths[i] > _MOST_DEATHS_IN_A_ROW:
            raise EnvironmentLostError(
                f"{died}, {self._deaths[i]} times in a row; its last words: {words[-1]}"
            )
        delay = _FIRST_DELAY_SECONDS * 2 ** int(self._deaths[i] - 1)
        self.restarts[i] += 1
        logging.warning("%s; starting it again in %g s. %s", died, delay, "\n".join(words[-5:]))
        self._due[i] = time.monotonic() + delay


def _child_environment(directory: Path) -> dict[str, str]:
    """The environment variables of a child."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    # Its arrays are small, and there are as many children as there are environments.
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    return {**os.environ, **threads, "PYTHONPATH": path, "TMPDIR": str(directory)}

"""Environments in processes of their own, so that a slow or dying one holds up nobody else.

Parent and children share a block of memory in which each environment has its rows. A byte over
a socket gives a child the turn; the child gives it back in its rows, and rings a bell that all
children share. An end of file on the socket means that the other is gone. A child whose parent
is gone closes its environment, removes its files and ends; a child that is gone is started again,
later each time, and counted.

No TensorFlow here, as in all that the children import.
"""

import contextlib
import mmap
import os
import pickle
import select
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
    """Arrays `[N, ...]` over shared memory.

    Attributes:
      answered: uint8, 1 from when a child gives the turn back until it is received.
      action: int32.
      reward: float32.
      done: bool.
      observation: nested, as specified.
    """

    def __init__(self, memory: int, num_environments: int, observation: Any):
        """Maps the memory, making it large enough.

        Args:
          memory: file descriptor.
          num_environments: N.
          observation: nested `ArraySpec`s of one environment.
        """
        scalars = [ArraySpec((), dtype) for dtype in (np.uint8, np.int32, np.float32, np.bool_)]
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
        self.answered, self.action, self.reward, self.done = arrays[:4]
        self.observation = tree.unflatten_as(observation, arrays[4:])

    def writer(self, row: int) -> Callable[[float, bool, Any], None]:
        """Of one environment's steps: takes reward, done and observation."""
        rewards, dones = self.reward[row : row + 1], self.done[row : row + 1]
        rooms = [array[row] for array in tree.flatten(self.observation)]

        def write(reward: float, done: bool, observation: Any) -> None:
            rewards[0] = reward
            dones[0] = done
            for room, value in zip(rooms, tree.flatten(observation), strict=True):
                room[...] = value

        return write

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
    bell: int
    memory: int
    num_environments: int
    observation: Any


def play() -> None:
    """A child's life: makes its environment and steps it until its parent is gone."""
    task: _Task = pickle.load(sys.stdin.buffer)
    rows = _Rows(task.memory, task.num_environments, task.observation)
    write, action = rows.writer(task.row), rows.action[task.row : task.row + 1]
    connection = socket.socket(fileno=task.connection)

    def give_turn_back(reward: float, done: bool, observation: Any) -> None:
        write(reward, done, observation)
        rows.answered[task.row] = 1
        os.eventfd_write(task.bell, 1)

    try:
        environment = task.make(task.attempt, task.directory)
        first = environment.reset()
    except Exception:
        traceback.print_exc()
        sys.exit(_REFUSED)
    give_turn_back(0.0, True, first)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1):
            reward, done, observation = environment.step(int(action[0]))
            give_turn_back(reward, done, observation)
            if done and os.fstat(sys.stderr.fileno()).st_size > _MAX_OUTPUT_BYTES:
                os.ftruncate(sys.stderr.fileno(), 0)
    environment.close()
    shutil.rmtree(task.directory, ignore_errors=True)
    with contextlib.suppress(OSError):  # The last of the pool removes what held them all.
        task.directory.parent.rmdir()


class _Child:
    """An environment's process, as its parent sees it."""

    def __init__(self, task: _Task, connection: socket.socket, process: subprocess.Popen):
        self.connection = connection
        self.process = process
        self.attempt = task.attempt
        self.directory = task.directory

    def give_turn(self) -> None:
        """Lets it step."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # Its end is found out.
            self.connection.send(_TURN)

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
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rows = _Rows(self._memory, len(task_ids), observation)
        self._counter = EpisodeCounter(len(task_ids))
        self._files = [self._memory, self._bell]
        self._selector = select.epoll()
        self._selector.register(self._bell, select.EPOLLIN)
        self._children: dict[int, _Child] = {}
        self._child_of: dict[int, int] = {}  # Socket to environment.
        # Of the present processes; the first turn they give back is no step.
        self._steps = np.zeros(len(task_ids), np.int64)
        self._due: dict[int, float] = {}  # Environment to when it is started again.
        self._deaths = np.zeros(len(task_ids), np.int64)  # In a row.
        self._has_turn = np.zeros(len(task_ids), bool)
        self._ended: set[int] = set()  # While they did not have the turn.

    def start(self) -> None:
        for i in range(len(self.task_ids)):
            self._start(i, attempt=0)

    def receive(self, seconds: float) -> Ready:
        """As in the protocol; once one is ready, waits a little for more than half to be.

        Raises:
          EnvironmentLostError: if an environment could not even begin, or died too often in a
            row.
        """
        ids = self._gather(seconds)
        self._rows.answered[ids] = 0
        self._steps[ids] += 1
        self._has_turn[ids] = False
        reward, done, observation = self._rows.read(ids)
        fresh = self._steps[ids] == 0
        info = self._counter.step(reward, done & ~fresh, ids, begins=fresh)
        return Ready(ids, StepOutput(reward, info, done, observation), fresh)

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        self._rows.action[ids] = actions
        self._has_turn[ids] = True
        for i in ids.tolist():
            if i in self._ended:
                self._ended.remove(i)
                self._bury(i)
            else:
                self._children[i].give_turn()

    def close(self) -> None:
        self._selector.close()
        for child in self._children.values():
            child.connection.close()  # All of them end at the same time.
        end = time.monotonic() + _GRACE_SECONDS
        for child in self._children.values():
            child.end(max(0.0, end - time.monotonic()))
        self._children.clear()
        shutil.rmtree(self._directory, ignore_errors=True)
        while self._files:
            os.close(self._files.pop())

    def _gather(self, seconds: float) -> np.ndarray:
        """Environments that have given the turn back."""
        end = time.monotonic() + seconds
        any_ready = False
        while True:
            ids = np.flatnonzero(self._rows.answered.copy())  # Children write to it meanwhile.
            now = time.monotonic()
            if len(ids) and not any_ready:
                any_ready = True
                end = min(end, now + _GATHER_SECONDS)
            if 2 * len(ids) > np.count_nonzero(self._has_turn) or now >= end:
                return ids
            for i in [i for i, due in self._due.items() if due <= now]:
                del self._due[i]
                self._start(i, int(self.restarts[i]))
            limit = min([end, *self._due.values()])
            for file, _ in self._selector.poll(max(0.0, limit - now)):
                if file == self._bell:
                    os.eventfd_read(self._bell)
                else:  # Nothing but an end of file ever comes from a child.
                    self._selector.unregister(file)
                    i = self._child_of.pop(file)
                    if self._has_turn[i]:
                        self._bury(i)
                    else:
                        self._ended.add(i)

    def _start(self, i: int, attempt: int) -> None:
        self._steps[i] = -1
        self._has_turn[i] = True
        self._rows.answered[i] = 0
        ours, theirs = socket.socketpair()
        directory = self._directory / f"{i}_{attempt}"
        directory.mkdir()
        task = _Task(
            self._make[i],
            attempt,
            directory,
            i,
            theirs.fileno(),
            self._bell,
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
                pass_fds=(theirs.fileno(), self._bell, self._memory),
                start_new_session=True,  # Ctrl-C is for the parent.
            )
        assert process.stdin
        with contextlib.suppress(BrokenPipeError), process.stdin:
            pickle.dump(task, process.stdin)
        self._children[i] = _Child(task, ours, process)
        self._child_of[ours.fileno()] = i
        self._selector.register(ours, select.EPOLLIN)

    def _bury(self, i: int) -> None:
        """Sees to a child that is gone, and to its successor."""
        child = self._children.pop(i)
        self._has_turn[i] = False
        self._rows.answered[i] = 0
        words = child.end(_GRACE_SECONDS)
        died = f"{self._names[i]} ended by itself with exit code {child.process.returncode}"
        if child.attempt == 0 and child.process.returncode == _REFUSED:
            raise EnvironmentLostError(f"{self._names[i]} cannot be played: {words[-1]}")
        self._deaths[i] = 1 if self._steps[i] >= _SOUND_STEPS else self._deaths[i] + 1
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

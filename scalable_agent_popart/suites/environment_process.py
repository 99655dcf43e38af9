"""The process of one environment, and what it shares with its parent, a `ProcessPool`.

Parent and children share a block of memory in which each environment has its rows. A byte over
a socket gives a child the turn; the child fills its rows and gives the turn back by writing its
number to a pipe that all children share. Both pass through the kernel, whose locks order what
is written to the rows before it is read, on processors of every kind. An end of file on the
socket means that the other is gone. A child whose parent is gone closes its environment and ends,
and the last of them removes the files of all.

No TensorFlow here, as in all that the children import.
"""

import contextlib
import fcntl
import mmap
import os
import pickle
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tree

from environments import ArraySpec, Environment

# Makes an environment, in its process. Given how often it was made before, so that it need not
# repeat what ended it, and a directory for its files, which is removed after it.
MakeEnvironment = Callable[[int, Path], Environment]

# Exit codes where an environment raises, before its first episode or later; engines use others.
REFUSED, RAISED = 77, 78
_MAX_OUTPUT_BYTES = 2**20
ANSWER = np.dtype(np.int32)  # Of the numbers in the pipe.


class Rows:
    """Arrays `[N, ...]` over shared memory.

    Attributes:
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
        scalars = [ArraySpec((), dtype) for dtype in (np.int32, np.float32, np.bool_)]
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

    def writer(self, row: int) -> Callable[[float, bool, Any], None]:
        """Of one environment's steps: takes reward, done and observation."""
        rewards, dones = self.reward[row : row + 1], self.done[row : row + 1]
        rooms = [array[row, ...] for array in tree.flatten(self.observation)]

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
class Task:
    """What a child is told through its standard input."""

    make: MakeEnvironment
    attempt: int
    row: int
    connection: int  # file descriptors
    answers: int
    memory: int
    num_environments: int
    observation: Any


def play() -> None:
    """A child's life: makes its environment and steps it until its parent is gone."""
    directory = Path(os.environ["TMPDIR"])  # Known before the parent has said anything.
    with Hold(directory.parent) as hold:
        task: Task = pickle.load(sys.stdin.buffer)
        for file in (task.connection, task.answers, task.memory):
            os.set_inheritable(file, False)  # Or a program that the engine runs would hold them.
        connection = socket.socket(fileno=task.connection)
        try:
            environment = task.make(task.attempt, directory)
            first = environment.reset()
        except Exception:
            _leave(hold, REFUSED)
        try:
            _take_turns(task, connection, environment, first)
        except Exception:
            _leave(hold, RAISED)
        environment.close()


def _leave(hold: "Hold", code: int) -> NoReturn:
    """Ends the process with its last words, without asking the engine, which has failed."""
    traceback.print_exc()
    hold.release()
    os._exit(code)


def _take_turns(
    task: Task, connection: socket.socket, environment: Environment, first: Any
) -> None:
    rows = Rows(task.memory, task.num_environments, task.observation)
    write, action = rows.writer(task.row), rows.action[task.row : task.row + 1]
    number = np.array(task.row, ANSWER).tobytes()

    def give_turn_back(reward: float, done: bool, observation: Any) -> None:
        write(reward, done, observation)
        with contextlib.suppress(BrokenPipeError):  # The parent is gone, as the socket tells.
            os.write(task.answers, number)

    give_turn_back(0.0, True, first)
    while _has_turn(connection):
        reward, done, observation = environment.step(int(action[0]))
        give_turn_back(reward, done, observation)
        if done and os.fstat(sys.stderr.fileno()).st_size > _MAX_OUTPUT_BYTES:
            os.ftruncate(sys.stderr.fileno(), 0)


def _has_turn(connection: socket.socket) -> bool:
    """Waits for the turn; False if the parent is gone."""
    try:
        return bool(connection.recv(1))
    except ConnectionResetError:
        return False


class Hold:
    """Holds a directory that several processes use; the last to let go removes it.

    Use as a context manager, or `release`. A process that is killed lets go as well.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        self._file = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self, tries: int = 1) -> None:
        """Lets go, and looks so often if all others have; may be called twice."""
        if self._file < 0:
            return
        for attempt in range(tries):
            time.sleep(0.05 * (attempt > 0))
            with contextlib.suppress(OSError):  # Others hold it, or it is gone.
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(self._directory, ignore_errors=True)
                break
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *exception: object) -> None:
        # A parent that is killed closes its sockets some time before it lets go.
        self.release(tries=20)

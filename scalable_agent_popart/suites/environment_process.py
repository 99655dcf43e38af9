"""The process of one environment, and what it shares with its parent, a `ProcessPool`.

Each environment has a row in a block of shared memory. A byte over the connection gives a child the
turn. It fills its row and returns the turn by writing its number to a pipe that all children share.
The kernel's locks on both order writes before reads. A child whose parent is gone ends and removes
its files. Nothing that children import may import TensorFlow.
"""

import contextlib
import mmap
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tree

from environments import ArraySpec, Environment, InvalidStepError
from scalable_agent_popart.suites.checked import step_fault
from scalable_agent_popart.system import supervisor

# Its arguments are the number of earlier attempts, whose end it avoids, and a temporary folder.
MakeEnvironment = Callable[[int, Path], Environment]

# No engine uses these exit codes. An environment raised before its first episode or later, or
# returned what it may not.
REFUSED, RAISED, INVALID = 77, 78, 79
ANSWER = np.dtype(np.int32)  # Type of the numbers in the pipe.
_MAX_OUTPUT_BYTES = 2**20


class Rows:
    """Arrays `[N, ...]` over shared memory: action, reward, done and the nested observation."""

    def __init__(self, memory: int, num_environments: int, observation: Any):
        """Maps a file of shared memory, made large enough; `observation` is nested `ArraySpec`s."""
        specs = [ArraySpec((), dtype) for dtype in (np.int32, np.float64, np.bool_)]
        specs += tree.flatten(observation)
        fields = [(f"{i}", s.dtype, (num_environments, *s.shape)) for i, s in enumerate(specs)]
        dtype = np.dtype(fields, align=True)
        os.posix_fallocate(memory, 0, dtype.itemsize)
        block = np.frombuffer(mmap.mmap(memory, dtype.itemsize), dtype)[0]
        self.action, self.reward, self.done, *self._observations = block
        self.observation = tree.unflatten_as(observation, self._observations)
        self._declared = observation

    def write(self, row: int, reward: float, done: bool, observation: Any) -> None:
        """Fills a row; raises InvalidStepError if the step is not as declared."""
        if fault := step_fault(self._declared, reward, observation):
            raise InvalidStepError(fault)
        self.reward[row], self.done[row] = reward, done
        for array, value in zip(self._observations, tree.flatten(observation), strict=True):
            array[row] = value

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        """Copies reward, done and observation of some environments, `[M, ...]`."""
        observation = tree.map_structure(lambda array: array[rows], self.observation)
        return self.reward[rows], self.done[rows], observation


def play() -> None:
    """Makes an environment in a child and steps it until the parent is gone."""
    directory = Path(os.environ["TMPDIR"])
    output = sys.stderr  # Environments may put another in its place.
    exit_code = REFUSED
    try:
        connection, (make, attempt, row, answers, shared) = supervisor.begin()
        for file in (answers, shared[0]):
            os.set_inheritable(file, False)  # Programs that the engine runs would hold them.
        environment = make(attempt, directory)
        reward, done, observation = 0.0, True, environment.reset()
        exit_code, rows = RAISED, Rows(*shared)
        while True:
            rows.write(row, reward, done, observation)
            if done and os.fstat(output.fileno()).st_size > _MAX_OUTPUT_BYTES:
                os.ftruncate(output.fileno(), 0)
            try:
                os.write(answers, np.array(row, ANSWER).tobytes())
                if not connection.recv(1):
                    break
            except (BrokenPipeError, ConnectionResetError):
                break
            reward, done, observation = environment.step(int(rows.action[row]))
    except InvalidStepError as error:
        # Exceptions that were handled and printed before would be taken for the cause.
        os.ftruncate(output.fileno(), 0)
        print(error, file=output, flush=True)
        os._exit(INVALID)
    except BaseException:  # The process ends here.
        traceback.print_exc(file=output)
        os._exit(exit_code)  # The engine has failed, and is not closed.
    try:
        environment.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # The last process removes the folder of all.
            directory.parent.rmdir()

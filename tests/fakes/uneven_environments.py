"""Counting environments that are ready at random, and are lost now and then."""

import numpy as np
import tree

from environments import Ready, StepOutput
from tests.fakes.counting_environment import CountingEnvironments


class UnevenEnvironments:
    """A pool of N counting environments, each ready in its own time.

    At every `receive`, one that works is lost with probability `lost`, and begins again with a
    number of its own.
    """

    lockstep = False

    def __init__(self, task_ids: np.ndarray, lost: float = 0.02):
        size = len(task_ids)
        self.task_ids = np.asarray(task_ids, np.int32)
        self.groups = np.arange(size)
        self.restarts = np.zeros(size, np.int64)
        self.closed = False
        self._lost = lost
        self._random = np.random.default_rng(0)
        self._chance = np.linspace(0.15, 0.9, size)  # Each is ready so often.
        self._members: dict[int, CountingEnvironments] = {}
        self._working: dict[int, StepOutput | None] = {}  # A first step waits here.

    def _begin(self, i: int) -> None:
        number = i + len(self.task_ids) * int(self.restarts[i])
        self._members[i] = CountingEnvironments(self.task_ids[i : i + 1], number)
        self._working[i] = self._members[i].reset()

    def start(self) -> None:
        for i in range(len(self.task_ids)):
            self._begin(i)

    def receive(self, seconds: float) -> Ready:
        for i, first in sorted(self._working.items()):
            if first is None and self._random.random() < self._lost:
                self.restarts[i] += 1
                self._begin(i)
        ready = [i for i in sorted(self._working) if self._random.random() < self._chance[i]]
        first_steps = [self._working.pop(i) for i in ready]
        fresh = np.array([first is not None for first in first_steps], bool)
        outputs = [
            first or self._members[i].receive() for i, first in zip(ready, first_steps, strict=True)
        ]
        # If none is ready, the output has the same types without any environment.
        outputs.append(CountingEnvironments(self.task_ids[:0]).reset())
        output = tree.map_structure(lambda *arrays: np.concatenate(arrays), *outputs)
        return Ready(np.array(ready, np.int64), output, fresh)

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        for i, action in zip(ids.tolist(), actions, strict=True):
            assert i not in self._working, "sent to one that is at work"
            self._members[i].send(np.array([action]))
            self._working[i] = None

    def close(self) -> None:
        self.closed = True

"""Counting environments that are ready when it suits them, and are lost now and then."""

import numpy as np

from environments import Ready, StepOutput, concatenate
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
        self.restarts = np.zeros(size, np.int64)
        self.groups = np.arange(size)
        self.closed = False
        self._lost = lost
        self._random = np.random.default_rng(0)
        self._chance = np.linspace(0.15, 0.9, size)  # Of being ready when asked.
        self._members = [self._make(i) for i in range(size)]
        self._first: dict[int, StepOutput] = {}
        self._working: set[int] = set()

    def _make(self, i: int) -> CountingEnvironments:
        number = i + len(self.task_ids) * int(self.restarts[i])
        return CountingEnvironments(self.task_ids[i : i + 1], number)

    def _begin(self, i: int) -> None:
        self._first[i] = self._members[i].reset()
        self._working.add(i)

    def start(self) -> None:
        for i in range(len(self._members)):
            self._begin(i)

    def receive(self, seconds: float) -> Ready:
        for i in sorted(self._working):
            if i not in self._first and self._random.random() < self._lost:
                self.restarts[i] += 1
                self._members[i] = self._make(i)
                self._begin(i)
        ready = [i for i in sorted(self._working) if self._random.random() < self._chance[i]]
        self._working -= set(ready)
        fresh = np.array([i in self._first for i in ready], bool)
        outputs = [self._first.pop(i, None) or self._members[i].receive() for i in ready]
        if not ready:  # Of the same types, but of no environment.
            nothing = CountingEnvironments(self.task_ids[:0]).reset()
            return Ready(np.zeros(0, np.int64), nothing, fresh)
        return Ready(np.array(ready), concatenate(outputs), fresh)

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        assert not self._working & set(ids.tolist()), "sent to one that is at work"
        for i, action in zip(ids.tolist(), actions, strict=True):
            self._members[i].send(np.array([action]))
            self._working.add(i)

    def close(self) -> None:
        self.closed = True

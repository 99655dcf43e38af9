"""The queue between actors and learner."""

import contextlib
import threading
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from scalable_agent_popart.rollouts import Rollout


class RolloutQueue:
    """A bounded `tf.queue.FIFOQueue` of rollouts, whose capacity actors reserve before they put.

    The learner is to learn equally often from every environment, whatever thread or job plays it.
    So capacity goes by turns, as `RolloutSink` says. A further quarter of the capacity is for
    environments that are behind, while others wait for the learner.
    """

    def __init__(self, spec: Rollout, capacity: int):
        leaves = tf.nest.flatten(spec)
        self._spec = spec
        self._capacity = capacity
        self._reserved = 0
        self._extra_capacity = capacity // 4
        self._waiting: list[int] = []  # Threads that wait in `reserve` have these turns.
        self.newest_turn = 0
        self._changed = threading.Condition()
        self._queue = tf.queue.FIFOQueue(
            capacity + self._extra_capacity,
            [leaf.dtype for leaf in leaves],
            [leaf.shape for leaf in leaves],
        )
        self.closed = False

    def reserve(self, count: int, seconds: float, turn: int) -> int:
        """See `RolloutSink`; returns 0 once the queue is closed."""
        with self._changed:
            self._waiting.append(turn)
            free = self._wait(
                lambda: self._free(turn) if turn == min(self._waiting) else 0, seconds
            )
            self._waiting.remove(turn)
            self._changed.notify_all()  # Later turns have waited for this one.
            granted = min(count, free)
            self._reserved += granted
            if granted:
                self.newest_turn = max(self.newest_turn, turn)
            return granted

    def put(self, rollouts: Rollout | Sequence[np.ndarray]) -> None:
        """Adds rollouts `[M, T + 1, ...]`, or their leaves; drops them once the queue is closed."""
        with contextlib.suppress(tf.errors.CancelledError):
            self._queue.enqueue_many(tf.nest.flatten(rollouts))

    def get(self, batch_size: int) -> Rollout | None:
        """Waits for rollouts `[batch_size, T + 1, ...]`; returns None once closed."""
        try:
            leaves = self._queue.dequeue_many(batch_size)
        except tf.errors.OutOfRangeError:
            return None
        with self._changed:
            self._reserved -= batch_size
            self._changed.notify_all()
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def free(self, seconds: float = 0.0, turn: int | None = None) -> int:
        """Returns how many rollouts of a turn, by default the newest, the queue has capacity for.

        It waits up to `seconds` for the first.
        """
        with self._changed:
            return self._wait(lambda: self._free(turn), seconds)

    def _free(self, turn: int | None) -> int:
        behind = turn is not None and turn < self.newest_turn
        return max(0, self._capacity + self._extra_capacity * behind - self._reserved)

    def _wait(self, look: Callable[[], int], seconds: float) -> int:
        """Waits up to `seconds` for a number above 0; returns it, or 0 once closed."""
        self._changed.wait_for(lambda: self.closed or look() > 0, seconds)
        return 0 if self.closed else look()

    def fill(self) -> float:
        """Returns the rollouts that wait as a share of the capacity, at most 1."""
        return min(1.0, int(self._queue.size()) / self._capacity)

    def close(self) -> None:
        """Wakes all threads that wait; may be called twice."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self._queue.close(cancel_pending_enqueues=True)

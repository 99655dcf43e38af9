"""The queue between actors and learner."""

import contextlib
import threading

import tensorflow as tf

from scalable_agent_popart.rollouts import Rollout


class RolloutQueue:
    """A bounded `tf.queue.FIFOQueue` of rollouts, in which actors reserve room.

    A quarter of its capacity is added for the rollouts of environments that are behind others,
    which so need not wait where all wait for the learner.

    Attributes:
      closed: whether `close` was called.
    """

    def __init__(self, spec: Rollout, capacity: int):
        """Creates the queue.

        Args:
          spec: `tf.TensorSpec`s of one environment's rollout.
          capacity: in rollouts.
        """
        leaves = tf.nest.flatten(spec)
        self._spec = spec
        self._capacity = self._room = capacity
        self._room_for_those_behind = capacity // 4  # In addition.
        self._changed = threading.Condition()
        self._queue = tf.queue.FIFOQueue(
            capacity + self._room_for_those_behind,
            [leaf.dtype for leaf in leaves],
            [leaf.shape for leaf in leaves],
        )
        self.closed = False

    def reserve(self, count: int, seconds: float, behind: bool = False) -> int:
        """Sets room aside for rollouts to be `put`.

        Args:
          count: of rollouts.
          seconds: to wait at most for room for the first.
          behind: whether they are of environments that are behind others.

        Returns:
          How many there is room for; 0 once the queue is closed.
        """
        extra = self._room_for_those_behind if behind else 0
        with self._changed:
            self._changed.wait_for(lambda: self._room + extra > 0 or self.closed, seconds)
            granted = 0 if self.closed else max(0, min(count, self._room + extra))
            self._room -= granted
            return granted

    def put(self, rollouts: Rollout) -> None:
        """Adds rollouts `[M, T + 1, ...]` for which room is reserved; drops them once closed."""
        with contextlib.suppress(tf.errors.CancelledError):
            self._queue.enqueue_many(tf.nest.flatten(rollouts))

    def get(self, batch_size: int) -> Rollout | None:
        """Waits for rollouts `[batch_size, T + 1, ...]`; returns None once closed."""
        try:
            leaves = self._queue.dequeue_many(batch_size)
        except tf.errors.OutOfRangeError:
            return None
        with self._changed:
            self._room += batch_size
            self._changed.notify_all()
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def num_reserved(self) -> int:
        """Rollouts that were put or are about to be, and were not taken yet."""
        with self._changed:
            return self._capacity - self._room

    def fill(self) -> float:
        """Rollouts that wait, as a share of the capacity."""
        return min(1.0, int(self._queue.size()) / self._capacity)

    def close(self) -> None:
        """Wakes all who wait; may be called twice."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self._queue.close(cancel_pending_enqueues=True)

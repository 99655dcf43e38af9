"""The queue between actors and learner."""

import tensorflow as tf

from scalable_agent_popart.rollouts import Rollout


class RolloutQueue:
    """A bounded `tf.queue.FIFOQueue` of rollouts: actors wait while it is full."""

    def __init__(self, spec: Rollout, capacity: int):
        """Creates the queue.

        Args:
          spec: `tf.TensorSpec`s of one environment's rollout.
          capacity: in rollouts.
        """
        leaves = tf.nest.flatten(spec)
        self._spec = spec
        self._capacity = capacity
        self._queue = tf.queue.FIFOQueue(
            capacity, [leaf.dtype for leaf in leaves], [leaf.shape for leaf in leaves]
        )

    def put(self, rollouts: Rollout) -> bool:
        """Adds N rollouts `[N, T + 1, ...]`; returns False if the queue was closed."""
        try:
            self._queue.enqueue_many(tf.nest.flatten(rollouts))
        except tf.errors.CancelledError:
            return False
        return True

    def get(self, batch_size: int) -> Rollout | None:
        """Waits for rollouts `[batch_size, T + 1, ...]`; returns None once closed."""
        try:
            leaves = self._queue.dequeue_many(batch_size)
        except tf.errors.OutOfRangeError:
            return None
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def fill(self) -> float:
        """Rollouts that wait, as a share of the capacity."""
        return int(self._queue.size()) / self._capacity

    def close(self) -> None:
        """Wakes all who wait; may be called twice."""
        self._queue.close(cancel_pending_enqueues=True)

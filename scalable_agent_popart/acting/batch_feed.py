"""Batches for the learner, made of rollouts and moved to its device before it asks for them."""

import queue
import threading

import tensorflow as tf

from scalable_agent_popart import rollouts
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.system import hardware
from scalable_agent_popart.system.stage_clock import StageClock, shares
from scalable_agent_popart.system.threads import Threads

# All feeds of a process share one graph, since members that take turns need many feeds.
_time_major = tf.function(rollouts.time_major, autograph=False)
_POLL_SECONDS = 0.2  # Between the main thread's looks for signals and failed threads.


class BatchFeed(Threads):
    """A thread that has the next batch ready while the learner works on the last."""

    def __init__(self, source: RolloutQueue, batch_size: int):
        super().__init__()
        self.clock = StageClock()  # Stages `wait` and `learn` of the thread that takes batches.
        self._source = source
        self._batch_size = batch_size
        self._batches: queue.Queue[rollouts.Rollout] = queue.Queue()
        # Acquired before rollouts are taken, so that no second batch grows old meanwhile.
        self._may_take = threading.Semaphore(1)

    def start(self) -> None:
        self.start_thread("batches", self._prepare)

    def stop(self) -> None:
        self._source.close()
        self._may_take.release()

    def next_batch(self) -> rollouts.Rollout | None:
        """Returns the next batch `[T + 1, B, ...]`, or None if there is none yet."""
        self.clock.finish("learn")
        try:
            batch = self._batches.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return None
        finally:
            self.clock.finish("wait")
        self._may_take.release()
        return batch

    def load(self) -> dict[str, float]:
        """Measures who waits for whom.

        `learner_wait` is the share of the time since the last call in which the learner had no
        batch. It is near 0, and `queue_fill` near 1, if the learner is the bottleneck.
        """
        waiting = shares([self.clock]).get("wait", 0.0)
        self.clock.restart()
        return {"learner_wait": waiting, "queue_fill": self._source.fill()}

    def _prepare(self) -> None:
        while self._may_take.acquire() and not self._source.closed:
            stacked = self._source.get(self._batch_size)
            if stacked is None:
                return
            with tf.device(hardware.learner_device()):
                self._batches.put(_time_major(stacked))

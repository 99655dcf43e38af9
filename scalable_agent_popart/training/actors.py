"""Actors as training sees them, wherever they run."""

import abc
import contextlib
from typing import Self

from scalable_agent_popart.acting.batch_feed import BatchFeed
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.system.threads import Threads


class Actors(contextlib.AbstractContextManager):
    """Actors of this process or of others, and a feed of batches made of their rollouts.

    Entering starts its threads. Leaving ends them, and raises what one of them has raised.
    """

    def __init__(self, queue: RolloutQueue, batch_size: int, *threads: Threads):
        self.feed = BatchFeed(queue, batch_size)
        self._threads = (*threads, self.feed)

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        for each in reversed(self._threads):
            each.close()
        if exception_type is None:
            self.raise_error()

    def raise_error(self) -> None:
        """Raises what a thread has raised, if one has."""
        for each in self._threads:
            each.raise_error()

    def next_batch(self) -> Rollout | None:
        """Returns the next batch `[T + 1, B, ...]`, or None; raises what a thread has raised."""
        self.raise_error()
        return self.feed.next_batch()

    @abc.abstractmethod
    def describe_start(self) -> str:
        """Describes for the terminal how far the first batch is."""

    @abc.abstractmethod
    def publish(self, version: int) -> None:
        """Makes the learner's present weights the newest."""

    def restarts(self) -> dict[str, int]:
        """Counts by task how often environments were lost and started again, if any were."""
        return {}

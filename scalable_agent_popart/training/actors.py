"""Actors as training sees them, wherever they run."""

import abc
import contextlib
from typing import Self

from scalable_agent_popart.acting.batch_feed import BatchFeed, RolloutSource
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.system.threads import Threads


class Actors(contextlib.AbstractContextManager):
    """Actors of this process or of others, and a feed of batches made of their rollouts.

    Entering it starts its threads; leaving it ends them, and raises what one of them has raised.
    """

    def __init__(self, source: RolloutSource, batch_size: int, threads: Threads):
        self.feed = BatchFeed(source, batch_size)
        self.threads = threads

    def __enter__(self) -> Self:
        self.threads.start()
        self.feed.start()
        return self

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        self.feed.close()
        self.threads.close()
        if exception_type is None:
            self._raise_error()

    def next_batch(self) -> Rollout | None:
        """Returns the next batch `[T + 1, B, ...]`, or None if there is none yet.

        Raises:
          Exception: whatever keeps batches from being made.
        """
        self._raise_error()
        return self.feed.next_batch()

    @abc.abstractmethod
    def describe_start(self) -> str:
        """Describes the progress towards the first batch, for the terminal."""

    @abc.abstractmethod
    def publish(self, version: int) -> None:
        """Makes the learner's present weights the newest."""

    def restarts(self) -> dict[str, int]:
        """Counts, by task, the environments that were lost and started again, where any were."""
        return {}

    def load(self) -> dict[str, float]:
        """Measures who waits for whom; see `BatchFeed.load`."""
        return self.feed.load()

    def _raise_error(self) -> None:
        self.threads.raise_error()
        self.feed.raise_error()

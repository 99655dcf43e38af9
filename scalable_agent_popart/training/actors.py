"""Actors as training sees them, wherever they run."""

import abc
import contextlib
from typing import Self

from scalable_agent_popart.acting.batch_feed import BatchFeed
from scalable_agent_popart.acting.policy import WeightStore
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system.threads import Threads


class Actors(contextlib.AbstractContextManager):
    """Actors of this process or of others, and a feed of batches made of their rollouts.

    Entering starts its threads. Leaving ends them, and raises what one of them has raised, or the
    `error` with which the actors failed otherwise.
    """

    error: Exception | None = None

    def __init__(self, config: Config, spec: Rollout, learner: Learner):
        self._config, self._learner = config, learner
        self._store = WeightStore(learner.agent.trainable_variables, int(learner.num_updates))
        self.rollout_queue = RolloutQueue(spec, config.batch_size)
        self.feed = BatchFeed(self.rollout_queue, config.batch_size)
        self._threads: list[Threads] = [self.feed]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.push(self)  # What has started ends if the rest cannot start.
            self.start()
            stack.pop_all()
        return self

    def start(self) -> None:
        """Starts what leaving ends."""
        for each in self._threads:
            each.start()

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        for each in reversed(self._threads):
            each.close()
        if exception_type is None:
            self.raise_error()

    def raise_error(self) -> None:
        """Raises what made the actors fail, if they did."""
        if self.error is not None:
            raise self.error
        for each in self._threads:
            each.raise_error()

    def next_batch(self) -> Rollout | None:
        """Returns the next batch `[T + 1, B, ...]`, or None; raises what a thread has raised."""
        self.raise_error()
        return self.feed.next_batch()

    @abc.abstractmethod
    def describe_start(self) -> str:
        """Describes for the terminal how far the first batch is."""

    def publish(self, version: int) -> None:
        """Makes the learner's present weights the newest."""
        self._store.publish(version)

    def restarts(self) -> dict[str, int]:
        """Counts by task how often environments were lost and started again, if any were."""
        return {}

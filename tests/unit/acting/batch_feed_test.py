"""Batches on their way from the queue to the learner."""

import contextlib

import tensorflow as tf

from scalable_agent_popart import rollouts
from scalable_agent_popart.acting.batch_feed import BatchFeed
from tests.fakes.programs import wait_until

_SPEC = rollouts.rollout_spec(tf.TensorSpec((), tf.uint8), (), num_actions=2, unroll_length=3)


class CountingSource:
    """Rollouts without end, and how many batches the learner had asked for at each `get`."""

    def __init__(self) -> None:
        self.asked = 0
        self.asked_at: list[int] = []
        self.closed = False

    def get(self, batch_size: int) -> rollouts.Rollout | None:
        if self.closed:
            return None
        self.asked_at.append(self.asked)
        return tf.nest.map_structure(lambda s: tf.zeros((batch_size, *s.shape), s.dtype), _SPEC)

    def fill(self) -> float:
        return 1.0

    def close(self) -> None:
        self.closed = True


def test_no_second_batch_is_taken_while_one_waits() -> None:
    """Its rollouts would only grow old: it could stay in the queue, or not be made yet."""
    source = CountingSource()
    feed = BatchFeed(source, batch_size=2)
    feed.start()
    with contextlib.closing(feed):
        for _ in range(5):
            wait_until(lambda: not feed._batches.empty())
            source.asked += 1
            batch = feed.next_batch()
            assert batch is not None
            assert batch.env_outputs.reward.shape == (4, 2)
    assert len(source.asked_at) >= 5
    for number, asked in enumerate(source.asked_at):
        assert asked >= number, "taken while the batch before was still waiting"

"""Batches on their way from the queue to the learner."""

import contextlib

import numpy as np
import tensorflow as tf

from scalable_agent_popart import rollouts
from scalable_agent_popart.acting.batch_feed import BatchFeed
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from tests.fakes.programs import wait_until

_SPEC = rollouts.rollout_spec(tf.TensorSpec((), tf.uint8), (), num_actions=2, unroll_length=3)


def test_no_second_batch_is_taken_while_one_waits() -> None:
    """Its rollouts would only grow old: it could stay in the queue, or not be made yet."""
    queue = RolloutQueue(_SPEC, capacity=20)
    queue.put([np.zeros((20, *s.shape), s.dtype.as_numpy_dtype) for s in tf.nest.flatten(_SPEC)])
    feed = BatchFeed(queue, batch_size=2)
    feed.start()
    with contextlib.closing(feed):
        for number in range(1, 9):
            wait_until(lambda: not feed._batches.empty())
            assert 20 * queue.fill() == 20 - 2 * number
            batch = feed.next_batch()
            assert batch is not None
            assert batch.env_outputs.reward.shape == (4, 2)

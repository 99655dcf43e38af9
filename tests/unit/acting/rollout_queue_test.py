"""The queue between actors and learner: its capacity, and its end."""

import threading

import numpy as np
import tensorflow as tf

from environments import ArraySpec
from scalable_agent_popart import rollouts
from scalable_agent_popart.acting.rollout_queue import RolloutQueue

SPEC = rollouts.rollout_spec(ArraySpec((1, 4, 1), np.uint8), (), 3, 5)


def zeros(number: int) -> rollouts.Rollout:
    """So many rollouts."""
    return tf.nest.map_structure(
        lambda leaf: np.zeros((number, *leaf.shape), leaf.dtype.as_numpy_dtype), SPEC
    )


def test_closing_the_queue_wakes_threads_that_put_and_that_get() -> None:
    full, empty = RolloutQueue(SPEC, capacity=1), RolloutQueue(SPEC, capacity=1)
    assert full.reserve(2, 0.0) == 1
    full.put(zeros(1))
    answers: dict[str, object] = {}
    putting = threading.Thread(target=lambda: answers.update(reserve=full.reserve(1, 30.0)))
    getting = threading.Thread(target=lambda: answers.update(get=empty.get(1)))
    putting.start()
    getting.start()
    for rollout_queue in (full, empty, full):
        rollout_queue.close()
    putting.join(30)
    getting.join(30)
    assert answers == {"reserve": 0, "get": None}
    full.put(zeros(1))  # Dropped.


def test_capacity_is_reserved_until_rollouts_are_taken_with_more_for_those_behind() -> None:
    rollout_queue = RolloutQueue(SPEC, capacity=8)
    assert rollout_queue.reserve(1, 0.0, behind=True) == 1
    assert rollout_queue.reserve(9, 0.0) == 7
    assert rollout_queue.reserve(1, 0.0) == 0
    assert rollout_queue.reserve(3, 0.0, behind=True) == 2
    assert rollout_queue.reserve(1, 0.0, behind=True) == 0
    rollout_queue.put(zeros(10))
    assert rollout_queue.fill() == 1
    assert rollout_queue.num_reserved() == 10
    assert rollout_queue.reserve(1, 0.0) == 0
    assert rollout_queue.get(4) is not None
    assert rollout_queue.num_reserved() == 6
    assert rollout_queue.reserve(9, 0.0) == 2

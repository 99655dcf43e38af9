"""The queue between actors and learner: its room, and its end."""

import threading

import numpy as np
import tensorflow as tf

from environments import ArraySpec
from scalable_agent_popart import rollouts
from scalable_agent_popart.acting.rollout_queue import RolloutQueue

SPEC = rollouts.rollout_spec(ArraySpec((1, 4, 1), np.uint8), (), 3, 5)


def some(number: int) -> rollouts.Rollout:
    """So many rollouts of zeros."""
    return tf.nest.map_structure(
        lambda leaf: np.zeros((number, *leaf.shape), leaf.dtype.as_numpy_dtype), SPEC
    )


def test_closing_the_queue_wakes_who_puts_and_who_gets() -> None:
    one = some(1)
    full, empty = RolloutQueue(SPEC, capacity=1), RolloutQueue(SPEC, capacity=1)
    assert full.reserve(2, 0.0) == 1
    full.put(one)
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
    full.put(one)  # Dropped.


def test_there_is_more_room_for_those_behind() -> None:
    rollout_queue = RolloutQueue(SPEC, capacity=8)
    assert rollout_queue.reserve(1, 0.0, behind=True) == 1
    assert rollout_queue.reserve(9, 0.0) == 7
    assert rollout_queue.reserve(1, 0.0) == 0
    assert rollout_queue.reserve(3, 0.0, behind=True) == 2
    assert rollout_queue.reserve(1, 0.0, behind=True) == 0
    ten = some(10)
    rollout_queue.put(ten)
    assert rollout_queue.fill() == 1
    rollout_queue.get(4)
    assert rollout_queue.reserve(9, 0.0) == 2


def test_room_is_reserved_until_the_rollouts_are_taken() -> None:
    rollout_queue = RolloutQueue(SPEC, capacity=3)
    assert rollout_queue.reserve(2, 0.0) == 2
    assert rollout_queue.reserve(2, 0.0) == 1
    assert rollout_queue.reserve(1, 0.0) == 0
    three = some(3)
    rollout_queue.put(three)
    assert rollout_queue.fill() == 1
    assert rollout_queue.reserve(1, 0.0) == 0
    assert rollout_queue.get(2) is not None
    assert rollout_queue.reserve(5, 0.0) == 2

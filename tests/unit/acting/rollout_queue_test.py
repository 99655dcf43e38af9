"""The queue between actors and learner: its capacity, and its end."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import tensorflow as tf

from environments import ArraySpec
from scalable_agent_popart import rollouts
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from tests.fakes.programs import wait_until

SPEC = rollouts.rollout_spec(ArraySpec((1, 4, 1), np.uint8), (), 3, 5)


def zeros(number: int) -> rollouts.Rollout:
    """So many rollouts."""
    return tf.nest.map_structure(
        lambda leaf: np.zeros((number, *leaf.shape), leaf.dtype.as_numpy_dtype), SPEC
    )


def in_a_thread(call: Callable[[], object]) -> SimpleQueue:
    """Returns where the answer to a call that waits will be."""
    answer = SimpleQueue()
    threading.Thread(target=lambda: answer.put(call()), daemon=True).start()
    return answer


def waits_for_capacity(full: RolloutQueue) -> SimpleQueue:
    """Returns where the answer to a thread that already waits to reserve will be."""
    answer = in_a_thread(lambda: full.reserve(1, 600.0, turn=1))
    wait_until(lambda: bool(full._changed._waiters))
    return answer


def test_closing_the_queue_wakes_threads_that_put_and_that_get() -> None:
    full, empty = RolloutQueue(SPEC, capacity=1), RolloutQueue(SPEC, capacity=1)
    assert full.reserve(2, 0.0, turn=1) == 1
    full.put(zeros(1))
    reserved, got = waits_for_capacity(full), in_a_thread(lambda: empty.get(1))
    for rollout_queue in (full, empty, full):
        rollout_queue.close()
    assert reserved.get(timeout=30) == 0
    assert got.get(timeout=30) is None
    full.put(zeros(1))  # Dropped.


def test_taking_rollouts_wakes_a_thread_that_waits_for_their_capacity() -> None:
    full = RolloutQueue(SPEC, capacity=1)
    full.reserve(1, 0.0, turn=1)
    full.put(zeros(1))
    reserved = waits_for_capacity(full)
    full.get(1)
    assert reserved.get(timeout=30) == 1


def test_capacity_is_reserved_until_rollouts_are_taken_with_more_for_those_behind() -> None:
    rollout_queue = RolloutQueue(SPEC, capacity=8)
    assert rollout_queue.reserve(1, 0.0, turn=2) == 1
    assert rollout_queue.reserve(9, 0.0, turn=2) == 7
    assert [rollout_queue.reserve(1, 0.0, turn) for turn in (2, 3)] == [0, 0]
    assert [rollout_queue.free(0.0, turn) for turn in (1, 2)] == [2, 0]
    assert rollout_queue.reserve(3, 0.0, turn=1) == 2
    assert rollout_queue.reserve(1, 0.0, turn=1) == 0
    rollout_queue.put(zeros(10))
    assert rollout_queue.fill() == 1
    assert rollout_queue.free() == 0
    assert rollout_queue.reserve(1, 0.0, turn=2) == 0
    assert rollout_queue.get(4) is not None
    assert rollout_queue.free() == 2
    assert rollout_queue.reserve(9, 0.0, turn=3) == 2
    assert rollout_queue.newest_turn == 3


def test_capacity_goes_to_the_lowest_turn_that_waits() -> None:
    rollout_queue = RolloutQueue(SPEC, capacity=2)
    rollout_queue.put(zeros(rollout_queue.reserve(2, 0.0, turn=5)))
    answers = {}
    for turn in (12, 11, 10, 9, 8, 7, 5, 6):  # Without turns any of them might come first.
        answers[turn] = in_a_thread(lambda turn=turn: rollout_queue.reserve(1, 600.0, turn))
        wait_until(lambda: len(rollout_queue._waiting) == len(answers))
    rollout_queue.get(1)
    assert answers[5].get(timeout=30) == 1
    assert rollout_queue.reserve(1, 0.0, turn=8) == 0
    rollout_queue.get(1)
    assert answers[6].get(timeout=30) == 1
    assert answers[7].empty()
    rollout_queue.close()
    assert answers[7].get(timeout=30) == 0

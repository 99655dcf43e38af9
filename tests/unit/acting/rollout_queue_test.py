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


def test_closing_the_queue_wakes_threads_that_get_and_drops_what_is_put() -> None:
    rollout_queue = RolloutQueue(SPEC, capacity=1)
    got = in_a_thread(lambda: rollout_queue.get(1))
    for _ in range(2):
        rollout_queue.close()
    assert got.get(timeout=30) is None
    rollout_queue.put(zeros(1))


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


def test_capacity_goes_to_the_lowest_turn_that_waits_until_the_queue_is_closed() -> None:
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
    wait_until(lambda: len(rollout_queue._changed._waiters) == len(answers) - 2)
    assert answers[7].empty()
    rollout_queue.close()
    assert answers[7].get(timeout=30) == 0

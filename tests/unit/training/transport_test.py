"""The wire in one process; a server cannot be stopped, so each test has one of its own."""

import socket
import threading

import numpy as np
import pytest
import tensorflow as tf

from environments import ArraySpec
from scalable_agent_popart import rollouts
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.training.transport import LearnerLink, LearnerPort, LearnerStatus
from tests.fakes.programs import DEADLINE_SECONDS, free_port, wait_until

SPEC = rollouts.rollout_spec(ArraySpec((2, 3, 1), np.uint8), (), num_actions=3, unroll_length=4)
HANDSHAKE = {"--network": "shallow"}


def marked(count: int, mark: int) -> Rollout:
    """Rollouts `[count, ...]` whose every number is `mark`."""
    return tf.nest.map_structure(
        lambda leaf: np.full((count, *leaf.shape), mark, leaf.dtype.as_numpy_dtype), SPEC
    )


def connect() -> tuple[LearnerPort, LearnerLink]:
    """A learner with a queue for 8 rollouts that has published no weights yet, and a link."""
    port = LearnerPort(free_port(), SPEC, 8, HANDSHAKE)
    return port, LearnerLink(port.address, SPEC, HANDSHAKE, "actor job 0")


def test_rollouts_arrive_whole_and_weights_as_published() -> None:
    port, link = connect()
    assert link.status() is link.weights() is None, "nobody is let in before there are weights"
    link.put(marked(1, 0))  # Lost, without a word.
    port.publish(3, b"older weights")
    wait_until(lambda: link.status() is not None)
    assert link.status() == LearnerStatus(free=8, version=3, finished=False)
    port.publish(4, b"weights")
    assert link.weights() == (4, b"weights")
    link.put(marked(3, 1))
    assert port.fill() == 3 / 8
    assert link.status() == LearnerStatus(free=5, version=4, finished=False)
    link.put(marked(5, 2))
    batch = port.get(8)
    assert batch is not None
    assert sorted(batch.task_id.tolist()) == [1] * 3 + [2] * 5
    for leaf, own in zip(tf.nest.flatten(batch), tf.nest.flatten(SPEC), strict=True):
        assert leaf.shape == (8, *own.shape)
        assert leaf.dtype == own.dtype.as_numpy_dtype


def test_the_end_wakes_all_who_wait() -> None:
    port, link = connect()
    port.publish(0, b"")
    link.put(marked(8, 1))
    putting = threading.Thread(target=lambda: link.put(marked(1, 2)))
    putting.start()
    port.finish()
    port.close()
    putting.join(DEADLINE_SECONDS)
    assert not putting.is_alive()
    wait_until(lambda: (status := link.status()) is not None and status.finished)
    assert port.get(8) is not None
    assert port.get(8) is None


def test_a_lost_session_is_closed_without_waiting_for_it() -> None:
    port, link = connect()
    port.publish(0, b"")
    wait_until(lambda: link.status() is not None)
    learner_is_back, closed = threading.Event(), threading.Event()

    class Lost:
        def run(self, *_: object) -> None:
            raise tf.errors.DeadlineExceededError(None, None, "no answer")

        def close(self) -> None:
            learner_is_back.wait(DEADLINE_SECONDS)
            closed.set()
            raise tf.errors.DeadlineExceededError(None, None, "still no answer")

    link._session = Lost()
    assert link.status() is None
    assert not closed.is_set()
    learner_is_back.set()
    assert closed.wait(DEADLINE_SECONDS)
    wait_until(lambda: link.status() is not None)


def test_differences_are_logged_or_refused_on_both_sides() -> None:
    port, _ = connect()
    port.publish(0, b"")
    allowed = LearnerLink(port.address, SPEC, HANDSHAKE, "actor job 3", {"--precision": "x"})
    assert allowed.status() is not None
    assert port.messages() == [
        "actor job 3: --precision is None at the learner and x at actor job 3"
    ]
    other = LearnerLink(port.address, SPEC, {"--network": "deep"}, "actor job 7")
    difference = "--network is shallow at the learner and deep at actor job 7"
    with pytest.raises(UserError, match=difference):
        other.status()
    assert port.messages() == [f"actor job 7 refused: {difference}"]
    assert port.messages() == []


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        with pytest.raises(UserError, match=r"port .* of --learner_address"):
            LearnerPort(other.getsockname()[1], SPEC, 8, {})

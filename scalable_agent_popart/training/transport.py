"""Rollouts and weights on their way between processes, by TensorFlow's own gRPC runtime.

The learner hosts a `tf.distribute.Server`, on which live a queue of rollouts, the newest weights as
bytes, and the learner's status with the handshake that actors must agree with. Actors reach it by
sessions. This is the only place where TensorFlow 1 is used.

A rollout arrives whole or not at all. A call whose answer is lost is not repeated, so that no
rollout is learned from twice.

The server runs whatever graph it is sent, by anybody who reaches its port, and listens on all
interfaces.
"""

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.rollouts import Rollout

_v1 = tf.compat.v1

_JOB = "learner"
# A call that takes longer has lost the learner.
_TIMEOUT_MS = 20_000
_PROBE_SECONDS = 2.0
_FIRST_BACK_OFF_SECONDS, _MAX_BACK_OFF_SECONDS = 0.2, 5.0
_SECONDS_BETWEEN_WARNINGS = 60.0
_MAX_MESSAGES = 1000
_VERSION_BYTES = 8


class LearnerStatus(NamedTuple):
    """The learner's state as actors need to know it."""

    free: int  # rollouts that its queue still takes
    version: int  # of the newest weights
    finished: bool  # nothing is left to learn


class _Variable:
    """A variable of the learner's server, known to every session by its name."""

    def __init__(self, name: str, dtype: tf.DType, shape: list[int | None]):
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
        self.value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        self.new = _v1.placeholder(dtype, shape)
        self.assign = tf.raw_ops.AssignVariableOp(resource=handle, value=self.new)


class _Exchange:
    """The graph of all that lives on the learner's server.

    `status` is JSON; `weights` are the bytes of their version and then of all of them.
    """

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default(), self._device():
            self.status = _Variable("status", tf.string, [])
            self.weights = _Variable("weights", tf.uint8, [None])
            messages = tf.queue.FIFOQueue(_MAX_MESSAGES, [tf.string], [[]], shared_name="messages")
            self.message = _v1.placeholder(tf.string, [])
            self.enqueue_message = messages.enqueue(self.message)
            self.dequeue_message = messages.dequeue()
            self.num_messages = messages.size()

    def add_queue(self, spec: Rollout, capacity: int, batch_size: int) -> None:
        """Adds the queue of rollouts, which all users must describe alike."""
        leaves = tf.nest.flatten(spec)
        types, shapes = [leaf.dtype for leaf in leaves], [leaf.shape for leaf in leaves]
        with self.graph.as_default(), self._device():
            queue = tf.queue.FIFOQueue(capacity, types, shapes, shared_name="rollouts")
            self.rollouts = [_v1.placeholder(leaf.dtype, [None, *leaf.shape]) for leaf in leaves]
            self.put = queue.enqueue_many(self.rollouts)
            self.take = queue.dequeue_many(batch_size)
            self.size = queue.size()
            self.close = queue.close(cancel_pending_enqueues=True)

    def _device(self) -> Any:
        return tf.device(f"/job:{_JOB}/task:0/device:CPU:0")


class LearnerPort:
    """The learner's side, for calls from any thread; its server ends with the process."""

    def __init__(self, port: int, spec: Rollout, batch_size: int, handshake: Mapping[str, Any]):
        """Starts the server, which lets nobody in before the first `publish`.

        As many rollouts as a batch has may wait. Raises UserError if the port is taken.
        """
        _check_free(port)
        self.address = f"localhost:{port}"
        self._spec = spec
        self._capacity = batch_size
        self._handshake = {"capacity": batch_size, **handshake}
        self._version = -1
        self._exchange = _Exchange()
        self._exchange.add_queue(spec, batch_size, batch_size)
        # Graphics memory is the learner's own, whatever the server finds.
        options = _v1.ConfigProto(device_count={"GPU": 0})
        cluster = tf.train.ClusterSpec({_JOB: [self.address]})
        self._server = tf.distribute.Server(cluster, _JOB, 0, config=options)
        self._session = _v1.Session(self._server.target, graph=self._exchange.graph)

    def publish(self, version: int, weights: bytes) -> None:
        """Shows weights; the first time, opens to actors."""
        blob = np.frombuffer(np.int64(version).tobytes() + weights, np.uint8)
        # Weights before their version: who sees a version finds weights at least as new.
        self._assign(self._exchange.weights, blob)
        self._version = version
        self._set_status(finished=False)

    def finish(self) -> None:
        """Tells actors that nothing is left to learn."""
        self._set_status(finished=True)

    def get(self, batch_size: int) -> Rollout | None:
        """Waits for rollouts `[batch_size, T + 1, ...]`; returns None once closed."""
        try:
            leaves = self._session.run(self._exchange.take)
        except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
            return None
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def fill(self) -> float:
        """Counts the rollouts that wait, as a share of the capacity."""
        return self._session.run(self._exchange.size) / self._capacity

    def messages(self) -> list[str]:
        """Returns the messages of actors since the last call."""
        count = self._session.run(self._exchange.num_messages)
        return [self._session.run(self._exchange.dequeue_message).decode() for _ in range(count)]

    def close(self) -> None:
        """Wakes all threads that wait for rollouts; may be called twice."""
        self._session.run(self._exchange.close)

    def _set_status(self, finished: bool) -> None:
        status = {"version": self._version, "finished": finished, "handshake": self._handshake}
        self._assign(self._exchange.status, json.dumps(status))

    def _assign(self, variable: _Variable, value: Any) -> None:
        self._session.run(variable.assign, {variable.new: value})


class LearnerLink:
    """An actor's side: finds the learner, loses it, and finds it again. For one thread.

    While there is no learner, calls return at once, but for one in a while that looks for it: less
    often with each time in vain, and for some seconds if it is there and does not answer.
    """

    def __init__(
        self,
        address: str,
        spec: Rollout,
        handshake: Mapping[str, Any],
        name: str,
        may_differ: Mapping[str, Any] | None = None,
    ):
        """Connects nowhere yet.

        The handshake must be the same on both sides; differences in `may_differ` are only logged.
        """
        self._address = address
        self._spec = spec
        self._handshake = handshake
        self._name = name
        self._may_differ = may_differ or {}
        self._session: Any = None  # While there is no learner.
        self._exchange: Any = None
        self._back_off = _FIRST_BACK_OFF_SECONDS
        self._next_try = 0.0
        self._next_warning = 0.0

    def status(self) -> LearnerStatus | None:
        """Asks for the learner's status; returns None if there is no learner."""
        found = self._run(lambda exchange: (exchange.size, exchange.status.value))
        if found is None:
            return None
        size, status = found[0], json.loads(found[1])
        free = max(0, status["handshake"]["capacity"] - int(size))
        return LearnerStatus(free, status["version"], status["finished"])

    def put(self, rollouts: Rollout) -> None:
        """Sends rollouts `[M, T + 1, ...]`, which are lost if the learner is."""
        self._run(lambda exchange: exchange.put, tf.nest.flatten(rollouts))

    def weights(self) -> tuple[int, bytes] | None:
        """Returns the newest weights' version and bytes; None if there is no learner."""
        blob = self._run(lambda exchange: exchange.weights.value)
        if blob is None:
            return None
        return int(blob[:_VERSION_BYTES].view(np.int64)[0]), blob[_VERSION_BYTES:].tobytes()

    def _run(self, fetch: Callable[[_Exchange], Any], rollouts: Sequence[Any] = ()) -> Any:
        """Returns the learner's answer; None if there is no learner."""
        if self._session is None and not self._connect():
            return None
        feeds = dict(zip(self._exchange.rollouts, rollouts, strict=True)) if rollouts else None
        try:
            return self._session.run(fetch(self._exchange), feeds)
        except tf.errors.InvalidArgumentError as error:
            raise UserError(
                f"the learner at {self._address} runs another version of this program: {error}"
            ) from error
        except tf.errors.OpError as error:
            # Closing waits for a learner that is gone as long as any call.
            threading.Thread(target=_close, args=(self._session,), daemon=True).start()
            self._session = None
            self._try_later()
            logging.warning("lost the learner at %s: %s", self._address, type(error).__name__)
            return None

    def _connect(self) -> bool:
        """Looks for the learner if it is time to; raises UserError if it learns something else."""
        if time.monotonic() < self._next_try:
            return False
        host, _, port = self._address.rpartition(":")
        config = _v1.ConfigProto(operation_timeout_in_ms=_TIMEOUT_MS)
        try:
            # A probe tells sooner than the runtime that nobody is there.
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
            exchange = _Exchange()
            session = _v1.Session(f"grpc://{self._address}", graph=exchange.graph, config=config)
            theirs = json.loads(session.run(exchange.status.value))["handshake"]
        except (OSError, UnicodeError, tf.errors.OpError) as error:
            if time.monotonic() > self._next_warning:
                self._next_warning = time.monotonic() + _SECONDS_BETWEEN_WARNINGS
                why = type(error).__name__ if isinstance(error, tf.errors.OpError) else error
                logging.warning("waiting for the learner at %s (%s)", self._address, why)
            self._try_later()
            return False

        def send(message: str) -> None:
            with contextlib.suppress(tf.errors.OpError):
                session.run(exchange.enqueue_message, {exchange.message: message})

        if allowed := self._differences(self._may_differ, theirs):
            logging.warning("%s", allowed)
            send(f"{self._name}: {allowed}")
        if refused := self._differences(self._handshake, theirs):
            send(f"{self._name} refused: {refused}")
            raise UserError(
                f"the learner at {self._address} has another configuration: {refused}; give both "
                "the same flags"
            )
        exchange.add_queue(self._spec, theirs["capacity"], batch_size=1)
        self._session, self._exchange = session, exchange
        self._back_off = _FIRST_BACK_OFF_SECONDS
        return True

    def _try_later(self) -> None:
        # At random, so that not all actors of a learner that is back come at the same moment.
        self._next_try = time.monotonic() + self._back_off * random.uniform(0.5, 1.0)
        self._back_off = min(2 * self._back_off, _MAX_BACK_OFF_SECONDS)

    def _differences(self, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
        return "; ".join(
            f"{name} is {theirs.get(name)} at the learner and {value} at {self._name}"
            for name, value in own.items()
            if theirs.get(name) != value
        )


def _close(session: Any) -> None:
    """Makes the learner forget a session, if it answers."""
    with contextlib.suppress(tf.errors.OpError):
        session.close()


def _check_free(port: int) -> None:
    """Raises UserError if the port is taken: the runtime would share it with its owner."""
    with socket.socket() as probe:
        # A port is free though connections of a killed learner have not been forgotten yet.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(
                f"port {port} of --learner_address cannot be listened on ({error.strerror}); "
                "stop what uses it or give another"
            ) from error

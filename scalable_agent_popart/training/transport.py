"""How rollouts and weights travel between processes: TensorFlow's own gRPC runtime.

The learner hosts a `tf.distribute.Server`. On it live a queue of rollouts, the newest weights as
bytes, and a handshake that says what the learner learns. Actors reach all of it by sessions whose
target is the learner, and need no server of their own. This is the only place where TensorFlow 1
is used: its multi-client runtime is reached through sessions.

The runtime runs an enqueue once it has received all of it, so a rollout arrives whole or not at
all. A call whose answer is lost may have taken effect; it is not repeated, so that no rollout is
learned from twice.

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
_POLL_SECONDS = 0.05
_VERSION_BYTES = 8


class _Variable:
    """A variable of the learner's server, known to every session by its name."""

    def __init__(self, name: str, dtype: tf.DType, shape: list[int | None]):
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
        self.value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        self.new = _v1.placeholder(dtype, shape)
        self.assign = tf.raw_ops.AssignVariableOp(resource=handle, value=self.new)


class _Exchange:
    """The graph of what lives on the learner's server.

    Attributes:
      handshake: what the learner learns, as JSON.
      version: of the newest weights.
      weights: their version and then all of them, as bytes.
      finished: whether there is nothing left to learn.
    """

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self._on_server():
            self.handshake = _Variable("handshake", tf.string, [])
            self.version = _Variable("version", tf.int64, [])
            self.weights = _Variable("weights", tf.uint8, [None])
            self.finished = _Variable("finished", tf.bool, [])
            messages = tf.queue.FIFOQueue(_MAX_MESSAGES, [tf.string], [[]], shared_name="messages")
            self.message = _v1.placeholder(tf.string, [])
            self.enqueue_message = messages.enqueue(self.message)
            self.dequeue_message = messages.dequeue()
            self.num_messages = messages.size()

    def add_queue(self, spec: Rollout, capacity: int, batch_size: int) -> None:
        """Adds the queue, which all who use it must describe alike."""
        leaves = tf.nest.flatten(spec)
        with self._on_server():
            queue = tf.queue.FIFOQueue(
                capacity,
                [leaf.dtype for leaf in leaves],
                [leaf.shape for leaf in leaves],
                shared_name="rollouts",
            )
            self.rollouts = [_v1.placeholder(leaf.dtype, [None, *leaf.shape]) for leaf in leaves]
            self.put = queue.enqueue_many(self.rollouts)
            self.take = queue.dequeue_many(batch_size)
            self.size = queue.size()
            self.close = queue.close(cancel_pending_enqueues=True)

    def _on_server(self) -> Any:
        stack = contextlib.ExitStack()
        stack.enter_context(self.graph.as_default())
        stack.enter_context(tf.device(f"/job:{_JOB}/task:0/device:CPU:0"))
        return stack


class LearnerPort:
    """The learner's side: takes rollouts, shows weights. Any thread may call it.

    The server itself ends with the process.

    Attributes:
      address: where processes of the same machine find it.
    """

    def __init__(self, port: int, spec: Rollout, batch_size: int, handshake: Mapping[str, Any]):
        """Starts the server, which lets nobody in before the first `publish`.

        Args:
          port: to listen on, on all interfaces.
          spec: of one environment's rollout.
          batch_size: rollouts a batch; so many may wait, too.
          handshake: what actors must agree with, JSON.

        Raises:
          UserError: if the port is taken.
        """
        _check_free(port)
        self.address = f"localhost:{port}"
        self._spec = spec
        self._capacity = batch_size
        self._handshake = json.dumps({"capacity": batch_size, **handshake})
        self._exchange = _Exchange()
        self._exchange.add_queue(spec, batch_size, batch_size)
        # Graphics memory is the learner's own, whatever the server finds.
        options = _v1.ConfigProto(device_count={"GPU": 0})
        cluster = tf.train.ClusterSpec({_JOB: [self.address]})
        self._server = tf.distribute.Server(cluster, _JOB, 0, config=options)
        self._session = _v1.Session(self._server.target, graph=self._exchange.graph)
        self._open = False
        self._any_taken = False
        self._closed = False

    def publish(self, version: int, weights: bytes) -> None:
        """Shows weights; the first time, opens to actors."""
        exchange = self._exchange
        blob = np.frombuffer(np.int64(version).tobytes() + weights, np.uint8)
        # Weights before their version: who sees a version finds weights at least as new.
        self._session.run(exchange.weights.assign, {exchange.weights.new: blob})
        self._session.run(exchange.version.assign, {exchange.version.new: version})
        if not self._open:
            self._session.run(exchange.finished.assign, {exchange.finished.new: False})
            self._session.run(exchange.handshake.assign, {exchange.handshake.new: self._handshake})
            self._open = True

    def get(self, batch_size: int) -> Rollout | None:
        """Waits for rollouts `[batch_size, T + 1, ...]`; returns None once closed."""
        try:
            # A dequeue takes what there is while it waits for the rest, which `fill` would not see.
            while (
                not (self._any_taken or self._closed) and self.fill() * self._capacity < batch_size
            ):
                time.sleep(_POLL_SECONDS)
            leaves = self._session.run(self._exchange.take)
            self._any_taken = True
        except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
            return None
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def fill(self) -> float:
        """Rollouts that wait, as a share of the capacity."""
        return self._session.run(self._exchange.size) / self._capacity

    def messages(self) -> list[str]:
        """Returns the messages of actors since the last call."""
        count = self._session.run(self._exchange.num_messages)
        return [self._session.run(self._exchange.dequeue_message).decode() for _ in range(count)]

    def finish(self) -> None:
        """Tells actors that there is nothing left to learn."""
        self._session.run(self._exchange.finished.assign, {self._exchange.finished.new: True})

    def close(self) -> None:
        """Wakes who waits for rollouts; may be called twice."""
        self._closed = True
        self._session.run(self._exchange.close)


class LearnerStatus(NamedTuple):
    """The learner's state that actors need to know."""

    free: int  # rollouts that the queue still takes
    version: int  # of the newest weights
    finished: bool  # whether there is nothing left to learn


class LearnerLink:
    """An actor's side: finds the learner, loses it, and finds it again. For one thread.

    While there is no learner, calls answer that there is none: mostly at once, but one in a while
    looks for it, less often with each time in vain, and waits for some seconds if it is there and
    says nothing.
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

        Args:
          address: HOST:PORT of the learner.
          spec: of one environment's rollout.
          handshake: what must be the same on both sides, flag to value.
          name: of the actor job, for the learner's log.
          may_differ: what is logged on both sides if it is not the same, flag to value.
        """
        self._may_differ = may_differ or {}
        self._address = address
        self._spec = spec
        self._handshake = handshake
        self._name = name
        self._session: Any = None  # While there is no learner.
        self._exchange = _Exchange()
        self._capacity = 0
        self._back_off = _FIRST_BACK_OFF_SECONDS
        self._next_try = 0.0
        self._next_warning = 0.0

    def status(self) -> LearnerStatus | None:
        """Asks for the learner's state; returns None if there is no learner."""
        found = self._run(
            lambda exchange: (exchange.size, exchange.version.value, exchange.finished.value)
        )
        if found is None:
            return None
        size, version, finished = found
        return LearnerStatus(max(0, self._capacity - int(size)), int(version), bool(finished))

    def put(self, rollouts: Rollout) -> None:
        """Sends rollouts `[M, T + 1, ...]`, which are lost if the learner is."""
        self._run(lambda exchange: exchange.put, tf.nest.flatten(rollouts))

    def weights(self) -> tuple[int, bytes] | None:
        """The newest weights and their version; None if there is no learner."""
        blob = self._run(lambda exchange: exchange.weights.value)
        if blob is None:
            return None
        return int(blob[:_VERSION_BYTES].view(np.int64)[0]), blob[_VERSION_BYTES:].tobytes()

    def _run(self, fetch: Callable[[_Exchange], Any], rollouts: Sequence[Any] = ()) -> Any:
        """What the learner answers; None if there is none."""
        if self._session is None and not self._connect():
            return None
        feeds = dict(zip(self._exchange.rollouts, rollouts, strict=True)) if rollouts else None
        try:
            result = self._session.run(fetch(self._exchange), feeds)
            return True if result is None else result
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
        """Looks for the learner if it is time to.

        Raises:
          UserError: if it learns something else.
        """
        if time.monotonic() < self._next_try:
            return False
        host, _, port = self._address.rpartition(":")
        config = _v1.ConfigProto(operation_timeout_in_ms=_TIMEOUT_MS)
        try:
            # Whether anybody is there is learned sooner so than from the runtime.
            place = (host.strip("[]"), int(port))
            socket.create_connection(place, _PROBE_SECONDS).close()
            exchange = _Exchange()
            session = _v1.Session(f"grpc://{self._address}", graph=exchange.graph, config=config)
            handshake = json.loads(session.run(exchange.handshake.value))
        except (OSError, UnicodeError, tf.errors.OpError) as error:
            if time.monotonic() > self._next_warning:
                self._next_warning = time.monotonic() + _SECONDS_BETWEEN_WARNINGS
                why = type(error).__name__ if isinstance(error, tf.errors.OpError) else error
                logging.warning("waiting for the learner at %s (%s)", self._address, why)
            self._try_later()
            return False
        self._check(handshake, session, exchange)
        self._capacity = handshake["capacity"]
        exchange.add_queue(self._spec, self._capacity, batch_size=1)
        self._session, self._exchange = session, exchange
        self._back_off = _FIRST_BACK_OFF_SECONDS
        return True

    def _try_later(self) -> None:
        # At random, so that not all actors of a learner that is back come at the same moment.
        self._next_try = time.monotonic() + self._back_off * random.uniform(0.5, 1.0)
        self._back_off = min(2 * self._back_off, _MAX_BACK_OFF_SECONDS)

    def _check(self, handshake: Mapping[str, Any], session: Any, exchange: _Exchange) -> None:
        """Raises UserError, and sends the learner a message, if the two sides differ."""
        allowed = self._compare(self._may_differ, handshake)
        if allowed:
            logging.warning("%s", allowed)
            self._send_message(f"{self._name}: {allowed}", session, exchange)
        differences = self._compare(self._handshake, handshake)
        if not differences:
            return
        self._send_message(f"{self._name} refused: {differences}", session, exchange)
        raise UserError(
            f"the learner at {self._address} has another configuration: {differences}; give "
            "both the same flags"
        )

    def _compare(self, own: Mapping[str, Any], handshake: Mapping[str, Any]) -> str:
        """In words, what is another at the learner; empty if nothing is."""
        return "; ".join(
            f"{name} is {handshake.get(name)} at the learner and {value} at {self._name}"
            for name, value in own.items()
            if handshake.get(name) != value
        )

    def _send_message(self, text: str, session: Any, exchange: _Exchange) -> None:
        with contextlib.suppress(tf.errors.OpError):
            session.run(exchange.enqueue_message, {exchange.message: text})


def _close(session: Any) -> None:
    """Lets the learner forget a session, if it can be told."""
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

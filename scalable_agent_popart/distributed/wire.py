"""Rollouts and weights on their way between processes: gRPC, closed by mutual TLS.

The learner serves its `RolloutQueue` and its newest weights to jobs that show a certificate which
the run's own authority has signed. Whoever has none gets no answer. Requests and answers are bytes
of a layout that follows from the learner's own spec; nothing in them is executed, and what does not
fit is refused.

A rollout arrives whole or not at all. A call whose answer is lost is not repeated, and a request
that is sent twice is refused, so that no rollout is learned from twice.
"""

import contextlib
import ipaddress
import json
import os
import random
import secrets
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree
from absl import logging

from environments import NUM_WORD_BUCKETS, Observation
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.distributed.handshake import differences
from scalable_agent_popart.distributed.keys import LEARNER, Keys
from scalable_agent_popart.errors import FAILS_AGAIN, UserError, exit_code
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.system import hardware

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # It would report every stranger who connects.
import grpc

_SERVICE = "Learner"
# A call that takes longer has lost the learner.
_TIMEOUT_SECONDS = 20.0
_PROBE_SECONDS = 2.0
_FIRST_BACK_OFF_SECONDS, _MAX_BACK_OFF_SECONDS = 0.2, 5.0
_SECONDS_BETWEEN_WARNINGS = 60.0
# Threads that answer calls, and how many of them may wait for the queue at a time, and how long.
_NUM_SERVER_THREADS, _MAX_WAITING, _WAIT_SECONDS = 16, 8, 0.2
_HANDSHAKE_MILLISECONDS = 10_000
# Questions in vain that all clients together ask while the queue is full, and their longest pause.
_QUESTIONS_PER_SECOND, _MAX_PAUSE_SECONDS = 100.0, 10.0
# Answers with weights that are on their way at a time; each has a copy of them.
_MAX_WEIGHTS_ON_THEIR_WAY = 16

_MAX_ROLLOUTS_PER_CALL, _USUAL_CALL_BYTES = 8, 4 * 2**20
_MAX_HANDSHAKE_BYTES, _MAX_NAME, _MAX_LINE = 2**19, 100, 500
# How many sessions and dropped clients are remembered; the oldest are forgotten.
_MAX_REMEMBERED = 2**16

_SESSION_BYTES = 16  # All requests but the handshake begin with their session.
_ASK = struct.Struct("<16sB")  # session, whether to wait a moment for free capacity
_FETCH = struct.Struct("<16sq")  # session, version that is known
_PUT = struct.Struct("<16sQI")  # session, number of the request in it, rollouts that follow
_STATUS = struct.Struct("<IIqBf")  # rollouts taken, and a LearnerStatus
_VERSION = struct.Struct("<q")
_MAX_VERSION = 2**48


class LearnerStatus(NamedTuple):
    """The learner's state as actors need to know it."""

    free: int  # rollouts that its queue still takes
    version: int  # of the newest weights
    finished: bool  # nothing is left to learn
    pause: float = 0.0  # seconds until the client may ask again, if nothing is free


def max_rollouts_per_call(spec: Rollout) -> int:
    """Returns how many rollouts one request may hold."""
    return max(1, min(_MAX_ROLLOUTS_PER_CALL, _USUAL_CALL_BYTES // _num_bytes(spec)))


def _num_bytes(spec: Rollout) -> int:
    leaves = tf.nest.flatten(spec)
    return sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves)


def to_bytes(rollouts: Rollout, header: bytes = b"") -> bytes:
    """Lays out rollouts `[M, ...]` after a header, one leaf of all of them after the other."""
    arrays = [np.ascontiguousarray(leaf) for leaf in tf.nest.flatten(rollouts)]
    return b"".join([header, *(array.data for array in arrays)])


class _Reader:
    """Reads rollouts from bytes, and finds what no actor of the run can have sent."""

    def __init__(self, spec: Rollout, num_tasks: int):
        paths, leaves = zip(*tree.flatten_with_path(spec), strict=True)
        self._names = [".".join(map(str, path)) for path in paths]
        self._types = [np.dtype(leaf.dtype.as_numpy_dtype) for leaf in leaves]
        self._shapes = [tuple(leaf.shape) for leaf in leaves]
        self._sizes = [leaf.shape.num_elements() for leaf in leaves]
        self.num_bytes = _num_bytes(spec)
        # Numbers of one kind end before the value that the same leaf has here.
        ends = tf.nest.map_structure(lambda leaf: None, spec)
        observation = ends.env_outputs.observation
        if isinstance(observation, Observation):
            observation = observation._replace(instruction=NUM_WORD_BUCKETS + 1)
        num_actions = spec.agent_outputs.policy_logits.shape[-1]
        ends = ends._replace(
            task_id=num_tasks,
            env_outputs=ends.env_outputs._replace(observation=observation),
            agent_outputs=ends.agent_outputs._replace(action=num_actions),
            policy_version=_MAX_VERSION,
        )
        self._ends = tf.nest.flatten(ends)

    def read(self, data: memoryview, count: int) -> list[np.ndarray]:
        """Returns the leaves of `count` rollouts, `[count, ...]`.

        Raises ValueError if no actor of the run can have sent them, and FloatingPointError if a
        number is not finite, as where an environment returns such a reward.
        """
        if len(data) != count * self.num_bytes:
            raise ValueError(f"{len(data)} bytes are no {count} rollouts")
        leaves, start = [], 0
        described = zip(
            self._names, self._types, self._shapes, self._sizes, self._ends, strict=True
        )
        for name, dtype, shape, size, end in described:
            # Any byte but 0 and 1 is no bool.
            raw = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype, count * size, start)
            if dtype.kind == "b":
                end = 2
            if end is not None and not (raw.min() >= 0 and raw.max() < end):
                found = raw.min() if raw.min() < 0 else raw.max()
                raise ValueError(f"{name} holds {found}, which is not in [0, {end})")
            if dtype.kind == "f" and not np.isfinite(raw).all():
                raise FloatingPointError(f"{name} holds {raw[~np.isfinite(raw)][0]}")
            leaves.append(raw.view(dtype).reshape(count, *shape))
            start += raw.nbytes
        return leaves


class LearnerPort:
    """The learner's side, for calls from any thread; use as a context manager."""

    def __init__(
        self,
        address: str,
        spec: Rollout,
        num_tasks: int,
        queue: RolloutQueue,
        handshake: Mapping[str, Any],
        keys: Keys,
        may_differ: Mapping[str, Any] | None = None,
    ):
        """Takes the port, but lets nobody in before the first `publish`.

        A port 0 of the address is any that is free; `address` then has it. An address of the
        loopback interface is reached from this machine only. Actor jobs must have the handshake's
        settings; those that may differ are logged where they do. Raises UserError if the port is
        taken.
        """
        self._queue = queue
        self._reader = _Reader(spec, num_tasks)
        self._max_rollouts = max_rollouts_per_call(spec)
        self._handshake, self._may_differ = dict(handshake), dict(may_differ or {})
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._may_wait = threading.Semaphore(_MAX_WAITING)
        self._may_send = threading.Semaphore(_MAX_WEIGHTS_ON_THEIR_WAY)
        self._sessions: OrderedDict[bytes, int] = OrderedDict()  # To the last request's number.
        # Why clients were dropped, by their connection.
        self._dropped: OrderedDict[str, tuple[grpc.StatusCode, str]] = OrderedDict()
        self._next_question = 0.0  # When the last of those who were told to pause asks again.
        self._weights = b""
        self._version = -1
        self._finished = False
        limit = max(_PUT.size + self._max_rollouts * self._reader.num_bytes, _MAX_HANDSHAKE_BYTES)
        self._pool = futures.ThreadPoolExecutor(_NUM_SERVER_THREADS, "port")
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.so_reuseport", 0),  # It would share the port with who has it already.
                # What is larger never comes here; what is a little too large is named.
                ("grpc.max_receive_message_length", 2 * limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
                # Strangers who only connect must leave files for the learner's own work.
                ("grpc.max_allowed_incoming_connections", hardware.allow_open_files() // 2),
            ],
        )
        methods = {
            "Handshake": self._shake_hands,
            "Status": self._answer_status,
            "Weights": self._answer_weights,
            "Put": self._put,
        }
        handlers = {n: grpc.unary_unary_rpc_method_handler(m) for n, m in methods.items()}
        self._server.add_registered_method_handlers(_SERVICE, handlers)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(_SERVICE, handlers)]
        )
        credentials = grpc.ssl_server_credentials(
            [(keys.private_key, keys.certificate)], keys.authority, require_client_auth=True
        )
        host, _, port = address.rpartition(":")
        bound = self._bind(host, port, credentials)
        self.address = f"{host}:{bound}"
        self._started = False

    def _bind(self, host: str, port: str, credentials: grpc.ServerCredentials) -> int:
        # Where IPv6 is switched off, all interfaces are those of IPv4.
        interfaces = ["[::]", "0.0.0.0"]
        with contextlib.suppress(ValueError):  # It is a name.
            if ipaddress.ip_address(host.strip("[]")).is_loopback:
                interfaces = [host]
        if host == "localhost":
            interfaces = ["127.0.0.1"]
        for interface in interfaces:
            try:
                bound = self._server.add_secure_port(f"{interface}:{port}", credentials)
            except RuntimeError:
                continue
            if bound:
                return bound
        raise UserError(
            f"port {port} of --learner_address cannot be listened on; stop what uses it, give "
            "another, or 0 for any that is free"
        )

    def publish(self, version: int, weights: bytes) -> None:
        """Shows weights; the first time, opens to actors."""
        self._weights = _VERSION.pack(version) + weights
        self._version = version
        if not self._started:
            self._started = True
            self._server.start()

    def finish(self) -> None:
        """Tells actors that nothing is left to learn."""
        self._finished = True

    def close(self) -> None:
        """Ends all calls and connections; may be called twice."""
        self._server.stop(grace=0).wait()
        self._pool.shutdown()

    def raise_error(self) -> None:
        """Raises what a thread that put rollouts into the queue has raised, if one has."""
        if self._error is not None:
            raise self._error

    def _status(self, waited: bool, num_taken: int = 0) -> bytes:
        free = self._queue.free()
        pause = 0.0 if free or self._finished else self._pause(waited)
        return _STATUS.pack(num_taken, free, self._version, self._finished, pause)

    def _pause(self, waited: bool) -> float:
        """Returns the seconds after which a client may ask again, each a little after the last.

        So all clients together ask no more often than a few of them, and each in its turn. If it is
        no other's turn, one that has waited here, as only some can at a time, may do so again.
        """
        with self._lock:
            now = time.monotonic()
            pause = min(max(0.0, self._next_question - now), _MAX_PAUSE_SECONDS)
            if pause or not waited:
                self._next_question = now + pause + 1 / _QUESTIONS_PER_SECOND
        return pause

    def _answer_status(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers with the status, if asked to once there is capacity, or a moment later.

        So the next batch is here soon after one was taken.
        """
        self._admit(request, context)
        if len(request) != _ASK.size:
            self._drop(context, f"asked for the status with {len(request)} bytes")
        _, waits = _ASK.unpack(request)
        waited = waits and not self._finished and self._may_wait.acquire(blocking=False)
        if waited:
            try:
                self._queue.free(_WAIT_SECONDS)
            finally:
                self._may_wait.release()
        return self._status(waited)

    def _answer_weights(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers with the newest weights behind their version, if that is not the client's.

        If many answers are on their way, the client goes on with what it has, for now.
        """
        self._admit(request, context)
        if len(request) != _FETCH.size:
            self._drop(context, f"asked for weights with {len(request)} bytes")
        _, known = _FETCH.unpack(request)
        weights = self._weights
        if _VERSION.unpack_from(weights)[0] == known or not self._may_send.acquire(blocking=False):
            return b""
        if not context.add_callback(self._may_send.release):  # The client is gone already.
            self._may_send.release()
        return weights

    def _shake_hands(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers with this side's settings, and a session if the client's are the same."""
        try:
            if len(request) > _MAX_HANDSHAKE_BYTES:
                raise ValueError(f"{len(request)} bytes")
            told = json.loads(request)
            name, settings, others = (told[part] for part in ("name", "settings", "may_differ"))
            if not isinstance(name, str) or {type(settings), type(others)} != {dict}:
                raise ValueError("parts of other types")
            if len(name) > _MAX_NAME:
                raise ValueError("a long name")
            noticed = differences(others, self._may_differ, name)
            refused = differences(settings, self._handshake, name)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._drop(context, f"shook hands with {type(error).__name__}: {error}")
        with self._lock:  # It may be another client, by a connection from the same port.
            self._dropped.pop(context.peer(), None)
        if noticed:
            logging.warning("%s: %s", _one_line(name), _one_line(noticed))
        session = b""
        if refused:
            logging.warning("%s refused: %s", _one_line(name), _one_line(refused))
        else:
            session = secrets.token_bytes(_SESSION_BYTES)
            with self._lock:
                self._sessions[session] = 0
                if len(self._sessions) > _MAX_REMEMBERED:
                    self._sessions.popitem(last=False)
        answer = {
            "settings": self._handshake,
            "may_differ": self._may_differ,
            "session": session.hex(),
        }
        return json.dumps(answer).encode()

    def _put(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Takes as many of the rollouts as the queue has capacity for, now or in a moment.

        Of many who send at that time only some can wait, and others are to ask before they send
        again.
        """
        self._admit(request, context)
        if len(request) < _PUT.size:
            self._drop(context, f"put {len(request)} bytes")
        session, number, count = _PUT.unpack_from(request)
        with self._lock:
            last = self._sessions.get(session, number)
            self._sessions[session] = max(number, last)
            self._sessions.move_to_end(session)
        if number <= last:
            self._drop(context, f"sent request {number} again")
        if not 1 <= count <= self._max_rollouts:
            self._drop(context, f"put {count} rollouts at once")
        try:
            leaves = self._reader.read(memoryview(request)[_PUT.size :], count)
        except FloatingPointError as error:
            why = f"put a number that is not finite: {error}"
            self._drop(context, why, grpc.StatusCode.INVALID_ARGUMENT)
        except ValueError as error:
            self._drop(context, f"put rollouts that cannot be: {error}")
        num_taken = self._queue.reserve(count, 0.0)
        waited = num_taken == 0 and not self._finished and self._may_wait.acquire(blocking=False)
        if waited:
            try:
                num_taken = self._queue.reserve(count, _WAIT_SECONDS)
            finally:
                self._may_wait.release()
        if num_taken:
            try:
                self._queue.put_leaves([leaf[:num_taken] for leaf in leaves])
            except BaseException as error:
                self._error = error
                raise
        return self._status(waited or num_taken > 0, num_taken)

    def _admit(self, request: bytes, context: grpc.ServicerContext) -> None:
        """Lets only clients pass that have shaken hands and were not dropped since."""
        with self._lock:
            dropped = self._dropped.get(context.peer())
            known = request[:_SESSION_BYTES] in self._sessions
        if dropped is not None:
            context.abort(*dropped)
        if not known:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such session")

    def _drop(
        self,
        context: grpc.ServicerContext,
        why: str,
        code: grpc.StatusCode = grpc.StatusCode.PERMISSION_DENIED,
    ) -> None:
        """Answers this client only with the reason until it shakes hands again; logs it once."""
        peer, why = context.peer(), _one_line(why)
        with self._lock:
            known = peer in self._dropped
            self._dropped[peer] = code, why
            if len(self._dropped) > _MAX_REMEMBERED:
                self._dropped.popitem(last=False)
        if not known:
            logging.warning("dropped a client at %s, which %s", peer, why)
        context.abort(code, why)


class LearnerLink:
    """An actor job's side: finds the learner, loses it, and finds it again. For any thread.

    While there is no learner, calls return at once, but for one in a while that looks for it: less
    often with each time in vain, and for some seconds if it is there and does not answer.
    """

    def __init__(
        self,
        locate: Callable[[], tuple[str, Keys]],
        handshake: Mapping[str, Any],
        name: str,
        may_differ: Mapping[str, Any] | None = None,
    ):
        """Connects nowhere yet.

        `locate` returns the learner's address and the keys, or raises FileNotFoundError while there
        are none. Another error of a file system, which may pass, is taken alike. The handshake must
        be the same on both sides; differences in `may_differ` are only logged.
        """
        self._locate = locate
        self._handshake = handshake
        self._name = name
        self._may_differ = may_differ or {}
        self._lock = threading.Lock()
        self._connecting, self._putting = threading.Lock(), threading.Lock()
        self._asking = threading.Lock()
        self._latest: LearnerStatus | None = None
        self._next_question = 0.0
        self._connection: _Connection | None = None  # While there is no learner.
        self._back_off = _FIRST_BACK_OFF_SECONDS
        self._next_try = 0.0
        self._next_warning = 0.0

    def status(self, seconds: float = 0.0) -> LearnerStatus | None:
        """Asks for the learner's status, waiting so long for free capacity; None without a learner.

        One thread asks at a time, and none before the pause is over that came with the last answer.
        Otherwise it returns that answer, with nothing free.
        """
        end = time.monotonic() + seconds
        if not self._asking.acquire(timeout=seconds):
            return self._latest
        try:
            now = time.monotonic()
            time.sleep(max(0.0, min(self._next_question, end) - now))
            if max(now, end) < self._next_question:
                return self._latest
            answer = self._call("Status", lambda c: _ASK.pack(c.session, seconds > 0))
            return self._note(answer)[1]
        finally:
            self._asking.release()

    def put(self, rollouts: Rollout) -> tuple[int, LearnerStatus] | None:
        """Sends rollouts `[M, T + 1, ...]`; returns how many, the first ones, were taken.

        Returns None if the learner is lost; whether it took some of them is not known.
        """
        count = len(rollouts.task_id)
        with self._putting:  # Numbers must arrive in their order.
            answer = self._call("Put", lambda c: to_bytes(rollouts, c.next_header(count)))
        taken, status = self._note(answer)
        return None if status is None else (taken, status)

    def weights(self, known: int = -1) -> tuple[int, memoryview] | None:
        """Returns the newest weights' version and bytes.

        Returns None if there is no learner or if `known` is their version.
        """
        answer = self._call("Weights", lambda connection: _FETCH.pack(connection.session, known))
        if not answer:
            return None
        return _VERSION.unpack_from(answer)[0], memoryview(answer)[_VERSION.size :]

    def _note(self, answer: bytes | None) -> tuple[int, LearnerStatus | None]:
        """Returns the rollouts that were taken and the status, which it keeps for all threads."""
        taken, status = 0, None
        if answer is not None:
            taken, *fields = _STATUS.unpack(answer)
            status = LearnerStatus(*fields)
        self._latest = None if status is None else status._replace(free=0)
        self._next_question = time.monotonic() + (0.0 if status is None else status.pause)
        return taken, status

    def close(self) -> None:
        """Ends the connection; later calls would make another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.channel.close()

    def _call(self, method: str, request: Callable[["_Connection"], bytes]) -> bytes | None:
        """Returns the learner's answer; None if there is no learner."""
        connection = self._connection or self._connect()
        if connection is None:
            return None
        message = request(connection)
        try:
            return connection.call(method, message)
        except grpc.RpcError as error:
            code = error.code()
            _refuse_misunderstanding(error, connection.address)
        except ValueError:  # Another thread has closed the channel.
            return None
        with self._lock:
            first = self._connection is connection
            if first:
                self._connection = None
        if first:
            connection.channel.close()
            logging.warning("lost the learner at %s: %s", connection.address, code.name)
            self._try_later()
        return None

    def _connect(self) -> "_Connection | None":
        """Looks for the learner if it is time to; raises UserError if it learns something else."""
        if time.monotonic() < self._next_try or not self._connecting.acquire(blocking=False):
            return None
        address, channel = "", None
        try:
            if self._connection is not None:  # Another thread was quicker.
                return self._connection
            address, keys = self._locate()
            channel = _open_channel(address, keys)
            connection = _Connection(channel, address)
            grpc.channel_ready_future(channel).result(_PROBE_SECONDS)
            told = {"name": self._name, "settings": self._handshake, "may_differ": self._may_differ}
            answer = json.loads(connection.call("Handshake", json.dumps(told).encode()))
            connection.session = bytes.fromhex(answer["session"])
            if noticed := differences(self._may_differ, answer["may_differ"], self._name):
                logging.warning("%s", noticed)
            if refused := differences(self._handshake, answer["settings"], self._name):
                raise UserError(
                    f"the learner at {address} has another configuration: {refused}; give both "
                    "the same flags and the same suite"
                )
            self._back_off = _FIRST_BACK_OFF_SECONDS
            with self._lock:
                self._connection, channel = connection, None
            return connection
        except (OSError, UserError, grpc.RpcError, grpc.FutureTimeoutError) as error:
            if isinstance(error, grpc.RpcError):
                _refuse_misunderstanding(error, address)
            elif isinstance(error, UserError) and exit_code(error) == FAILS_AGAIN:
                raise
            if time.monotonic() > self._next_warning:
                self._next_warning = time.monotonic() + _SECONDS_BETWEEN_WARNINGS
                where = f" at {address}, if that has the same keys"
                if isinstance(error, FileNotFoundError):
                    where = f" that has no {error.filename} yet"
                elif isinstance(error, OSError | UserError):
                    where = f": {error}"
                logging.warning("waiting for the learner%s", where)
            self._try_later()
            return None
        finally:
            self._connecting.release()
            if channel is not None:
                channel.close()

    def _try_later(self) -> None:
        # At random, so that not all actors of a learner that is back come at the same moment.
        self._next_try = time.monotonic() + self._back_off * random.uniform(0.5, 1.0)
        self._back_off = min(2 * self._back_off, _MAX_BACK_OFF_SECONDS)


class _Connection:
    """A way to one life of a learner."""

    def __init__(self, channel: grpc.Channel, address: str):
        self.channel = channel
        self.address = address
        self.session = b""
        self._num_requests = 0

    def call(self, method: str, request: bytes) -> bytes:
        return self.channel.unary_unary(f"/{_SERVICE}/{method}")(request, timeout=_TIMEOUT_SECONDS)

    def next_header(self, count: int) -> bytes:
        self._num_requests += 1
        return _PUT.pack(self.session, self._num_requests, count)


def _open_channel(address: str, keys: Keys) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(keys.authority, keys.private_key, keys.certificate)
    options = [
        ("grpc.ssl_target_name_override", LEARNER),  # Its certificate's name, at any address.
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),  # No other channel's failures delay this one.
        ("grpc.max_receive_message_length", -1),
    ]
    return grpc.secure_channel(address, credentials, options)


def _refuse_misunderstanding(error: grpc.RpcError, address: str) -> None:
    """Raises UserError if a learner has dropped this side for what it sent."""
    if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
        raise UserError(
            f"the learner at {address} dropped this job, which {error.details()}; mend the "
            "environment that returned it"
        ) from error
    if error.code() == grpc.StatusCode.PERMISSION_DENIED:
        raise UserError(
            f"the learner at {address} does not understand this job ({error.details()}); run the "
            "same version of the program on both sides"
        ) from error


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:_MAX_LINE])

"""The learner's port: its queue and its newest weights for actor jobs, closed by mutual TLS.

Only jobs with a certificate that the run's own authority has signed get an answer. Nothing in a
message is executed, and what does not fit the learner's own spec is refused. A rollout arrives
whole or not at all, and a request that is sent twice is refused the second time.
"""

import contextlib
import functools
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures

import grpc
import numpy as np
from absl import logging
from google.protobuf.message import DecodeError
from grpc import ServicerContext as Context

from scalable_agent_popart.acting.policy import WeightSource
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.distributed import learner_pb2 as pb
from scalable_agent_popart.distributed import wire
from scalable_agent_popart.distributed.handshake import differences
from scalable_agent_popart.distributed.keys import Keys
from scalable_agent_popart.errors import UserError, one_line
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.system import hardware
from scalable_agent_popart.system.threads import Threads

# Threads that answer calls, how many of them may wait for the queue at a time, and how long.
_NUM_SERVER_THREADS, _MAX_WAITING, _WAIT_SECONDS = 80, 64, 1.0
_HANDSHAKE_MILLISECONDS = 10_000
# Questions per second of all clients together while the queue is full, and their longest pause.
_QUESTIONS_PER_SECOND, _MAX_PAUSE_SECONDS = 100.0, 10.0
# Answers with weights that may be on their way at a time; each holds a copy.
_MAX_WEIGHTS_ON_THEIR_WAY = 16
_MAX_HANDSHAKE_BYTES, _MAX_LINE = 2**19, 500
# The learner remembers the last so many sessions. A forgotten client shakes hands again.
_MAX_SESSIONS = 2**16


class LearnerPort(Threads):
    """The service of `learner.proto`; all methods may be called from any thread."""

    def __init__(
        self,
        address: str,
        spec: Rollout,
        num_tasks: int,
        queue: RolloutQueue,
        source: WeightSource,
        handshake: Mapping[str, str],
        keys: Keys,
    ):
        """Takes the port, but lets nobody in before `start`.

        Port 0 stands for any that is free, which `address` then has. An address of the loopback
        interface is reached from this machine only. Actor jobs must have the handshake's settings.
        Raises UserError if the port is taken.
        """
        super().__init__()
        self._queue, self._source = queue, source
        self._reader = wire.RolloutReader(spec, num_tasks)
        self._handshake = handshake
        self._finished = False
        self._lock = threading.Lock()
        self._sessions: dict[bytes, int] = {}  # The number of each session's last `Put`.
        self._may_wait = threading.Semaphore(_MAX_WAITING)
        self._next_question = 0.0  # When the last of the pauses is over.
        self._may_send = threading.Semaphore(_MAX_WEIGHTS_ON_THEIR_WAY)
        self._weights = pb.WeightsReply(version=-1)  # The newest copy of finite weights.
        self._copied = -1  # The version that was copied last, whether it was finite or not.
        self._copying = threading.Lock()
        self._pool = futures.ThreadPoolExecutor(_NUM_SERVER_THREADS, "port")
        limit = max(self._reader.max_bytes, _MAX_HANDSHAKE_BYTES)
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(functools.partial(self._answer, name))
            for name in wire.METHODS
        }
        self._server = grpc.server(
            self._pool,
            handlers=[grpc.method_handlers_generic_handler(wire.SERVICE, handlers)],
            options=[
                ("grpc.so_reuseport", 0),  # A port that is taken must not be shared.
                # gRPC refuses what is larger; what is smaller than that gets our own message.
                ("grpc.max_receive_message_length", 2 * limit),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
                # Strangers who only connect must leave file handles for the learner's work.
                ("grpc.max_allowed_incoming_connections", hardware.allow_open_files() // 2),
            ],
        )
        credentials = grpc.ssl_server_credentials(
            [(keys.private_key, keys.certificate)], keys.authority, require_client_auth=True
        )
        host, _, port = address.rpartition(":")
        interface = "[::]"  # gRPC takes it for all interfaces, also those without IPv6.
        with contextlib.suppress(ValueError):  # The host may be a name.
            ip_address = "127.0.0.1" if host == "localhost" else host
            if ipaddress.ip_address(ip_address.strip("[]")).is_loopback:
                interface = ip_address
        try:
            bound = self._server.add_secure_port(f"{interface}:{port}", credentials)
        except RuntimeError as error:
            raise UserError(
                f"port {port} of --learner_address cannot be listened on; stop what uses it, give "
                "another, or 0 for any that is free"
            ) from error
        self.address = f"{host}:{bound}"

    def start(self) -> None:
        """Lets actors in."""
        self._server.start()

    def finish(self) -> None:
        """Announces to actors that nothing is left to learn."""
        self._finished = True

    def stop(self) -> None:
        """Ends all calls and connections, and the threads that answer."""
        self._server.stop(grace=0).wait()
        self._pool.shutdown()

    def _answer(self, method: str, data: bytes, context: Context) -> bytes:
        """Answers only readable requests, from clients that shook hands and were not dropped."""
        try:
            if method == "Handshake" and len(data) > _MAX_HANDSHAKE_BYTES:
                raise DecodeError
            # This reads a `Put` up to its session.
            head = data[: wire.PUT_SESSION_BYTES] if method == "Put" else data
            request = wire.METHODS[method][0].FromString(head)
        except DecodeError:
            what = f"sent {len(data)} bytes that are no /{wire.SERVICE}/{method}"
            self._drop(context, ValueError(what))
        if method != "Handshake" and request.session not in self._sessions:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such session")
        arguments = (request, context, data) if method == "Put" else (request, context)
        try:
            return getattr(self, method)(*arguments).SerializeToString()
        except BaseException as error:
            if context.code() is None:  # No client is refused, so the error is the learner's own.
                self._error = error
            raise

    def Handshake(self, request: pb.HandshakeRequest, context: Context) -> pb.HandshakeReply:
        """Returns the learner's settings, and a session if the client's are the same."""
        name = one_line(request.name[:_MAX_LINE])
        reply = pb.HandshakeReply(settings=self._handshake)
        if refused := differences(request.settings, self._handshake, name):
            logging.warning("%s refused: %s", name, one_line(refused[:_MAX_LINE]))
        else:
            reply.session = secrets.token_bytes(wire.SESSION_BYTES)
            with self._lock:
                self._sessions[reply.session] = 0
                if len(self._sessions) > _MAX_SESSIONS:
                    del self._sessions[next(iter(self._sessions))]
        return reply

    def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        """Returns the status; if asked to wait, as soon as there is capacity or after a moment."""
        free = self._wait(self._queue.free, request.turn) if request.wait else None
        return self._status(free is not None, request.turn)

    def Weights(self, request: pb.WeightsRequest, context: Context) -> pb.WeightsReply:
        """Returns the newest weights, unless the client has them.

        While many answers are on their way, a client keeps the weights that it has.
        """
        weights = self._copy_newest()
        nothing_new = weights.version in (-1, request.known_version)
        if nothing_new or not self._may_send.acquire(blocking=False):
            return pb.WeightsReply(version=request.known_version)
        if not context.add_callback(self._may_send.release):  # The client is gone already.
            self._may_send.release()
        return weights

    def _copy_newest(self) -> pb.WeightsReply:
        """Returns the newest weights, or older ones while another thread copies them."""
        version = self._source.latest().version
        if version != self._copied and self._copying.acquire(blocking=False):
            try:
                newest = self._source.latest()
                arrays = [tensor.numpy() for tensor in newest.tensors]
                # No actor can act with weights that are not finite. They keep the last ones until
                # the learner has noticed.
                if all(np.isfinite(array).all() for array in arrays):
                    variables = [array.tobytes() for array in arrays]  # In row-major order.
                    self._weights = pb.WeightsReply(version=newest.version, variables=variables)
                self._copied = newest.version
            finally:
                self._copying.release()
        return self._weights

    def Put(self, request: pb.PutRequest, context: Context, data: bytes) -> pb.StatusReply:
        """Takes as many of the rollouts as the queue has capacity for, now or in a moment.

        Only some clients can wait at a time; the others are told to ask before they send again.
        """
        try:
            head = wire.read_put_head(data)
            with self._lock:
                if head.number <= self._sessions.get(head.session, head.number):
                    raise ValueError(f"sent request {head.number} again")
                self._sessions[head.session] = head.number
            leaves = self._reader.read(data, head.count)
        except (ValueError, FloatingPointError) as error:
            self._drop(context, error, request.session)
        taken = self._wait(functools.partial(self._queue.reserve, head.count), head.turn)
        if taken:
            self._queue.put([leaf[:taken] for leaf in leaves])
        return self._status(taken is not None, head.turn, taken or 0)

    def _drop(self, context: Context, error: Exception, session: bytes = b"") -> None:
        """Ends a call with a client's error, and logs it.

        If the client has a session, nothing more is accepted before another handshake.
        """
        code = grpc.StatusCode.PERMISSION_DENIED
        if isinstance(error, FloatingPointError):
            code = grpc.StatusCode.INVALID_ARGUMENT
        reason = one_line(str(error)[:_MAX_LINE])
        with self._lock:
            self._sessions.pop(session, None)
        logging.warning("dropped a client at %s, which %s", context.peer(), reason)
        context.abort(code, reason)

    def _wait(self, look: Callable[[float, int], int], turn: int) -> int | None:
        """Returns the capacity that there is now or in a moment.

        Returns None without waiting if enough clients wait already.
        """
        if free := look(0.0, turn):
            return free
        if self._finished or not self._may_wait.acquire(blocking=False):
            return None
        try:
            return look(_WAIT_SECONDS, turn)
        finally:
            self._may_wait.release()

    def _status(self, waited: bool, turn: int, taken: int = 0) -> pb.StatusReply:
        free = self._queue.free(0.0, turn)
        return pb.StatusReply(
            taken=taken,
            free=free,
            finished=self._finished,
            newest_turn=self._queue.newest_turn,
            pause=0.0 if free or self._finished else self._pause(waited),
        )

    def _pause(self, waited: bool) -> float:
        """Returns the seconds after which a client may ask again, a little later for each client.

        So all clients together ask at a limited rate, each in its turn. While nobody pauses, a
        client that has `waited` may ask again at once, since only some can wait at a time.
        """
        with self._lock:
            now = time.monotonic()
            pause = min(max(0.0, self._next_question - now), _MAX_PAUSE_SECONDS)
            if pause or not waited:
                self._next_question = now + pause + 1 / _QUESTIONS_PER_SECOND
        return pause

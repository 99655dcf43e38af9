"""An actor job's way to the learner: finds it, loses it, and finds it again."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import tensorflow as tf
from absl import logging

from scalable_agent_popart.distributed import learner_pb2 as pb
from scalable_agent_popart.distributed.handshake import differences
from scalable_agent_popart.distributed.keys import LEARNER, Keys
from scalable_agent_popart.distributed.wire import METHODS, SERVICE, put_request
from scalable_agent_popart.errors import FAILS_AGAIN, UserError, exit_code
from scalable_agent_popart.rollouts import Rollout

# A call that takes longer has lost the learner, and so has a connection that is not there by then.
_TIMEOUT_SECONDS, _CONNECT_MILLISECONDS = 20.0, 2000
_FIRST_BACK_OFF_SECONDS, _MAX_BACK_OFF_SECONDS = 0.2, 5.0
_SECONDS_BETWEEN_WARNINGS = 60.0
_OTHER_VERSION = (
    "does not understand this job ({}); run the same version of the program on both sides"
)
_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT: "dropped this job, which {}; fix the environment that "
    "returned it",
    grpc.StatusCode.PERMISSION_DENIED: _OTHER_VERSION,
    grpc.StatusCode.UNIMPLEMENTED: _OTHER_VERSION,
}


class LearnerLink:
    """One thread's calls to the learner's port, next to which other threads may fetch weights.

    While there is no learner, calls return None at once. Now and then one of them looks for it,
    less often each time, and takes some seconds if the learner does not answer. A call whose answer
    is lost is not repeated.
    """

    def __init__(
        self, locate: Callable[[], tuple[str, Keys]], handshake: Mapping[str, str], name: str
    ):
        """Connects nowhere yet.

        `locate` returns the learner's address and the keys, or raises FileNotFoundError while there
        are none. Other errors of a file system may pass, and are treated alike. The handshake must
        be the same on both sides.
        """
        self._locate = locate
        self._handshake = handshake
        self._name = name
        self._lock = threading.Lock()  # A thread that connects or loses the learner holds it.
        self._connection: _Connection | None = None  # It is None without a learner.
        self._lost_at = time.monotonic()
        self._back_off = _FIRST_BACK_OFF_SECONDS
        self._next_try = self._next_warning = self._next_question = 0.0
        self._last_status: pb.StatusReply | None = None
        self._num_requests = 0

    @property
    def lost_seconds(self) -> float:
        """The seconds since a learner was lost, or since the start; 0 while there is one."""
        return 0.0 if self._connection else time.monotonic() - self._lost_at

    def status(self, seconds: float = 0.0, turn: int = 1) -> pb.StatusReply | None:
        """Asks for the learner's status, waiting so long for free capacity for rollouts of a turn.

        Returns None without a learner. Returns the last answer again while the pause lasts that
        came with it.
        """
        pause = self._next_question - time.monotonic()
        time.sleep(max(0.0, min(pause, seconds)))
        if pause > seconds:
            return self._last_status
        request = pb.StatusRequest(wait=seconds > 0, turn=turn)
        return self._keep(self._call("Status", request))

    def put(self, rollouts: Rollout, turn: int = 1) -> pb.StatusReply | None:
        """Sends rollouts `[M, T + 1, ...]` of a turn.

        The reply has how many of them, the first, were taken.

        Returns None if the learner is lost. It may have taken some of them.
        """
        self._num_requests += 1
        request = self._num_requests, turn, tf.nest.flatten(rollouts)
        return self._keep(self._call("Put", request))

    def weights(self, known: int = -1) -> pb.WeightsReply | None:
        """Returns the newest weights; None without a learner or if `known` is their version."""
        reply = self._call("Weights", pb.WeightsRequest(known_version=known))
        return None if reply is None or reply.version == known else reply

    def close(self) -> None:
        """Ends the connection; a later call would open another."""
        if (connection := self._connection) is not None:
            self._lose(connection)

    def _keep(self, status: pb.StatusReply | None) -> pb.StatusReply | None:
        self._last_status = status
        self._next_question = time.monotonic() + (status.pause if status else 0.0)
        return status

    def _call(self, method: str, request: Any) -> Any | None:
        """Returns the learner's answer; None if there is no learner."""
        connection = self._connection or self._connect()
        if connection is None:
            return None
        try:
            return connection.call(method, request)
        except ValueError:  # Another thread has closed the channel.
            return None
        except grpc.RpcError as error:
            if self._lose(connection):
                logging.warning("lost the learner at %s: %s", connection.address, error.code().name)
                self._try_later()
            return None

    def _lose(self, connection: "_Connection") -> bool:
        """Ends a connection; returns whether it was the present one."""
        with self._lock:
            present = self._connection is connection
            if present:
                self._lost_at, self._connection = time.monotonic(), None
        connection.channel.close()
        return present

    def _connect(self) -> "_Connection | None":
        """Looks for the learner if it is time to; raises UserError if it learns something else."""
        if time.monotonic() < self._next_try or not self._lock.acquire(blocking=False):
            return None
        address = ""
        try:
            if self._connection is None:  # No other thread was quicker.
                address, keys = self._locate()
                self._connection = _Connection(address, keys, self._name, self._handshake)
                self._back_off = _FIRST_BACK_OFF_SECONDS
        except (OSError, UserError, grpc.RpcError) as error:
            if exit_code(error) == FAILS_AGAIN:
                raise
            if time.monotonic() > self._next_warning:
                self._next_warning = time.monotonic() + _SECONDS_BETWEEN_WARNINGS
                where = f": {error}"
                if isinstance(error, FileNotFoundError):
                    where = f" that has no {error.filename} yet"
                elif isinstance(error, grpc.RpcError):
                    where = f" at {address}, if that has the same keys"
                logging.warning("waiting for the learner%s", where)
            self._try_later()
        finally:
            self._lock.release()
        return self._connection

    def _try_later(self) -> None:
        # A random time, so that not all actors return to a restarted learner at the same moment.
        self._next_try = time.monotonic() + self._back_off * random.uniform(0.5, 1.0)
        self._back_off = min(2 * self._back_off, _MAX_BACK_OFF_SECONDS)


class _Connection:
    """A session with a learner; raises UserError if one side refuses what the other sent."""

    def __init__(self, address: str, keys: Keys, name: str, settings: Mapping[str, str]):
        """Shakes hands with the learner, whose settings must be the same."""
        self.address = address
        self.channel = open_channel(address, keys)
        self._stub = LearnerStub(self.channel)
        try:
            reply = self.call("Handshake", pb.HandshakeRequest(name=name, settings=settings))
            if refused := differences(settings, reply.settings, name):
                raise UserError(
                    f"the learner at {address} has another configuration: {refused}; give both "
                    "the same flags and the same suite"
                )
        except BaseException:
            self.channel.close()
            raise
        self._session = reply.session

    def call(self, method: str, request: Any) -> Any:
        if method == "Put":
            request = put_request(self._session, *request)
        elif method != "Handshake":
            request.session = self._session
        try:
            return getattr(self._stub, method)(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            if refused := _REFUSALS.get(error.code()):
                message = refused.format(error.details())
                raise UserError(f"the learner at {self.address} {message}") from error
            raise


class LearnerStub:
    """The methods of `learner.proto`, called on a channel; `Put` takes a request's bytes."""

    def __init__(self, channel: Any):
        for name, (request, reply) in METHODS.items():
            path = f"/{SERVICE}/{name}"
            to_bytes = None if name == "Put" else request.SerializeToString
            call = channel.unary_unary(path, to_bytes, reply.FromString)
            setattr(self, name, call)


def open_channel(address: str, keys: Keys) -> grpc.Channel:
    """Opens a channel to the learner, which must show its own certificate."""
    credentials = grpc.ssl_channel_credentials(keys.authority, keys.private_key, keys.certificate)
    options = [
        ("grpc.ssl_target_name_override", LEARNER),  # The certificate names no address.
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),  # Failures of other channels do not delay it.
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MILLISECONDS),
        ("grpc.max_receive_message_length", -1),
    ]
    return grpc.secure_channel(address, credentials, options)

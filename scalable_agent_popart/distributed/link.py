"""An actor job's way to the learner: finds it, loses it, and finds it again."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from absl import logging

from scalable_agent_popart.distributed import learner_pb2 as pb
from scalable_agent_popart.distributed.handshake import differences
from scalable_agent_popart.distributed.keys import LEARNER, Keys
from scalable_agent_popart.distributed.wire import METHODS, SERVICE, serialize
from scalable_agent_popart.errors import FAILS_AGAIN, UserError
from scalable_agent_popart.system.program import exit_code

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
    """Calls to the learner's port, from any thread; only one of them may send rollouts.

    While there is no learner, calls return None at once. Now and then one of them looks for it,
    less often each time, and takes some seconds if the learner does not answer.
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
        self._connection: _Connection | None = None  # None without a learner.
        self._lost_at = time.monotonic()
        self._back_off = _FIRST_BACK_OFF_SECONDS
        self._next_try = 0.0

    @property
    def lost_seconds(self) -> float:
        """The seconds since a learner was lost, or since the start; 0 while there is one."""
        return 0.0 if self._connection else time.monotonic() - self._lost_at

    def call(self, method: str, request: Any, leaves: Sequence[np.ndarray] = ()) -> Any | None:
        """Returns the learner's answer to a request without its session, or None without a learner.

        A `Put` also needs the rollouts' leaves `[M, ...]`. A call whose answer is lost is not
        repeated, although the learner may have taken some of them.
        """
        connection = self._connection or self._connect()
        if connection is None:
            return None
        try:
            return connection.call(method, request, leaves)
        except ValueError:  # Another thread has closed the channel.
            return None
        except grpc.RpcError as error:
            with self._lock:
                if self._connection is connection:  # No other thread was quicker.
                    lost = f"lost the learner at {connection.address}"
                    logging.warning("%s: %s", lost, error.code().name)
                    self._lost_at = time.monotonic()
                    self._try_later()
                    self.close()
            return None

    def close(self) -> None:
        """Ends the connection; a later call would open another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.channel.close()

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
            where = f": {error}"
            if isinstance(error, FileNotFoundError):
                where = f" that has no {error.filename} yet"
            elif isinstance(error, grpc.RpcError):
                where = f" at {address}, if that has the same keys"
            message = f"waiting for the learner{where}"
            logging.log_every_n_seconds(logging.WARNING, message, _SECONDS_BETWEEN_WARNINGS)
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
        self._num_puts = 0
        try:
            request = pb.HandshakeRequest(name=name, settings=settings)
            reply = self._send("Handshake", request.SerializeToString())
            if refused := differences(settings, reply.settings, name):
                raise UserError(
                    f"the learner at {address} has another configuration: {refused}; give both "
                    "the same flags and the same suite"
                )
        except BaseException:
            self.channel.close()
            raise
        self._session = reply.session

    def call(self, method: str, request: Any, leaves: Sequence[np.ndarray]) -> Any:
        request.session = self._session
        if method == "Put":
            self._num_puts += 1
            request.number = self._num_puts
        return self._send(method, serialize(request, leaves))

    def _send(self, method: str, data: bytes) -> Any:
        try:
            return learner_method(self.channel, method)(data, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            if refused := _REFUSALS.get(error.code()):
                message = refused.format(error.details())
                raise UserError(f"the learner at {self.address} {message}") from error
            raise


def learner_method(channel: Any, name: str) -> Callable[..., Any]:
    """Returns a method of `learner.proto` on a channel, which takes a request's bytes."""
    return channel.unary_unary(f"/{SERVICE}/{name}", None, METHODS[name][1].FromString)


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

"""A user without rights who tries to reach a learner, and prints each attempt's result as JSON.

It is called as `stranger.py ADDRESS RUN USER_ID`.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import grpc
import tensorflow as tf

from scalable_agent_popart.distributed import keys

METHODS = ("Handshake", "Status", "Weights", "Put")


def _answer(channel: grpc.Channel, method: str) -> str:
    with channel:
        try:
            channel.unary_unary(f"/popart_impala.Learner/{method}")(b"", timeout=5)
        except grpc.RpcError as error:
            return error.code().name
    return "answered"


def _session(address: str) -> str:
    """Tries a session of TensorFlow, whose own server would let anybody in."""
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=5000)
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session(f"grpc://{address}", config=config) as s:
            s.run(tf.io.read_file("/etc/passwd"))
    except tf.errors.OpError as error:
        return type(error).__name__
    return "answered"


def _attempts(address: str, authority: bytes, mine: keys.Keys) -> dict[str, str]:
    """Returns the answer to each method in each way, `mine` being keys of another authority."""
    name = (("grpc.ssl_target_name_override", keys.LEARNER),)
    # The authority is no secret, since the learner shows it to anybody.
    anonymous = grpc.ssl_channel_credentials(authority)
    forged = grpc.ssl_channel_credentials(authority, mine.private_key, mine.certificate)
    ways = {
        "plain": lambda: grpc.insecure_channel(address),
        "without a certificate": lambda: grpc.secure_channel(address, anonymous, name),
        "with a certificate of its own": lambda: grpc.secure_channel(address, forged, name),
    }
    came_to = {
        f"{way}: {method}": _answer(open_channel(), method)
        for way, open_channel in ways.items()
        for method in METHODS
    }
    return {**came_to, "TensorFlow": _session(address)}


def main(address: str, run: str, user: str) -> None:
    own = Path(tempfile.mkdtemp(), "keys")
    keys.make(own)
    told = address, json.loads(sys.stdin.read())["authority"].encode(), keys.load(own, keys.ACTOR)
    _attempts(*told)  # These import what the user may be unable to read.
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    came_to = _attempts(*told)
    for path in ("keys", "keys/actor.key"):
        try:
            came_to[path] = str(os.stat(Path(run, path)).st_mode & 0o007)
            came_to[path] = str(os.listdir(Path(run, path)))
        except OSError as error:
            came_to[path] = type(error).__name__
    print(json.dumps(came_to))


if __name__ == "__main__":
    main(*sys.argv[1:])

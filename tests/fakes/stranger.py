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


def _attempts(address: str, authority: bytes, foreign: keys.Keys) -> dict[str, str]:
    """Returns the answer to each method in each way, `foreign` being keys of another authority."""
    name = (("grpc.ssl_target_name_override", keys.LEARNER),)
    # The authority is no secret, since the learner shows it to anybody.
    anonymous = grpc.ssl_channel_credentials(authority)
    forged = grpc.ssl_channel_credentials(authority, foreign.private_key, foreign.certificate)
    ways = {
        "plain": lambda: grpc.insecure_channel(address),
        "without a certificate": lambda: grpc.secure_channel(address, anonymous, name),
        "with a certificate of its own": lambda: grpc.secure_channel(address, forged, name),
    }
    answers = {
        f"{way}: {method}": _answer(open_channel(), method)
        for way, open_channel in ways.items()
        for method in METHODS
    }
    return {**answers, "TensorFlow": _session(address)}


def main(address: str, run: str, user: str) -> None:
    keys.make(folder := Path(tempfile.mkdtemp(), "keys"))
    authority = json.loads(sys.stdin.read())["authority"].encode()
    known = address, authority, keys.load(folder, keys.ACTOR)
    _attempts(*known)  # These import what the user may be unable to read.
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    answers = _attempts(*known)
    for path in ("keys", "keys/actor.key"):
        try:
            answers[path] = str(os.stat(Path(run, path)).st_mode & 0o007)
            answers[path] = str(os.listdir(Path(run, path)))
        except OSError as error:
            answers[path] = type(error).__name__
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])

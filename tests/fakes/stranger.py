"""A user without rights who tries to reach a learner, and prints each attempt's result as JSON.

It is called as `stranger.py ADDRESS RUN USER_ID` by root, who becomes that user.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import grpc
import tensorflow as tf

from scalable_agent_popart.distributed import keys
from scalable_agent_popart.distributed.link import learner_method, open_channel


def _answer(channel: grpc.Channel) -> str:
    with channel:
        try:
            learner_method(channel, "Handshake")(b"", timeout=5)  # It alone gives a session.
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


def _attempts(address: str, forged: keys.Keys) -> dict[str, str]:
    """Returns the answer to each way; another authority has signed the certificate of `forged`."""
    name = (("grpc.ssl_target_name_override", keys.LEARNER),)
    anonymous = grpc.ssl_channel_credentials(forged.authority)
    return {
        "plain": _answer(grpc.insecure_channel(address)),
        "without a certificate": _answer(grpc.secure_channel(address, anonymous, name)),
        "with a certificate of its own": _answer(open_channel(address, forged)),
        "TensorFlow": _session(address),
    }


def main(address: str, run: str, user: str) -> None:
    keys.make(folder := Path(tempfile.mkdtemp(), "keys"))
    # The authority is no secret, since the learner shows it to anybody.
    authority = keys.load(Path(run, "keys"), keys.ACTOR).authority
    forged = keys.load(folder, keys.ACTOR)._replace(authority=authority)
    _attempts(address, forged)  # These import what the user may be unable to read.
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    answers = _attempts(address, forged)
    for path in ("keys", "keys/actor.key"):
        try:
            answers[path] = str(os.listdir(Path(run, path)))
        except OSError as error:
            answers[path] = type(error).__name__
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])

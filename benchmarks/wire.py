# ruff: noqa: E402 - TensorFlow is imported first, without its messages.
"""Measures what a learner's port takes in and gives out.

  python benchmarks/wire.py

Prints the bytes of weights per second that four clients fetch, and the agent steps per second that
arrive from 1, 2, 4 and 8 senders. Senders are processes that send the same rollouts again and
again, which cost nothing to make.
"""

import contextlib
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from absl import app, flags

from scalable_agent_popart.system import tensorflow_import

tensorflow_import.import_quietly()

import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import Weights
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.config import Config
from scalable_agent_popart.distributed import keys
from scalable_agent_popart.distributed.actor_side import RemoteQueue
from scalable_agent_popart.distributed.link import LearnerLink
from scalable_agent_popart.distributed.port import LearnerPort
from scalable_agent_popart.distributed.wire import max_rollouts_per_call
from scalable_agent_popart.system import hardware

FLAGS = flags.FLAGS
flags.DEFINE_float("seconds", 10.0, "How long each rate is measured.")

_HANDSHAKE = {"benchmark": "wire"}
_WEIGHT_BYTES = 4_376_800  # The deep network with 18 actions has so many.


def _config() -> Config:
    return Config.from_flags({"level_name": "atari57"})


def _link(address: str, directory: Path) -> LearnerLink:
    return LearnerLink(lambda: (address, keys.load(directory, keys.ACTOR)), _HANDSHAKE, "sender")


@contextlib.contextmanager
def _port(weight_bytes: int = 0) -> Iterator[tuple[LearnerPort, RolloutQueue, Path]]:
    """Opens a port on loopback in front of a queue of one batch, and makes keys for it."""
    config = _config()
    spec = factory.make_rollout_spec(config)
    queue = RolloutQueue(spec, config.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        keys.make(directory := Path(folder, "keys"))
        own = keys.load(directory, keys.LEARNER)
        num_tasks = len(config.suite.tasks)
        port = LearnerPort("127.0.0.1:0", spec, num_tasks, queue, _HANDSHAKE, own)
        port.publish(Weights(0, [tf.zeros([weight_bytes], tf.uint8)]))
        try:
            yield port, queue, directory
        finally:
            queue.close()
            port.close()


def send(address: str, directory: Path) -> None:
    """Sends as many rollouts per call as may be sent, until its process is killed."""
    hardware.prepare_process()
    spec = factory.make_rollout_spec(_config())
    count = max_rollouts_per_call(spec)
    zeros = tf.nest.map_structure(
        lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype.as_numpy_dtype), spec
    )
    sink = RemoteQueue(_link(address, directory), threading.Event(), count)
    while True:
        if granted := sink.reserve(count, 0.1, behind=False):
            sink.put(tf.nest.map_structure(lambda leaf, n=granted: leaf[:n], zeros))


def fetch(num_clients: int) -> float:
    """Measures the bytes of weights per second that threads, each with a connection, fetch."""
    connected = threading.Barrier(num_clients)
    with (
        _port(_WEIGHT_BYTES) as (port, _, directory),
        ThreadPoolExecutor(num_clients) as clients,
    ):

        def ask(_: int) -> int:
            link, fetched = _link(port.address, directory), 0
            link.weights()
            connected.wait()
            end = time.monotonic() + FLAGS.seconds
            while time.monotonic() < end:
                found = link.weights()
                fetched += len(found.variables[0]) if found else 0
            link.close()
            return fetched

        return sum(clients.map(ask, range(num_clients))) / FLAGS.seconds


def receive(num_senders: int) -> float:
    """Measures the agent steps per second that arrive from so many senders."""
    config = _config()
    with _port() as (port, queue, directory):
        processes, arguments = multiprocessing.get_context("spawn"), (port.address, directory)
        senders = [processes.Process(target=send, args=arguments) for _ in range(num_senders)]
        for sender in senders:
            sender.start()
        try:
            for _ in range(20 * num_senders):  # By the last of these all of them send.
                queue.get(config.batch_size)
            begin, count = time.monotonic(), 0
            while time.monotonic() - begin < FLAGS.seconds:
                queue.get(config.batch_size)
                count += config.batch_size * config.unroll_length
            return count / (time.monotonic() - begin)
        finally:
            for sender in senders:
                sender.kill()
                sender.join()


def main(argv: list[str]) -> None:
    """Measures, and prints the results as JSON."""
    del argv
    hardware.prepare_process()
    spec = factory.make_rollout_spec(config := _config())
    leaves = tf.nest.flatten(spec)  # The protocol adds a few bytes to theirs.
    size = sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves)
    result = {
        "bytes_per_rollout": size,
        "bytes_per_agent_step": size / config.unroll_length,
        "weights_bytes_per_second": fetch(4),
        "ingest_agent_steps_per_second": {n: receive(n) for n in (1, 2, 4, 8)},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    app.run(main)

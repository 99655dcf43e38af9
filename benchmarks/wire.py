"""How many agent steps per second a learner's port takes in."""

import contextlib
import multiprocessing
import tempfile
import threading
from pathlib import Path

import numpy as np
import rates
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import WeightStore
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.distributed import keys
from scalable_agent_popart.distributed.actor_side import RemoteQueue
from scalable_agent_popart.distributed.link import LearnerLink
from scalable_agent_popart.distributed.port import LearnerPort
from scalable_agent_popart.distributed.wire import max_rollouts_per_call, num_bytes
from scalable_agent_popart.rollouts import RolloutBuffer
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system import hardware

_HANDSHAKE = {"benchmark": "wire"}
_SENDERS = 4


def measure(config: Config, seconds: float) -> dict[str, float]:
    """Measures what arrives from four processes, whose rollouts cost nothing to make."""
    spec = factory.make_rollout_spec(config)
    queue = RolloutQueue(spec, config.batch_size)

    def take() -> int:
        queue.get(config.batch_size)
        return config.batch_size * config.unroll_length

    with contextlib.ExitStack() as stack:
        keys.make(directory := Path(stack.enter_context(tempfile.TemporaryDirectory()), "keys"))
        pair = keys.load(directory, keys.LEARNER)
        num_tasks, store = len(config.suite.tasks), WeightStore([tf.Variable([0.0])], version=0)
        port = LearnerPort("127.0.0.1:0", spec, num_tasks, queue, store, _HANDSHAKE, pair)
        stack.callback(port.close)
        stack.callback(queue.close)
        port.start()
        for _ in range(_SENDERS):
            sender = multiprocessing.get_context("spawn").Process(
                target=send, args=(config, port.address, directory)
            )
            sender.start()
            stack.callback(sender.join)
            stack.callback(sender.kill)
        for _ in range(20 * _SENDERS):  # By the last of these all of them send.
            take()
        speed = rates.rate(take, seconds)
        # The protocol adds a few bytes to those of the leaves.
        return {"agent_steps_per_second": speed, "bytes_per_rollout": num_bytes(spec)}


def send(config: Config, address: str, directory: Path) -> None:
    """Sends as many rollouts per call as may be sent, until its process is killed."""
    hardware.prepare_process()
    spec = factory.make_rollout_spec(config)
    count = max_rollouts_per_call(spec)
    zeros = RolloutBuffer(spec, np.zeros(count, np.int32)).take(np.arange(count))
    pair = keys.load(directory, keys.ACTOR)
    link = LearnerLink(lambda: (address, pair), _HANDSHAKE, "sender")
    sink = RemoteQueue(link, threading.Event(), count)
    while True:
        if granted := sink.reserve(count, 0.1, turn=1):
            sink.put(tf.nest.map_structure(lambda leaf, n=granted: leaf[:n], zeros))

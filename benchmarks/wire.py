"""What a learner's port takes in and gives out, and what actor jobs cost on one machine.

  python benchmarks/wire.py

Prints bytes of weights per second to four clients; agent steps per second that arrive from 1, 2, 4
and 8 senders, processes that send the same rollouts again and again, so that they cost nothing to
make; the cores that a learner spends on 1, 8 and 350 actor jobs that wait for it; agent steps per
second of training in one process and with an actor job; those that actors make for a learner
that learns nothing, as threads and as 1, 2 and 4 actor jobs; and updates per second without and
with jobs that fetch the weights of each. Flags after `--` go to the training runs.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags

from scalable_agent_popart import factory, rollouts
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.config import Config
from scalable_agent_popart.distributed import keys
from scalable_agent_popart.distributed.actor_side import RemoteQueue
from scalable_agent_popart.distributed.learner_side import Publisher, RemoteParts
from scalable_agent_popart.distributed.link import LearnerLink
from scalable_agent_popart.distributed.port import LearnerPort
from scalable_agent_popart.distributed.wire import max_rollouts_per_call
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.system import hardware
from scalable_agent_popart.training import trainer

FLAGS = flags.FLAGS
flags.DEFINE_string("level_name", "atari57", "Whose rollouts are sent.")
flags.DEFINE_string("address", "", "Of the receiver; given to senders.")
flags.DEFINE_string("keys_dir", "", "Of the receiver; given to senders.")
flags.DEFINE_float("seconds", 10.0, "How long rates are measured.")
flags.DEFINE_list(
    "measure",
    ["weights", "ingest", "waiting", "training", "acting", "updates"],
    "What of it.",
)
flags.DEFINE_integer("repeats", 2, "Times that all but the first three are measured.")
flags.DEFINE_integer("training_updates", 12, "Updates of each training run.")
flags.DEFINE_integer("fetching_jobs", 4, "Actor jobs that fetch weights during updates.")
flags.DEFINE_integer("jobs", -1, "Given to a process that fetches.")
flags.DEFINE_integer("senders", 1, "Of one process; given to it.")

_HANDSHAKE = {"benchmark": "wire"}
_WEIGHT_BYTES = 4_376_800  # Of the deep network with 18 actions.
_WARM_UP_BATCHES = 4
# Of an actor job's threads together, and what its process needs to begin.
_SECONDS_BETWEEN_ROLLOUTS, _START_SECONDS = 0.05, 15.0


def _config() -> Config:
    return Config.from_flags({"level_name": FLAGS.level_name})


def rollout_bytes(spec: Rollout) -> int:
    """Counts the bytes of one environment's rollout, without the few that the protocol adds."""
    leaves = tf.nest.flatten(spec)
    return sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves)


def _link(address: str, directory: Path) -> LearnerLink:
    return LearnerLink(lambda: (address, keys.load(directory, keys.ACTOR)), _HANDSHAKE, "sender")


@contextlib.contextmanager
def _port(config: Config, weights: bytes) -> Iterator[tuple[LearnerPort, RolloutQueue, Path]]:
    """Opens a port on loopback, in front of a queue of a batch; and makes keys for it."""
    spec = factory.make_rollout_spec(config)
    queue = RolloutQueue(spec, config.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        keys.make(directory := Path(folder, "keys"))
        own = keys.load(directory, keys.LEARNER)
        num_tasks = len(config.suite.tasks)
        port = LearnerPort("127.0.0.1:0", spec, num_tasks, queue, _HANDSHAKE, own)
        port.publish(0, [weights])
        try:
            yield port, queue, directory
        finally:
            queue.close()
            port.close()


def send(address: str, directory: Path) -> None:
    """Sends for ever, in a process of `--senders`, as many rollouts per call as may be sent."""
    spec = factory.make_rollout_spec(_config())
    count = max_rollouts_per_call(spec)
    zeros = tf.nest.map_structure(
        lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype.as_numpy_dtype), spec
    )

    def work() -> None:
        sink = RemoteQueue(_link(address, directory), threading.Event(), count)
        while True:
            if granted := sink.reserve(count, 0.1, behind=False):
                sink.put(tf.nest.map_structure(lambda leaf, n=granted: leaf[:n], zeros))

    for _ in range(FLAGS.senders - 1):
        threading.Thread(target=work, daemon=True).start()
    work()


def fetch(num_clients: int) -> float:
    """Measures the bytes of weights per second that so many clients fetch from one learner.

    The clients are threads of this process with connections of their own.
    """
    fetched = [0] * num_clients
    over = threading.Event()
    with _port(_config(), bytes(_WEIGHT_BYTES)) as (port, _, directory):

        def ask(i: int) -> None:
            link = _link(port.address, directory)
            while not over.is_set():
                found = link.weights()
                fetched[i] += len(found.variables[0]) if found else 0
            link.close()

        clients = [threading.Thread(target=ask, args=(i,)) for i in range(num_clients)]
        for client in clients:
            client.start()
        while not all(fetched):  # Until all have connected.
            time.sleep(0.1)
        begin, before = time.monotonic(), sum(fetched)
        time.sleep(FLAGS.seconds)
        rate = (sum(fetched) - before) / (time.monotonic() - begin)
        over.set()
        for client in clients:
            client.join()
    return rate


def receive(num_senders: int) -> float:
    """Measures the agent steps per second that arrive from so many senders."""
    config = _config()
    with _port(config, b"") as (port, queue, directory):
        command = [sys.executable, __file__, f"--level_name={FLAGS.level_name}"]
        command += [f"--address={port.address}", f"--keys_dir={directory}"]
        senders = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(num_senders)]
        try:
            for _ in range(20 * num_senders):  # Until all of them are at it.
                queue.get(config.batch_size)
            begin, count = time.monotonic(), 0
            while time.monotonic() - begin < FLAGS.seconds:
                queue.get(config.batch_size)
                count += config.batch_size * config.unroll_length
            return count / (time.monotonic() - begin)
        finally:
            for sender in senders:
                sender.kill()
                sender.wait()


def wait(num_jobs: int) -> float:
    """Measures the cores that a learner whose queue is full spends on so many actor jobs."""
    with _port(_config(), b"") as (port, _, directory):
        command = [sys.executable, __file__, f"--level_name={FLAGS.level_name}"]
        command += [f"--address={port.address}", f"--keys_dir={directory}", f"--senders={num_jobs}"]
        jobs = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            time.sleep(_START_SECONDS)
            begin, spent = time.monotonic(), time.process_time()
            time.sleep(FLAGS.seconds)
            return (time.process_time() - spent) / (time.monotonic() - begin)
        finally:
            jobs.kill()
            jobs.wait()


def train(in_two: bool, extra: list[str]) -> float:
    """Agent steps per second of training, the first updates aside."""
    config = _config()
    frames = config.batch_size * config.unroll_length * config.num_action_repeats
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, str(Path(__file__).parent.parent / "experiment.py"), *extra]
        program += [f"--level_name={FLAGS.level_name}", "--use_popart", "--log_seconds=1e-9"]
        program += [f"--total_environment_frames={frames * FLAGS.training_updates}"]
        program += [f"--logdir={folder}/run", *(["--actor_jobs=1"] if in_two else [])]
        subprocess.run(program, check=True)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    points = [(json.loads(line)["time"], json.loads(line)["frames"]) for line in lines]
    (first_time, first), (last_time, last) = points[len(points) // 3], points[-1]
    return (last - first) / (last_time - first_time) / config.num_action_repeats


def act(num_jobs: int) -> float:
    """Measures the agent steps per second that a learner takes which learns nothing.

    The actors are `--num_actors` environments with the shallow network, in threads of this process
    for 0 jobs, and else in as many processes.
    """
    num_actors = 64 // (num_jobs or 1)
    flags_given = {"level_name": "pong", "network": "shallow", "num_actors": num_actors}
    with tempfile.TemporaryDirectory() as folder:
        config = Config.from_flags({**flags_given, "actor_jobs": num_jobs, "logdir": folder})
        spec = factory.make_rollout_spec(config)
        parts = RemoteParts() if num_jobs else trainer.Parts()
        learner = parts.make_learner(config, spec)
        with parts.make_actors(config, spec, learner) as actors:
            version = -_WARM_UP_BATCHES
            while version < 0:
                version += actors.next_batch() is not None
            begin = time.monotonic()
            while time.monotonic() - begin < FLAGS.seconds:
                if actors.next_batch() is not None:
                    version += 1
                    actors.publish(version)
            return version * config.batch_size * config.unroll_length / (time.monotonic() - begin)


def follow(address: str, directory: Path, num_jobs: int) -> None:
    """Fetches weights as so many actor jobs do, in a process of its own; prints how often."""
    fetched = [0] * num_jobs
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    def ask(i: int) -> None:
        link, known = _link(address, directory), -1
        while True:
            if found := link.weights(known):
                known = found.version
                fetched[i] += 1
            time.sleep(_SECONDS_BETWEEN_ROLLOUTS)

    for i in range(num_jobs):
        threading.Thread(target=ask, args=(i,), daemon=True).start()
    sys.stdin.read()
    print(min(fetched))
    os._exit(0)


def update(num_jobs: int) -> tuple[float, float]:
    """Measures updates per second while so many jobs fetch all weights; and fetches per update.

    What the jobs themselves compute is not to count, so their process runs only where the learner
    leaves a core idle.
    """
    config = _config()
    spec = factory.make_rollout_spec(config)
    learner = factory.make_learner(config, spec)
    batch = tf.nest.map_structure(
        lambda leaf: tf.zeros(leaf.shape, leaf.dtype), rollouts.batch_spec(spec, config.batch_size)
    )
    with _port(config, b"") as (port, _, directory):
        publisher = Publisher(port, learner)
        publisher.start()
        command = [sys.executable, __file__, f"--level_name={FLAGS.level_name}"]
        command += [f"--address={port.address}", f"--keys_dir={directory}", f"--jobs={num_jobs}"]
        jobs = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True)
        try:
            time.sleep(_START_SECONDS)
            learner.update(batch)
            begin, count = time.monotonic(), 0
            while time.monotonic() - begin < FLAGS.seconds:
                learner.update(batch)
                count += 1
                publisher.publish(count)
            seconds = time.monotonic() - begin
            fetched = int(jobs.communicate()[0] or 0) if num_jobs else 0
        finally:
            jobs.kill()
            publisher.close()
    return count / seconds, fetched / count


def main(argv: list[str]) -> None:
    hardware.prepare_process()
    if FLAGS.jobs >= 0:
        follow(FLAGS.address, Path(FLAGS.keys_dir), FLAGS.jobs)
    if FLAGS.address:
        send(FLAGS.address, Path(FLAGS.keys_dir))
    config = _config()
    size = rollout_bytes(factory.make_rollout_spec(config))
    result: dict[str, Any] = {
        "bytes_per_rollout": size,
        "bytes_per_agent_step": size / config.unroll_length,
    }
    if "weights" in FLAGS.measure:
        result["weights_bytes_per_second"] = fetch(4)
    if "ingest" in FLAGS.measure:
        result["ingest_agent_steps_per_second"] = {n: receive(n) for n in (1, 2, 4, 8)}
    if "waiting" in FLAGS.measure:
        result["cores_of_waiting_jobs"] = {n: wait(n) for n in (1, 8, 350)}
    for name, measured, arguments in (
        ("training", lambda in_two: train(in_two, argv[1:]), (False, True)),
        ("acting", act, (0, 1, 2, 4)),
        ("updates", update, (0, FLAGS.fetching_jobs)),
    ):
        if name in FLAGS.measure:  # In turn, since machines are shared.
            rounds = [[measured(argument) for argument in arguments] for _ in range(FLAGS.repeats)]
            result[name] = {
                str(argument): [values[i] for values in rounds]
                for i, argument in enumerate(arguments)
            }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    app.run(main)

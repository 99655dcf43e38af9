"""One run in many processes: the learner's side, RemoteActors, and an actor job's.

The wiring is that of one process (`LocalActors`), with the queue and the weights on the learner's
port.
"""

import random
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import Weights, WeightStore
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.config import Config
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.system.signals import StopOnSignal
from scalable_agent_popart.system.threads import Threads
from scalable_agent_popart.training.actors import Actors
from scalable_agent_popart.training.local_actors import ActorThreads
from scalable_agent_popart.training.transport import LearnerLink, LearnerPort, LearnerStatus

# For so long a learner that has finished stays, so that actor jobs see that it has: longer than a
# call that lost an earlier learner takes to fail, and they then back off.
_FAREWELL_SECONDS = 30.0
_POLL_SECONDS = 0.2
# Pauses, at first and at most, between an actor's questions if its rollout can be sent.
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.002, 0.1
_MAX_ROLLOUTS_PER_CALL = 8


class RemoteActors(Actors):
    """Actor jobs as the learner sees them; weights are shown to them on entering."""

    threads: "_Publisher"

    def __init__(self, config: Config, spec: Rollout, learner: Learner):
        """Opens the port; raises UserError if it is taken."""
        self._learner = learner
        self._total_frames = config.total_environment_frames
        port = int(config.learner_address.rpartition(":")[2])
        handshake = _handshake(config, learner.agent, spec) | {"--precision": config.precision}
        self._port = LearnerPort(port, spec, config.batch_size, handshake)
        super().__init__(self._port, config.batch_size, _Publisher(self._port, learner))

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        finished = exception_type is None and self._learner.frames >= self._total_frames
        self.threads.close()  # Once it has shown the newest.
        if finished:
            self._port.finish()
            self.feed.close()  # Actors that wait to send are sent away, and learn of the end.
            time.sleep(_FAREWELL_SECONDS)
        super().__exit__(exception_type)

    def describe_start(self) -> str:
        return "waiting for rollouts of actor jobs"

    def publish(self, version: int) -> None:
        self.threads.publish(version)

    def load(self) -> dict[str, float]:
        """As `BatchFeed.load`; also logs the actor jobs' messages."""
        for message in self._port.messages():
            logging.warning("%s", message)
        return super().load()


class _Publisher(Threads):
    """A thread that shows actor jobs the newest weights, so that the learner need not wait."""

    def __init__(self, port: LearnerPort, learner: Learner):
        super().__init__()
        self._port = port
        self._store = WeightStore(learner.agent.trainable_variables, int(learner.num_updates))
        self._wake_up = threading.Event()
        self._stopping = False

    def start(self) -> None:
        self._show_newest()  # Before which no actor is let in.
        self.start_thread("weights", self._work)

    def publish(self, version: int) -> None:
        """Has the learner's present weights shown, unless newer ones come first."""
        self._store.publish(version)
        self._wake_up.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake_up.set()

    def _work(self) -> None:
        stopping = False
        while not stopping:
            self._wake_up.wait()
            self._wake_up.clear()
            stopping = self._stopping  # Read before the weights, so that the last are not missed.
            self._show_newest()

    def _show_newest(self) -> None:
        version, tensors = self._store.latest()
        self._port.publish(version, b"".join(tensor.numpy().tobytes() for tensor in tensors))


def run_actor_job(config: Config) -> int | None:
    """Plays for the learner until that has finished, and waits for it whenever it is gone.

    Returns None at the end, or the number of the signal that asked to stop. Raises UserError if the
    learner has another configuration.
    """
    config = factory.settle(config)  # For this machine.
    spec = factory.make_rollout_spec(config)
    agent = factory.make_agent(config, spec)
    handshake, name = _handshake(config, agent, spec), f"actor job {config.task}"
    over = threading.Event()
    learners = []
    for i in range(factory.num_actor_threads(config)):
        may_differ = {} if i else {"--precision": config.precision}  # Is only logged, and once.
        link = LearnerLink(config.learner_address, spec, handshake, name, may_differ)
        learners.append(RemoteLearner(link, agent.trainable_variables, over))
    with StopOnSignal() as stop:
        if not learners[0].wait(stop):
            return stop.signal_number
        for learner in learners:
            learner.newest = learners[0].newest
        seed = np.random.SeedSequence([config.seed, config.task, learners[0].latest().version])
        actors = ActorThreads(config, spec, [(own, own) for own in learners], seed)
        actors.start()
        try:
            while not over.wait(_POLL_SECONDS) and stop.signal_number is None:
                pass
        finally:
            actors.close()
        actors.raise_error()
    return stop.signal_number


class RemoteLearner:
    """The learner as one actor thread sees it: a `WeightSource` and a `RolloutSink`."""

    def __init__(self, link: LearnerLink, variables: Sequence[tf.Variable], over: threading.Event):
        """Connects nowhere yet.

        Weights have the variables' shapes and types. The job ends when `over` is set.
        """
        self.newest: Weights | None = None  # Received last.
        self._link = link
        self._variables = variables
        self._over = over
        self._wait_seconds = _FIRST_WAIT_SECONDS

    @property
    def closed(self) -> bool:
        """Tells if the job is to end."""
        return self._over.is_set()

    def close(self) -> None:
        """Ends the job."""
        self._over.set()

    def wait(self, stop: StopOnSignal) -> bool:
        """Waits for the first weights; returns False if a signal came before them."""
        while self.newest is None and not self.closed and stop.signal_number is None:
            self._refresh()
            self._over.wait(_MAX_WAIT_SECONDS)
        return self.newest is not None

    def latest(self) -> Weights:
        """Returns the newest weights, for which `wait` has waited; without a learner the last."""
        self._refresh()
        assert self.newest is not None
        return self.newest

    def reserve(self, count: int, seconds: float, behind: bool) -> int:
        """See `RolloutSink`. Nothing is reserved: it is what the learner had free a moment ago."""
        del behind  # Actor jobs do not know the environments of others.
        status = self._status()
        if status is not None and status.free and not status.finished:
            self._wait_seconds = _FIRST_WAIT_SECONDS
            return min(count, status.free, _MAX_ROLLOUTS_PER_CALL)
        self._over.wait(min(self._wait_seconds * random.uniform(0.5, 1.5), seconds))
        self._wait_seconds = min(2 * self._wait_seconds, _MAX_WAIT_SECONDS)
        return 0

    def put(self, rollouts: Rollout) -> None:
        """Sends rollouts; they are lost if the learner is."""
        self._link.put(rollouts)

    def _status(self) -> LearnerStatus | None:
        """Asks for the learner's status, and ends the job if the learner has finished."""
        status = self._link.status()
        if status is not None and status.finished:
            self.close()
        return status

    def _refresh(self) -> None:
        """Fetches the learner's weights if they are others than the newest received."""
        status = self._status()
        if status is None or (self.newest is not None and status.version == self.newest.version):
            return
        found = self._link.weights()
        if found is None:
            return
        version, blob = found  # The bytes of all variables, one after the other.
        tensors, start = [], 0
        for variable in self._variables:
            dtype = np.dtype(variable.dtype.as_numpy_dtype)
            flat = np.frombuffer(blob, dtype, variable.shape.num_elements(), start)
            tensors.append(tf.constant(flat.reshape(variable.shape)))
            start += flat.nbytes
        self.newest = Weights(version, tensors)


def _handshake(config: Config, agent: Agent, spec: Rollout) -> dict[str, Any]:
    """Returns the settings that a learner and its actors must agree on."""
    # Programs of other versions may differ where flags do not.
    leaves = [*agent.trainable_variables, *tf.nest.flatten(spec)]
    shapes = repr([(leaf.shape.as_list(), leaf.dtype.name) for leaf in leaves])
    return {
        **{f"--{flag}": value for flag, value in config.shared.items()},
        "--dataset_path=dummy": config.dataset_path == "dummy",
        "the checksum of all shapes": zlib.crc32(shapes.encode()),
    }

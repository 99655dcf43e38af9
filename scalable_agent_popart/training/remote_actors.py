"""One run in many processes: a learner, actor jobs, and what each sees of the other.

The same wiring as in one process (`training.ActorPool`), with the queue and the weights on the
learner's port.
"""

import random
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from scalable_agent_popart import factory
from scalable_agent_popart.acting.batch_feed import BatchFeed
from scalable_agent_popart.acting.weights import Weights, WeightStore
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.config import Config
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.system.signals import StopOnSignal
from scalable_agent_popart.system.threads import WorkerThreads
from scalable_agent_popart.training import trainer
from scalable_agent_popart.training.local_actors import ActorThreads
from scalable_agent_popart.training.transport import LearnerLink, LearnerPort, View

# How long a learner that is done stays for actors to hear of it: longer than a call that lost an
# earlier learner takes to fail, and they then back off.
_FAREWELL_SECONDS = 30.0
_POLL_SECONDS = 0.2
# How long an actor with a rollout waits, at first and at most, before it asks again for room.
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.002, 0.1
# Rollouts that are sent in one call; and how long a call may take before it is one too many.
_MOST_AT_ONCE = 8
_SLOW_SECONDS = 1.0


def train(config: Config) -> int | None:
    """The learner's job: trains from what actor jobs send; returns and raises as `training.train`.

    It may be killed and started again at any time, as may they.
    """
    return trainer.train(config, RemoteActors)


class RemoteActors:
    """Batches that actor jobs send; a `training.Experience`."""

    def __init__(self, config: Config, spec: Rollout, learner: Learner):
        """Opens the port, and shows the weights on entering.

        Raises:
          UserError: if the port is taken.
        """
        port = int(config.learner_address.rpartition(":")[2])
        self._learner = learner
        self._batch_size = config.batch_size
        self._total_frames = config.total_environment_frames
        card = {**_card(config, learner.agent, spec), **_may_differ(config)}
        self._port = LearnerPort(port, spec, config.batch_size, card)
        self._feed = BatchFeed(self._port, config.batch_size)
        version = int(learner.num_updates)
        self._store = WeightStore(learner.agent.trainable_variables, version)
        self._shown = -1  # The version.
        self._publish_due = threading.Event()
        self._publishes = True
        self._publisher = WorkerThreads(self._stop_publishing)

    def __enter__(self) -> "RemoteActors":
        self._show(self._store.latest())  # Nobody is let in before.
        self._publisher.start("weights", self._show_newest)
        self._feed.start()
        return self

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        finished = exception_type is None and self._learner.frames >= self._total_frames
        self._publisher.close()  # Once it has shown the newest.
        if finished:
            self._port.finish()
        self._feed.close()  # Who waits for room in the queue is sent away, and hears of it.
        if finished:
            time.sleep(_FAREWELL_SECONDS)
        if exception_type is None:
            self._raise_error()

    def next_batch(self) -> Rollout | None:
        self._raise_error()
        return self._feed.next_batch()

    def publish(self, version: int) -> None:
        """Has a thread show actors the learner's present weights, unless newer ones come first."""
        self._store.publish(version)
        self._publish_due.set()

    def awaited(self) -> str:
        batch_size = self._batch_size
        return f"waiting for actors: {self._port.fill() * batch_size:.0f} of {batch_size} rollouts"

    def restarts(self) -> dict[str, int]:
        """Nothing: only the actor jobs know."""
        return {}

    def load(self) -> dict[str, float]:
        """As `BatchFeed.load`; also logs what actors had to say."""
        for note in self._port.notes():
            logging.warning("%s", note)
        return self._feed.load()

    def _raise_error(self) -> None:
        self._publisher.raise_error()
        self._feed.raise_error()

    def _show_newest(self) -> None:
        """Shows weights as they are published, the last ones before it ends."""
        publishes = True
        while publishes:
            self._publish_due.wait()
            self._publish_due.clear()
            publishes = self._publishes  # Looked at first, so that the last ones are not missed.
            self._show(self._store.latest())

    def _stop_publishing(self) -> None:
        self._publishes = False
        self._publish_due.set()

    def _show(self, weights: Weights) -> None:
        if weights.version == self._shown:
            return
        self._shown = weights.version
        blob = b"".join(tensor.numpy().tobytes() for tensor in weights.tensors)
        self._port.publish(weights.version, blob)


def act(config: Config) -> int | None:
    """An actor job: plays for the learner until that has finished.

    Waits for the learner at first and whenever it is gone.

    Returns:
      None at the end, or the number of the signal that asked to stop.

    Raises:
      UserError: if the learner has another configuration.
    """
    config = factory.settle(config)  # Its own machine's.
    spec = factory.make_rollout_spec(config)
    agent = factory.make_agent(config, spec)
    over = threading.Event()

    def connect(may_differ: Mapping[str, Any] | None = None) -> RemoteLearner:
        name, card = f"actor job {config.task}", _card(config, agent, spec)
        link = LearnerLink(config.learner_address, spec, card, name, may_differ)
        return RemoteLearner(link, agent.trainable_variables, over)

    with StopOnSignal() as stop:
        first = connect(_may_differ(config))  # Says it once.
        if not first.wait(lambda: stop.signal_number is not None):
            return stop.signal_number
        seed = np.random.SeedSequence([config.seed, config.task, first.latest().version])

        def join() -> tuple["RemoteLearner", "RemoteLearner"]:
            own = connect()
            own.newest = first.newest
            return own, own

        actors = ActorThreads(config, spec, join, seed, stop=over.set)
        actors.start()
        try:
            while not over.wait(_POLL_SECONDS) and stop.signal_number is None:
                pass
        finally:
            actors.close()
        actors.raise_error()
    return stop.signal_number


class RemoteLearner:
    """The learner as one actor thread sees it: a source of weights and a sink for rollouts.

    Attributes:
      newest: the weights received last; None before the first.
    """

    def __init__(self, link: LearnerLink, variables: Sequence[tf.Variable], over: threading.Event):
        """Connects nowhere yet.

        Args:
          link: of this thread alone.
          variables: whose shapes and types the weights have.
          over: set when the job is to end, which it is once the learner has finished.
        """
        self.newest: Weights | None = None
        self._link = link
        self._variables = variables
        self._over = over
        self._most = 1  # Rollouts to send at once.

    @property
    def closed(self) -> bool:
        """Whether nobody listens any more."""
        return self._over.is_set()

    def wait(self, stopped: Callable[[], bool]) -> bool:
        """Waits for the first weights; returns whether they came before it was `stopped`."""
        while self.newest is None and not self.closed and not stopped():
            self._refresh(self._link.look())
            self._over.wait(_LONGEST_WAIT_SECONDS)
        return self.newest is not None

    def latest(self) -> Weights:
        """The newest weights, fetched if they are others; without a learner the last ones."""
        self._refresh(self._link.look())
        assert self.newest is not None, "to be waited for first"
        return self.newest

    def reserve(self, count: int, seconds: float, behind: bool) -> int:
        """See `RolloutSink`. Room is not kept: it is what the learner had a moment ago."""
        del behind  # Jobs do not know how others fare.
        end = time.monotonic() + seconds
        wait = _FIRST_WAIT_SECONDS
        while not self.closed:
            view = self._link.look()
            self._note_end(view)
            if view is not None and view.room:
                return min(count, view.room, self._most)
            left = end - time.monotonic()
            if left <= 0:
                break
            self._over.wait(min(wait * random.uniform(0.5, 1.5), left))
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        return 0

    def put(self, rollouts: Rollout) -> None:
        """Sends rollouts; they are lost if the learner is."""
        begin = time.monotonic()
        self._link.put(rollouts)
        taken = time.monotonic() - begin
        # So many had seen the same room that the learner makes them wait: ask for less, later.
        if taken > _SLOW_SECONDS:
            self._most = 1
            self._over.wait(random.uniform(0, taken))
        else:
            self._most = min(2 * self._most, _MOST_AT_ONCE)

    def _refresh(self, view: View | None) -> None:
        self._note_end(view)
        if view is None or (self.newest is not None and view.version == self.newest.version):
            return
        found = self._link.weights()
        if found is not None:
            version, blob = found
            self.newest = Weights(version, _split(blob, self._variables))

    def _note_end(self, view: View | None) -> None:
        if view is not None and view.finished:
            self._over.set()


def _split(blob: bytes, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Values for the variables, from their bytes one after the other."""
    tensors, start = [], 0
    for variable in variables:
        dtype = np.dtype(variable.dtype.as_numpy_dtype)
        count = variable.shape.num_elements()
        flat = np.frombuffer(blob, dtype, count, start)
        tensors.append(tf.constant(flat.reshape(variable.shape)))
        start += flat.nbytes
    return tensors


def _may_differ(config: Config) -> dict[str, Any]:
    """Names the settings that a learner and its actors may differ in, and say so if they do."""
    return {"--precision": config.precision}


def _card(config: Config, agent: Agent, spec: Rollout) -> dict[str, Any]:
    """What a learner and its actors must agree on."""
    shared = {f"--{flag}": value for flag, value in config.shared.items()}
    # Programs of other versions may differ where flags do not.
    leaves = [*agent.trainable_variables, *tf.nest.flatten(spec)]
    shapes = repr([(leaf.shape.as_list(), leaf.dtype.name) for leaf in leaves])
    return {
        **shared,
        "--dataset_path=dummy": config.dataset_path == "dummy",
        "the checksum of all shapes": zlib.crc32(shapes.encode()),
    }

"""One run in many processes: the learner's side, RemoteActors, and an actor job's.

The wiring is that of one process (`LocalActors`), with the learner's port between the actors and
its queue and weights.
"""

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import Weights, WeightStore
from scalable_agent_popart.acting.rollout_queue import RolloutQueue
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import DivergenceError, PassingError, UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs import keys
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.system.signals import StopOnSignal
from scalable_agent_popart.system.threads import Threads
from scalable_agent_popart.training.actor_jobs import ActorJobs
from scalable_agent_popart.training.actors import Actors
from scalable_agent_popart.training.local_actors import ActorThreads
from scalable_agent_popart.training.transport import LearnerLink, LearnerPort, max_rollouts_per_call

# For so long a learner that has finished stays, so that actor jobs see that it has: longer than a
# call that lost an earlier learner takes to fail, and they then back off.
_FAREWELL_SECONDS = 30.0
_POLL_SECONDS = 0.2
_WAIT_SECONDS = 0.1  # Between looks for a learner that is not there.
_ANY_LOOPBACK_PORT = "127.0.0.1:0"


def prepare_keys(config: Config) -> keys.Keys:
    """Returns the learner's keys, after making them if there are none; see `keys.load`."""
    place = _keys_directory(config)
    if not place.exists():
        try:
            keys.make(place)
        except UserError:
            if not place.exists():  # Another learner was not quicker, either.
                raise
    return keys.load(place, keys.LEARNER)


class RemoteActors(Actors):
    """Actor jobs as the learner sees them; weights are shown to them on entering."""

    threads: "Publisher"

    def __init__(self, config: Config, spec: Rollout, learner: Learner):
        """Opens the port, after making keys if there are none; raises UserError if it is taken."""
        self._learner = learner
        self._total_frames = config.total_environment_frames
        self._has_others = bool(config.learner_address)  # Actor jobs not started here.
        self._directory = RunDirectory(config.logdir)
        queue = RolloutQueue(spec, config.batch_size)
        self._port = LearnerPort(
            config.learner_address or _ANY_LOOPBACK_PORT,
            spec,
            len(config.suite.tasks),
            queue,
            _handshake(config, learner.agent, spec),
            prepare_keys(config),
            {"--precision": config.precision},
        )
        self._jobs = ActorJobs(config, self._port.address)
        super().__init__(queue, config.batch_size, Publisher(self._port, learner))

    def __enter__(self) -> Self:
        super().__enter__()
        self._directory.record_learner(self._port.address)
        self._jobs.start()
        return self

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        finished = exception_type is None and self._learner.frames >= self._total_frames
        with contextlib.ExitStack() as stack:  # The last is the first.
            stack.callback(super().__exit__, exception_type)
            stack.callback(self._port.close)
            if finished and self._has_others:
                stack.callback(time.sleep, _FAREWELL_SECONDS)
                stack.callback(self.feed.close)
            stack.callback(self._jobs.close, finished)
            self.threads.close()  # Once it has shown the newest.
            if finished:
                self._port.finish()
                self._directory.record_learner(self._port.address, int(self._learner.frames))

    def next_batch(self) -> Rollout | None:
        self._jobs.attend()
        self._port.raise_error()
        return super().next_batch()

    def describe_start(self) -> str:
        return "waiting for rollouts of actor jobs"

    def publish(self, version: int) -> None:
        self.threads.publish(version)


class Publisher(Threads):
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
        arrays = [tensor.numpy() for tensor in tensors]
        # No actor can act with others. They go on with the last, until the learner has noticed.
        if all(np.isfinite(array).all() for array in arrays):
            self._port.publish(version, b"".join(array.tobytes() for array in arrays))


def run_actor_job(config: Config) -> int | None:
    """Plays for the learner until that has finished, and waits for it whenever it is gone.

    Returns None at the end, or the number of the signal that asked to stop. Raises UserError if the
    learner has another configuration.
    """
    factory.check_precision(config)
    spec = factory.make_rollout_spec(config)
    agent = factory.make_agent(config, spec)
    handshake, name = _handshake(config, agent, spec), f"actor job {config.task}"
    directory, over = RunDirectory(config.logdir), threading.Event()

    def locate() -> tuple[str, keys.Keys]:
        address = config.learner_address
        if not address:
            address, finished_frames = directory.read_learner()
            # The learner is gone, or soon will be, unless it is to go on with more frames.
            if finished_frames >= config.total_environment_frames:
                over.set()
        return address, keys.load(_keys_directory(config), keys.ACTOR)

    may_differ = {"--precision": config.precision}  # Is only logged.
    link = LearnerLink(locate, handshake, name, may_differ)
    weights = RemoteWeights(link, agent.trainable_variables)
    with StopOnSignal() as stop, contextlib.closing(link):
        while weights.newest is None and not over.is_set() and stop.signal_number is None:
            weights.refresh()
            over.wait(_WAIT_SECONDS)
        if weights.newest is None:
            return stop.signal_number
        num_threads, spread = factory.num_actor_threads(config), max_rollouts_per_call(spec)
        sinks = [RemoteQueue(link, over, spread) for _ in range(num_threads)]
        # Of this process alone: a job started again, and another one of its number, play otherwise.
        own = int.from_bytes(os.urandom(4))
        seed = np.random.SeedSequence([config.seed, config.task, own])
        actors = ActorThreads(config, spec, [(weights, sink) for sink in sinks], seed)
        actors.start()
        try:
            while not over.wait(_POLL_SECONDS) and stop.signal_number is None:
                pass
        finally:
            actors.close()
        try:
            actors.raise_error()
        except DivergenceError as error:  # Which the learner has to mend, and may have mended soon.
            raise PassingError(str(error)) from error
    return stop.signal_number


class RemoteWeights:
    """The learner's newest weights, fetched once for all threads of an actor job."""

    def __init__(self, link: LearnerLink, variables: Sequence[tf.Variable]):
        """Connects nowhere yet; weights have the variables' shapes and types."""
        self.newest: Weights | None = None  # Received last.
        self._link = link
        self._variables = variables
        self._lock = threading.Lock()

    def latest(self) -> Weights:
        """Returns the newest weights; without a learner those received last."""
        with self._lock:
            self.refresh()
        assert self.newest is not None
        return self.newest

    def refresh(self) -> None:
        """Fetches the learner's weights if they are others than the newest received."""
        found = self._link.weights(-1 if self.newest is None else self.newest.version)
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


class RemoteQueue:
    """The learner's queue as one actor thread sees it: a `RolloutSink`."""

    def __init__(self, link: LearnerLink, over: threading.Event, max_per_call: int):
        """Connects nowhere yet. The job ends when `over` is set."""
        self._link = link
        self._over = over
        self._max_per_call = max_per_call
        self._flows = False  # The last message was taken whole.

    @property
    def closed(self) -> bool:
        return self._over.is_set()

    def close(self) -> None:
        self._over.set()

    def reserve(self, count: int, seconds: float, behind: bool) -> int:
        """See `RolloutSink`. Nothing is reserved: it is what the learner had free a moment ago.

        An actor thread that may wait does not ask, as long as all is taken that it sends.
        """
        del behind  # Actor jobs do not know the environments of others.
        if self._flows and seconds:
            return min(count, self._max_per_call)
        return min(count, self._ask(seconds) or 0, self._max_per_call)

    def put(self, rollouts: Rollout) -> None:
        """Sends rollouts, and those again that others were quicker to send; see `RolloutSink`.

        Without a learner they are lost.
        """
        while not self.closed:
            answer = self._link.put(rollouts)
            if answer is None:
                self._flows = False
                return
            taken, status = answer
            if status.finished:
                self.close()
            self._flows = taken == len(rollouts.task_id)
            if self._flows:
                return
            rollouts = tf.nest.map_structure(lambda leaf, taken=taken: leaf[taken:], rollouts)
            while not self.closed and self._ask(_WAIT_SECONDS) == 0:
                pass

    def _ask(self, seconds: float) -> int | None:
        """Returns what the learner has free, at once or after a while; None without a learner."""
        status = self._link.status(seconds)
        if status is None:
            self._over.wait(min(_WAIT_SECONDS, seconds))
            return None
        if status.finished:
            self.close()
        return status.free


def _keys_directory(config: Config) -> Path:
    return Path(config.keys_dir) if config.keys_dir else RunDirectory(config.logdir).keys


def _handshake(config: Config, agent: Agent, spec: Rollout) -> dict[str, Any]:
    """Returns the settings that a learner and its actors must agree on."""
    # Programs of other versions may differ where flags do not.
    leaves = [*agent.trainable_variables, *tf.nest.flatten(spec)]
    shapes = repr([(leaf.shape.as_list(), leaf.dtype.name) for leaf in leaves])
    return {
        **{f"--{flag}": value for flag, value in config.shared.items()},
        "--pbt_member": config.pbt_member,
        "--dataset_path given": not config.remarks(),
        "the checksum of all shapes": zlib.crc32(shapes.encode()),
        # Rollouts name their task by its number.
        **{f"task {i}": task for i, task in enumerate(config.suite.tasks)},
    }

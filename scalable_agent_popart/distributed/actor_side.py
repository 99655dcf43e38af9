"""An actor job's side of a run in many processes: it plays for a learner elsewhere."""

import contextlib
import os
import threading
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import Weights
from scalable_agent_popart.distributed import keys
from scalable_agent_popart.distributed import learner_pb2 as pb
from scalable_agent_popart.distributed.handshake import handshake, read_learner
from scalable_agent_popart.distributed.link import LearnerLink
from scalable_agent_popart.distributed.wire import max_rollouts_per_call
from scalable_agent_popart.errors import DivergenceError, PassingError
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system.signals import StopOnSignal
from scalable_agent_popart.system.terminal import progress_bar
from scalable_agent_popart.training.local_actors import ActorThreads

_POLL_SECONDS = 0.2
_WAIT_SECONDS = 0.1  # Between looks for a learner that is not there.


def run_actor_job(config: Config, show_progress: bool = False) -> int | None:
    """Plays for the learner until the run is finished, and waits while there is no learner.

    A progress line shows how many environments are made, if asked for.

    Returns None at the end, or the number of the signal that asked to stop. A job that reaches no
    learner at its address for `learner_timeout_hours` takes the run for finished. Raises UserError
    if the learner has another configuration.
    """
    factory.check_network(config)
    spec = factory.make_rollout_spec(config)
    agent = factory.make_agent(config, spec)
    settings, name = handshake(config, agent, spec), f"actor job {config.task}"
    over = threading.Event()

    def locate() -> tuple[str, keys.Keys]:
        address = config.learner_address
        if not address:
            address, finished_frames = read_learner(config.logdir)
            # The learner has finished, unless this job's run has more frames.
            if finished_frames >= config.total_environment_frames:
                over.set()
        return address, keys.load(keys.directory_of(config), keys.ACTOR)

    # Each thread has its link, since its rollouts wait at the learner for their turn.
    num_threads, spread = factory.num_actor_threads(config), max_rollouts_per_call(spec)
    links = [LearnerLink(locate, settings, name) for _ in range(num_threads)]
    weights = RemoteWeights(links[0], agent.trainable_variables)

    def ends(seconds: float) -> bool:
        """Waits for the end of the run or a signal, and returns whether one has come."""
        address, hours = config.learner_address, config.learner_timeout_hours
        if address and links[0].lost_seconds > 3600 * hours:
            message = f"it reached no learner at {address} for {hours:g} hours"
            logging.warning(
                "%s ends, as if the run were over: %s (--learner_timeout_hours)", name, message
            )
            over.set()
        return over.wait(seconds) or stop.signal_number is not None

    with StopOnSignal() as stop, contextlib.ExitStack() as stack:
        for link in links:
            stack.callback(link.close)
        while weights.latest().version < 0:
            if ends(_WAIT_SECONDS):
                return stop.signal_number
        sinks = [RemoteQueue(link, over, spread) for link in links]
        # The random number keeps a job that is started again from playing the same again.
        seed = np.random.SeedSequence([config.seed, config.task, int.from_bytes(os.urandom(4))])
        actors = ActorThreads(config, spec, [(weights, sink) for sink in sinks], seed)
        try:
            actors.start()
            how = {"desc": "making environments", "leave": False, "disable": not show_progress}
            with progress_bar(config.num_actors, "", **how) as progress:
                while len(actors.pools) < num_threads and not ends(_POLL_SECONDS):
                    progress.n = sum(actors.made)
                    progress.update(0)
            while not ends(_POLL_SECONDS):
                pass
        finally:
            actors.close()
        try:
            actors.raise_error()
        except DivergenceError as error:  # The learner may have fixed it when this job restarts.
            raise PassingError(str(error)) from error
    return stop.signal_number


class RemoteWeights:
    """The learner's newest weights, fetched once for all threads of an actor job."""

    def __init__(self, link: LearnerLink, variables: Sequence[tf.Variable]):
        self._newest = Weights(-1, [])
        self._link = link
        self._variables = variables
        self._lock = threading.Lock()

    def latest(self) -> Weights:
        """Returns the newest weights, or without a learner those received last.

        Their version is -1 before any were received.
        """
        with self._lock:
            version = self._newest.version
            reply = self._link.call("Weights", pb.WeightsRequest(known_version=version))
            if reply is not None and reply.version != version:
                tensors = [
                    tf.constant(np.frombuffer(data, like.dtype.as_numpy_dtype).reshape(like.shape))
                    for data, like in zip(reply.variables, self._variables, strict=True)
                ]
                self._newest = Weights(reply.version, tensors)
            return self._newest


class RemoteQueue:
    """The learner's queue as one actor thread sees it: a `RolloutSink`."""

    def __init__(self, link: LearnerLink, over: threading.Event, max_per_call: int):
        self._link = link
        self._over = over
        self._max_per_call = max_per_call
        self._answered = False  # The last message reached a learner if this is true.
        self._next_question = 0.0  # When the pause is over that came with the last answer.
        self._turn = 1  # `put` sends rollouts of this turn.
        self.newest_turn = 0

    @property
    def closed(self) -> bool:
        return self._over.is_set()

    def close(self) -> None:
        self._over.set()

    def reserve(self, count: int, seconds: float, turn: int) -> int:
        """See `RolloutSink`. Reserves nothing, but returns what the learner had free a moment ago.

        A thread that may wait does not ask while there is a learner. Its rollouts wait there for
        their turn.
        """
        self._turn = turn
        if not (self._answered and seconds):
            count = min(count, self._ask(seconds) or 0)
        return min(count, self._max_per_call)

    def put(self, rollouts: Rollout) -> None:
        """Sends rollouts, again if the queue was full; see `RolloutSink`.

        Without a learner they are lost.
        """
        leaves = tf.nest.flatten(rollouts)
        while not self.closed:
            request = pb.PutRequest(count=len(leaves[0]), turn=self._turn)
            status = self._read(self._link.call("Put", request, leaves))
            self._answered = status is not None
            if status is None or status.taken == len(leaves[0]):
                return
            leaves = [leaf[status.taken :] for leaf in leaves]
            # The learner lets only some jobs wait, and the others ask until there is capacity.
            while status.pause and not self.closed and self._ask(_WAIT_SECONDS) == 0:
                pass

    def _ask(self, seconds: float) -> int | None:
        """Returns what the learner has free, waiting so long for it; None without a learner."""
        pause = self._next_question - time.monotonic()
        self._over.wait(max(0.0, min(pause, seconds)))
        if pause > seconds:
            return 0
        request = pb.StatusRequest(wait=seconds > 0, turn=self._turn)
        status = self._read(self._link.call("Status", request))
        if status is None:
            self._over.wait(min(_WAIT_SECONDS, seconds))
            return None
        return status.free

    def _read(self, status: pb.StatusReply | None) -> pb.StatusReply | None:
        if status is not None:
            self._next_question = time.monotonic() + status.pause
            self.newest_turn = status.newest_turn
            if status.finished:
                self.close()
        return status

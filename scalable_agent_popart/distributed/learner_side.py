"""The learner's side of a run in many processes: its port, its actor processes, its weights.

The wiring is that of one process (`LocalActors`), with the learner's port between the actors and
its queue and weights.
"""

import contextlib
import os
import time

from scalable_agent_popart.distributed import keys
from scalable_agent_popart.distributed.actor_processes import ActorProcesses
from scalable_agent_popart.distributed.handshake import handshake, record_learner
from scalable_agent_popart.distributed.port import LearnerPort
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import Rollout
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.training.actors import Actors
from scalable_agent_popart.training.trainer import Parts

# A learner that has finished stays for so long, so that actor jobs see it. A job that lost an
# earlier learner takes less: its call must fail first, and then it backs off.
_FAREWELL_SECONDS = 30.0


class RemoteParts(Parts):
    """Parts of a run whose actors are other processes."""

    def prepare(self, config: Config) -> None:
        """Makes the learner's keys if there are none; raises UserError as `keys.load` does."""
        directory = keys.directory_of(config)
        authority = directory / "authority.crt"
        if not os.path.exists(authority):  # `Path.exists` may raise.
            try:
                keys.make(directory)
            except UserError:  # Another run's learner may have made them meanwhile.
                if not os.path.exists(authority):
                    raise
        keys.load(directory, keys.LEARNER)

    def make_actors(self, config: Config, spec: Rollout, learner: Learner) -> Actors:
        return RemoteActors(config, spec, learner)


class RemoteActors(Actors):
    """Actor jobs as the learner sees them, which are let in on entering."""

    def __init__(self, config: Config, spec: Rollout, learner: Learner):
        """Opens the port; raises UserError if it is taken."""
        super().__init__(config, spec, learner)
        self._port = LearnerPort(
            config.learner_address or "127.0.0.1:0",
            spec,
            len(config.suite.tasks),
            self.rollout_queue,
            self._store,
            handshake(config, learner.agent, spec),
            keys.load(keys.directory_of(config), keys.LEARNER),
        )
        self._threads.append(self._port)
        self._jobs = ActorProcesses(config, self._port.address)

    def start(self) -> None:
        super().start()
        record_learner(self._config.logdir, self._port.address)
        self._jobs.start()

    def __exit__(self, exception_type: type | None, *exception: object) -> None:
        end = self._config.total_environment_frames
        finished = exception_type is None and self._learner.frames >= end
        with contextlib.ExitStack() as stack:  # The last callback is called first.
            stack.callback(super().__exit__, exception_type)
            if finished and self._config.learner_address:  # It has jobs not started here.
                stack.callback(time.sleep, _FAREWELL_SECONDS)
                stack.callback(self.feed.close)
            stack.callback(self._jobs.close, finished)
            if finished:
                self._port.finish()
                frames = int(self._learner.frames)
                record_learner(self._config.logdir, self._port.address, frames)

    def next_batch(self) -> Rollout | None:
        self._jobs.attend()
        return super().next_batch()

    def describe_start(self) -> str:
        return "waiting for rollouts of actor jobs"

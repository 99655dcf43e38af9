"""Actor jobs that a learner starts next to itself, as processes of the same machine."""

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from absl import logging

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import FAILS_AGAIN, UserError
from scalable_agent_popart.system import child_program, cores, supervisor
from scalable_agent_popart.system.supervisor import Child, Restarts

_COMMAND = "from scalable_agent_popart.distributed.actor_processes import work; work()"
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
_MAX_RESTARTS_IN_A_ROW = 7
_HEALTHY_SECONDS = 60.0
# How long jobs may take to end once the learner has told them to.
_FAREWELL_SECONDS, _GRACE_SECONDS = 30.0, 10.0


class ActorProcesses:
    """Processes that act for a learner, each started again where it dies."""

    def __init__(self, config: Config, address: str):
        """Starts none yet."""
        per_job = cores.num_cores() // max(1, config.actor_jobs)
        threads = config.actor_threads or max(1, min(per_job, config.num_actors // 8))
        shared = replace(
            config,
            job_name="actor",
            actor_jobs=0,
            learner_address=address,
            actor_threads=threads,
        )
        self._jobs = [_Job(replace(shared, task=task)) for task in range(config.actor_jobs)]

    def start(self) -> None:
        for job in self._jobs:
            job.start()

    def attend(self) -> None:
        """Starts jobs again that died and whose pause is over.

        Raises UserError if a job cannot play, or died again and again.
        """
        for job in self._jobs:
            job.attend()

    def close(self, finished: bool) -> None:
        """Ends all jobs; if the learner has finished they may first end by themselves."""
        children = [job.child for job in self._jobs if job.child is not None]
        deadline = time.monotonic() + (_FAREWELL_SECONDS if finished else 0.0)
        for child in children:
            if finished:
                child.wait(max(0.0, deadline - time.monotonic()))
            child.send_signal(signal.SIGTERM)
        supervisor.end(children, _GRACE_SECONDS)


class _Job:
    """One actor job, in one life after the other."""

    def __init__(self, config: Config):
        self._config = config
        self._restarts = Restarts(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, _MAX_RESTARTS_IN_A_ROW)
        self._due = 0.0
        self.child: Child | None = None  # Between two lives there is none.

    def start(self) -> None:
        environment = supervisor.python_environment() | {"CUDA_VISIBLE_DEVICES": "-1"}
        command = [sys.executable, "-c", _COMMAND]
        self.child = Child(command, self._config, environment=environment)

    def attend(self) -> None:
        if self.child is None:
            if time.monotonic() >= self._due:
                self.start()
            return
        if (code := self.child.wait(0)) is None:
            return
        message, how = self.child.message, supervisor.describe_exit(code)
        if message and code == FAILS_AGAIN:
            raise UserError(message)
        if message:
            how = f"has failed ({message})"
        pause = self._restarts.pause(time.monotonic() - self.child.began >= _HEALTHY_SECONDS)
        if pause is None:
            raise UserError(
                f"actor job {self._config.task} {how}, {self._restarts.deaths} times in a row: is "
                "there too little memory for --actor_jobs?"
            )
        logging.warning("actor job %d %s; starts again", self._config.task, how)
        self._due, self.child = time.monotonic() + pause, None


def work() -> None:
    """Plays, in an actor job's process, for the learner that started it."""
    child_program.run(_play)


def _play(config: Config) -> Iterator[int | None]:
    from scalable_agent_popart.distributed import actor_side  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415

    hardware.prepare_process()
    yield actor_side.run_actor_job(config)

"""Actor jobs that a learner starts next to itself, as processes of the same machine."""

import signal
import time
from collections.abc import Iterator
from dataclasses import replace

from absl import logging

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import FAILS_AGAIN, UserError
from scalable_agent_popart.system import child_program, cores, supervisor

_FIRST_PAUSE_SECONDS = 1.0
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
        self._configs = [replace(shared, task=task) for task in range(config.actor_jobs)]
        self._jobs: list[_Job] = []

    def start(self) -> None:
        for config in self._configs:
            self._jobs.append(_Job(config))

    def attend(self) -> None:
        """Starts jobs again that died and whose pause is over.

        Raises UserError if a job cannot play, or died again and again.
        """
        for job in self._jobs:
            job.keep_alive()

    def close(self, finished: bool) -> None:
        """Ends all jobs; if the learner has finished they may first end by themselves."""
        children = [job.child for job in self._jobs]
        deadline = time.monotonic() + (_FAREWELL_SECONDS if finished else 0.0)
        for child in children:
            if finished:
                child.wait(max(0.0, deadline - time.monotonic()))
            child.send_signal(signal.SIGTERM)
        supervisor.end(children, _GRACE_SECONDS)


class _Job(child_program.Program):
    """One actor job, in one life after the other."""

    def __init__(self, config: Config):
        super().__init__(_play, config, _FIRST_PAUSE_SECONDS, CUDA_VISIBLE_DEVICES="-1")
        self._name = f"actor job {config.task}"

    def keep_alive(self) -> None:
        if (code := self.attend()) is None:
            return
        if (message := self.child.message) and code == FAILS_AGAIN:
            raise UserError(message)
        how = f"has failed ({message})" if message else supervisor.describe_exit(code)
        self.restart(f"{self._name} {how},", "--actor_jobs")
        logging.warning("%s %s; starts again", self._name, how)


def _play(config: Config) -> Iterator[int | None]:
    from scalable_agent_popart.distributed import actor_side  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415

    hardware.prepare_process()
    yield actor_side.run_actor_job(config)

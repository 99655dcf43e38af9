"""Actor jobs that a learner starts on its own machine, as processes."""

from dataclasses import replace

from absl import logging

from scalable_agent_popart.errors import FAILS_AGAIN, UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system import cores, supervisor
from scalable_agent_popart.system.child_program import Program

_FIRST_PAUSE_SECONDS = 1.0
# How long jobs may take to end by themselves. They have nothing to save, and what they have started
# ends without them.
_FAREWELL_SECONDS = 30.0


class ActorProcesses:
    """Processes that act for a learner, each started again when it dies."""

    def __init__(self, config: Config, address: str):
        # The processes import this module before TensorFlow, which is the factory's.
        from scalable_agent_popart import factory  # noqa: PLC0415

        per_job = cores.num_cores() // max(1, config.actor_jobs)
        threads = factory.num_actor_threads(config, most=per_job)
        tasks = range(config.actor_jobs)
        config = replace(config, job_name="actor", actor_jobs=0, actor_threads=threads)
        config = replace(config, learner_address=address)
        self._configs = [replace(config, task=task) for task in tasks]
        self._jobs: list[Program] = []

    def start(self) -> None:
        for config in self._configs:
            job = Program(_play, config, _FIRST_PAUSE_SECONDS, CUDA_VISIBLE_DEVICES="-1")
            self._jobs.append(job)

    def attend(self) -> None:
        """Restarts jobs that died, after a pause.

        Raises UserError if a job cannot play, or died again and again.
        """
        for number, job in enumerate(self._jobs):
            if (code := job.attend()) is None:
                continue
            if (message := job.child.message) and code == FAILS_AGAIN:
                raise UserError(message)
            end = f"has failed ({message})" if message else supervisor.describe_exit(code)
            job.restart(f"actor job {number} {end},", "--actor_jobs")
            logging.warning("actor job %d %s; starts again", number, end)

    def close(self, finished: bool) -> None:
        """Ends all jobs; if the learner has finished, they have time to end by themselves."""
        supervisor.end([job.child for job in self._jobs], _FAREWELL_SECONDS if finished else 0.0)


def _play(config: Config) -> int | None:
    from scalable_agent_popart.distributed import actor_side  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415

    hardware.prepare_process()
    return actor_side.run_actor_job(config)

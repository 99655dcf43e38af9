"""A job as one script, which submits separate Slurm jobs: learner, actors as an array, evaluator.

Each of them starts when there is room for it, is queued again by itself at its time limit or with
its node, and finds the learner through the run directory. What the script does is in
`slurm_job.sh`, before which the job's settings are put here. A population is one script as well,
which is told the member's number.
"""

import shlex
from pathlib import Path, PurePosixPath

from job_description import Job, Resources

# How long before its time limit a job begins to save.
_NOTICE_SECONDS = 180

_HEADER = """\
#!/usr/bin/env bash
# Runs {name}: {processes}. Generated; change the declaration.
#
{usage}
#
# The environment says what lies where, for the login node and all others alike:
#   PYTHON      Python with the project's packages; by default python3 of the PATH
#   EXECUTABLE  experiment.py in a checkout, or a zip built by Bazel; by default {executable}
#   LOGDIR      the run directory, on a file system that all nodes see; by default runs/{name}
# Paths begin where the script is started, and logs are written there.
"""

_USAGE = """\
#   bash {name}.slurm.sh
#
# on the login node submits a job each for these processes, with actors as an array. The same
# again, when they are gone, resumes. Past its time limit each queues itself again."""

_POPULATION_USAGE = """\
#   for member in $(seq 0 {last}); do bash {name}.slurm.sh $member; done
#
# on the login node submits a job each for these processes of each member, with actors as an array.
# The same for one member whose jobs are gone resumes it, and the others go on without it. Past its
# time limit each job queues itself again. All members share the run directory."""


def script(job: Job) -> str:
    """Returns the script's text."""
    usage = _POPULATION_USAGE if job.population_size else _USAGE
    header = _HEADER.format(
        name=job.name,
        processes=job.processes,
        usage=usage.format(name=job.name, last=len(job.members) - 1),
        executable=PurePosixPath(job.executable).name,
    )
    body = Path(__file__).with_name("slurm_job.sh").read_text()
    return "\n".join([header, *_settings(job), "", body])


def _settings(job: Job) -> list[str]:
    settings = {
        "name": job.name,
        "executable_name": PurePosixPath(job.executable).name,
        "population_size": str(job.population_size or 0),
        "actor_jobs": str(job.num_actor_jobs),
        "evaluator": str(int(job.evaluator)),
        "gpus": str(job.gpus),
        "notice": str(_NOTICE_SECONDS),
    }
    gpus = [f"--gres=gpu:{job.gpus}"] if job.gpus else []
    arrays = {
        "flags": job.flags,
        "learner_options": [
            *(*_options(job, job.learner_resources), *gpus, *job.slurm_learner_options)
        ],
        "actor_options": _options(job, job.actor_resources),
        "evaluator_options": _options(job, job.evaluator_resources),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    for name, values in arrays.items():
        literally = "# shellcheck disable=SC2016,SC2054 # These are meant as they stand."
        lines += [literally, f"{name}=(", *(f"  {shlex.quote(value)}" for value in values), ")"]
    return lines


def _options(job: Job, resources: Resources) -> list[str]:
    return [
        *(f"--time={job.slurm_time}", "--nodes=1", "--ntasks=1"),
        *(f"--cpus-per-task={resources.cpus}", f"--mem={resources.memory_gib}G"),
        *job.slurm_options,
    ]

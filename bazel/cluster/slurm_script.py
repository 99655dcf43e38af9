"""A job as one `sbatch` script: a heterogeneous job, whose parts differ in what they are given.

The learner's part comes first, so that the script itself runs on the learner's node: if that node
is lost the whole job is queued again, and if another one is, the job goes on. What the script
does is in `slurm_job.sh`, before which the lines of `sbatch` and the job's settings are put here. A
population is one script as well, which is told the member's number.
"""

import shlex
from pathlib import Path, PurePosixPath

from job_description import Job, Resources

# How long before its time limit the job begins to save.
_NOTICE_SECONDS = 180

_HEADER = """\
#!/usr/bin/env bash
# Runs {name}: {processes}. Generated; change the declaration.
#
{usage}
#
# THE LEARNER'S PORT IS OPEN. Slurm does not close it, TensorFlow's server knows no password, and
# what it is sent it runs, as the user of this job. Whoever reaches the learner's node over the
# network can do that, users of the login nodes included. So run this where all of them are
# trusted, or have an administrator close the port: by a firewall on the compute nodes that takes
# connections only from nodes of the same job (set and removed by Slurm's prolog and epilog; with
# --exclusive, so that nobody else is on these nodes), or by a network of the job's own.
"""

_USAGE = """\
#   sbatch {name}.slurm.sh
#
# The same again resumes; past its time limit the job queues itself again."""

_POPULATION_USAGE = """\
#   for member in $(seq 0 {last}); do sbatch {name}.slurm.sh $member; done
#
# A job is one member, since heterogeneous jobs like these cannot be arrays. `sbatch` for a member
# that has no job resumes it; past its time limit a job queues itself again, for the same member.
# The others go on without a member that is missing. All learners see the same run directory."""


def script(job: Job) -> str:
    """Returns the script's text."""
    usage = _POPULATION_USAGE if job.population_size else _USAGE
    usage = usage.format(name=job.name, last=len(job.members) - 1)
    header = _HEADER.format(name=job.name, processes=job.processes, usage=usage)
    body = Path(__file__).with_name("slurm_job.sh").read_text()
    return "\n".join([header.rstrip(), *_directives(job), "", *_settings(job), "", body])


def _directives(job: Job) -> list[str]:
    """Lists the lines for `sbatch`; parts are in the order of `--het-group` in the body."""
    notice = [f"--signal=B:USR1@{_NOTICE_SECONDS}", "--requeue", "--no-kill"]
    log = [f"--job-name={job.name}", f"--output={job.name}-%j.log", "--open-mode=append"]
    gpus = [f"--gres=gpu:{job.gpus}"] if job.gpus else []
    parts = [
        [
            *(*log, *notice, *_part(job, 1, job.learner_resources)),
            *("--nodes=1", *gpus, *job.slurm_learner_options),
        ],
        _part(job, job.num_actor_jobs, job.actor_resources),
        *([_part(job, 1, job.evaluator_resources)] if job.evaluator else []),
    ]
    lines: list[str] = []
    for part in parts:
        lines += ["#SBATCH hetjob"] if lines else []
        lines += [f"#SBATCH {option}" for option in part]
    return lines


def _part(job: Job, num_tasks: int, resources: Resources) -> list[str]:
    memory_mib = -(-resources.memory_gib * 1024 // resources.cpus)
    return [
        f"--time={job.slurm_time}",
        f"--ntasks={num_tasks}",
        f"--cpus-per-task={resources.cpus}",
        f"--mem-per-cpu={memory_mib}M",  # Tasks may share a node or not.
        *job.slurm_options,
    ]


def _settings(job: Job) -> list[str]:
    settings = {
        "name": job.name,
        "executable_name": PurePosixPath(job.executable).name,
        "population_size": str(job.population_size or 0),
        "first_port": str(job.port),
        "actor_jobs": str(job.num_actor_jobs),
        "learner_cpus": str(job.learner_resources.cpus),
        "actor_cpus": str(job.actor_resources.cpus),
        "evaluator_cpus": str(job.evaluator_resources.cpus if job.evaluator else 0),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    literally = "# shellcheck disable=SC2016,SC2054 # Flags are meant as they stand."
    return [*lines, literally, "flags=(", *(f"  {shlex.quote(flag)}" for flag in job.flags), ")"]

"""Writes what runs a training job on a cluster, from one description of it.

  python bazel/cluster/manifests.py --name=pong-popart --actor_jobs=4 --image=popart-impala:latest \
    -- --level_name=pong --use_popart --num_actors=32

writes `pong-popart.kubernetes.yaml` and `pong-popart.slurm.sh` into `--output_dir`. All after `--`
are flags of `experiment.py`, which follow those in `--flag_file`. `--actor_jobs` counts processes;
the experiment's `--num_actors` is how many environments each of them plays. With `--mode=pbt
--population_size=8` there are eight of all that: the members of a population.

What the experiment itself would refuse is refused here, before anything is written. Needs PyYAML,
and loads no TensorFlow.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import kubernetes_manifest
import slurm_script
from absl import flags as absl_flags
from absl.testing import flagsaver
from job_description import ROLES, Job, JobError, Resources

import experiment
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        _give_up(message)


def main(arguments: Sequence[str]) -> None:
    """Writes both files; a user's error is one line and exit code 2."""
    own, flags = _split(arguments)
    options = _parser().parse_args(own)
    try:
        job = _job(options, flags)
        job.check()
        _check_experiment(job)
        directory = Path(options.output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        for suffix, text in (
            ("kubernetes.yaml", kubernetes_manifest.manifest(job)),
            ("slurm.sh", slurm_script.script(job)),
        ):
            (directory / f"{job.name}.{suffix}").write_text(text)
            print(f"written: {directory / job.name}.{suffix}")
    except (JobError, UserError, absl_flags.Error, OSError) as error:
        _give_up(str(error))


def _give_up(message: str) -> NoReturn:
    line = " ".join(message.split()).removeprefix("ERROR:: ")  # As absl begins some of its own.
    print(f"error: {line}", file=sys.stderr)
    sys.exit(2)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """This program's arguments, and the experiment's flags."""
    before = list(arguments)
    after: list[str] = []
    if "--" in before:
        place = before.index("--")
        before, after = before[:place], before[place + 1 :]
    return before, after


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--name", required=True, help="of the run, a DNS label")
    add("--actor_jobs", type=int, required=True, help="number of actor processes")
    add("--flag_file", help="file of flags of the experiment")
    add("--image", required=True, help="container image whose program is the experiment")
    policies = ("Always", "IfNotPresent", "Never")
    add("--image_pull_policy", choices=policies, default="", help="default: Kubernetes' own")
    add("--image_pull_secret", action="append", default=[], help="a Secret; may be repeated")
    add("--namespace", default="", help="of all objects; default: the one kubectl has chosen")
    add("--executable", default="experiment.zip", help="of the Slurm job")
    add("--volume_claim", default="runs", help="existing claim, ReadWriteMany if shared")
    add("--port", type=int, default=8470, help="of the learner")
    add("--gpus", type=int, default=1, help="of the learner, 0 or 1")
    add("--evaluator", action=argparse.BooleanOptionalAction, default=True)
    for role, cpus, memory_gib in (("learner", 8, 32), ("actor", 16, 16), ("evaluator", 8, 16)):
        add(f"--{role}_cpus", type=int, default=cpus, help="default: %(default)s")
        add(f"--{role}_memory_gib", type=int, default=memory_gib, help="default: %(default)s")
        add(f"--{role}_node_label", action="append", default=[], help="NAME=VALUE; may be repeated")
    add("--slurm_time", default="1-00:00:00", help="limit, after which the job is queued again")
    add("--slurm_option", action="append", default=[], help="of sbatch; may be repeated")
    add("--slurm_learner_option", action="append", default=[], help="for the learner only")
    add("--output_dir", default=".", help="where to write the files")
    return parser


def _job(options: argparse.Namespace, flags: Sequence[str]) -> Job:
    learner, actor, evaluator = (
        Resources(
            getattr(options, f"{role}_cpus"),
            getattr(options, f"{role}_memory_gib"),
            tuple(getattr(options, f"{role}_node_label")),
        )
        for role in ROLES
    )
    files = [f"--flagfile={options.flag_file}"] if options.flag_file else []
    flags = absl_flags.FLAGS.read_flags_from_files([*files, *flags])
    given = _parse(flags)
    population = given.get("mode") == "pbt"
    if population:
        if "population_size" not in given:
            raise JobError("--mode=pbt needs --population_size, a number of members")
        flags = [flag for flag in flags if not re.match("--?(mode|population_size)=", flag)]
    return Job(
        name=options.name,
        flags=tuple(flags),
        num_actor_jobs=options.actor_jobs,
        image=options.image,
        image_pull_policy=options.image_pull_policy,
        image_pull_secrets=tuple(options.image_pull_secret),
        namespace=options.namespace,
        executable=options.executable,
        volume_claim=options.volume_claim,
        port=options.port,
        gpus=options.gpus,
        evaluator=options.evaluator,
        learner_resources=learner,
        actor_resources=actor,
        evaluator_resources=evaluator,
        slurm_time=options.slurm_time,
        slurm_options=tuple(options.slurm_option),
        slurm_learner_options=tuple(options.slurm_learner_option),
        population_size=given["population_size"] if population else None,
    )


def _parse(flags: Sequence[str]) -> dict[str, Any]:
    """The values of the experiment's flags that these set, each of its declared type."""
    with flagsaver.flagsaver():
        absl_flags.FLAGS.unparse_flags()
        _, *others = absl_flags.FLAGS(["experiment.py", *flags])
        if others:
            raise JobError(f"{others[0]!r} is not a flag; flags are written --name=value")
        return experiment.given_flags()


def _check_experiment(job: Job) -> None:
    """Raises UserError if the experiment would refuse the flags of a process."""
    run = job.members[0]
    given = _parse(run.run_flags)
    Config.from_flags(given | {"actor_jobs": job.num_actor_jobs})  # Are they enough for all tasks?
    given["learner_address"] = f"learner:{job.port}"
    Config.from_flags(given)
    Config.from_flags(given | {"job_name": "actor", "task": 0})


if __name__ == "__main__":
    main(sys.argv[1:])

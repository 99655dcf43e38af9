"""Writes what runs a training job on a cluster, from one description of it.

  python bazel/cluster/manifests.py --name=pong-popart --actor_jobs=4 --image=popart-impala:latest \
    -- --level_name=pong --use_popart --num_actors=32

writes `pong-popart.kubernetes.yaml` and `pong-popart.slurm.sh` into `--output_dir`. All after `--`
are flags of `experiment.py`, which follow those in `--flag_file`. `--actor_jobs` counts processes;
the experiment's `--num_actors` is how many environments each of them plays. With `--mode=pbt
--population_size=8` there are eight of all that: the members of a population.

The learner takes whatever it is sent: TensorFlow's server asks nobody who they are, and what it is
sent are graphs to run. What keeps others out differs between the two; see `kubernetes_manifest`
and the Slurm script's own first lines.

Needs PyYAML, and nothing else of the project.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import kubernetes_manifest
import slurm_script
from job_description import Job, JobError, Resources


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"error: {message}")


def main(arguments: Sequence[str]) -> None:
    """Writes both files; a user's error is one line and exit code 1."""
    own, flags = _split(arguments)
    options = _parser().parse_args(own)
    try:
        job = _job(options, flags)
        job.check()
        directory = Path(options.output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        for suffix, text in (
            ("kubernetes.yaml", kubernetes_manifest.manifest(job)),
            ("slurm.sh", slurm_script.script(job)),
        ):
            (directory / f"{job.name}.{suffix}").write_text(text)
    except (JobError, OSError) as error:
        sys.exit(f"error: {error}")


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
    add("--image", required=True, help="container image with the executable and its packages")
    add("--executable", default="/app/experiment.zip", help="path in the image")
    add("--volume_claim", default="runs", help="existing claim, ReadWriteMany if shared")
    add("--port", type=int, default=8470, help="of the learner")
    add("--gpus", type=int, default=1, help="of the learner")
    add("--evaluator", action=argparse.BooleanOptionalAction, default=True)
    for role, cpus, memory_gib in (("learner", 8, 32), ("actor", 16, 16), ("evaluator", 8, 16)):
        add(f"--{role}_cpus", type=int, default=cpus, help="default: %(default)s")
        add(f"--{role}_memory_gib", type=int, default=memory_gib, help="default: %(default)s")
    add("--slurm_time", default="1-00:00:00", help="limit, after which the job is queued again")
    add("--slurm_option", action="append", default=[], help="of sbatch; may be repeated")
    add("--slurm_learner_option", action="append", default=[], help="for the learner only")
    add("--output_dir", default=".", help="where to write the files")
    return parser


def _job(options: argparse.Namespace, flags: Sequence[str]) -> Job:
    learner, actor, evaluator = (
        Resources(getattr(options, f"{role}_cpus"), getattr(options, f"{role}_memory_gib"))
        for role in ("learner", "actor", "evaluator")
    )
    lines = Path(options.flag_file).read_text().splitlines() if options.flag_file else []
    flags = [*(line for line in lines if line.startswith("--")), *flags]
    sizes = [flag for flag in flags if flag.startswith("--population_size=")]
    population = "--mode=pbt" in flags
    if population:
        flags = [flag for flag in flags if flag not in ("--mode=pbt", *sizes)]
        if not sizes or not sizes[-1].partition("=")[2].isdecimal():
            raise JobError("--mode=pbt needs --population_size, a number of members")
    return Job(
        name=options.name,
        flags=tuple(flags),
        num_actor_jobs=options.actor_jobs,
        image=options.image,
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
        population_size=int(sizes[-1].partition("=")[2]) if population else None,
    )


if __name__ == "__main__":
    main(sys.argv[1:])

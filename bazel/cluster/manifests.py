"""Writes what runs a training job on a cluster, from one description of it.

  python bazel/cluster/manifests.py --name=pong-popart --actor_jobs=4 --image=popart-impala:latest \
    -- --level_name=pong --use_popart --num_actors=32

writes `pong-popart.kubernetes.yaml` and `pong-popart.slurm.sh` into `--output_dir`. The arguments
after `--` are flags of `experiment.py`, which follow those in `--flag_file`. `--actor_jobs` counts
processes, and the experiment's `--num_actors` counts the environments that each of them plays.
`--mode=pbt --population_size=8` makes a population of eight such runs.

Flags that the experiment would refuse are refused here, before anything is written, and without
loading TensorFlow. A back end is a template, and a file among the `outs` in `bazel/jobs/jobs.bzl`.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    # A Python without the project's packages does not have the project itself, either.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from scalable_agent_popart.system import signals

    signals.end_at_ctrl_c()

import argparse
import functools
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from absl import flags as absl_flags
from absl.testing import flagsaver

import experiment
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system import program

# What a back end's file is called after the job's name, and its template before `.j2`.
_BACK_ENDS = sorted(path.stem for path in Path(__file__).parent.glob("*.j2"))

# Kubernetes appends `-learner`, an actor's index and a suffix of its own to a name, which must stay
# a DNS label of at most 63 characters; a Service's may not start with a digit.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MAX_CHARACTERS = 40
_MAX_MEMBERS = 100  # Their numbers have two digits.

# The manifests set these flags for each process, and a job gives the last two for a population.
_SET_BY_MANIFESTS = {
    *("job_name", "task", "learner_address", "logdir", "keys_dir", "gpus", "actor_jobs"),
    *("pbt_member", "mode", "population_size"),
}


def main(argv: Sequence[str]) -> None:
    """Writes a file for each back end; raises UserError, absl's Error or OSError, the user's."""
    place = [*argv, "--"].index("--")
    job = _parser().parse_args(argv[1:place])
    directory = Path(job.output_dir).expanduser()
    file = [f"--flagfile={job.flag_file}"] if job.flag_file else []
    job.flags = absl_flags.FLAGS.read_flags_from_files([*file, *argv[place + 1 :]])
    _add_runs(job)
    _check(job)
    directory.mkdir(parents=True, exist_ok=True)
    for back_end in _BACK_ENDS:
        path = directory / f"{job.name}.{back_end}"
        path.write_text(_render(back_end, job), encoding="utf-8")
        print(f"written: {path}")


def _render(back_end: str, job: argparse.Namespace) -> str:
    """Renders a back end's template for a job.

    A template has all options of this program as the job's attributes, with those of `_add_runs`.
    Its filter `json` writes a value as YAML, and `shell` quotes it for a shell.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["json"] = functools.partial(json.dumps, ensure_ascii=False)
    templates.filters["shell"] = shlex.quote
    return templates.get_template(f"{back_end}.j2").render(job=job)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.error = _refuse  # type: ignore[method-assign]

    word = _match(r"\S+", "must not be empty and must hold no spaces")

    def add(
        name: str, text: str, default: Any = None, of: Callable[[str], Any] = word, **how: Any
    ) -> None:
        if default == []:
            text, how = f"{text}; may be repeated", {"action": "append"}
        elif default:
            text += f"; default: {default}"
        parser.add_argument(f"--{name}", help=text, type=of, default=default, **how)

    count = _match(r"[1-9]\d*", "is not a whole number from 1", int)
    text = "a DNS label, with which the names of all that it creates begin"
    add("name", text, required=True)
    text = "processes that play, each with an index from 0"
    add("actor_jobs", text, of=count, required=True)
    add("image", "container image whose program is the experiment", required=True)
    text = "when Kubernetes fetches the image, by default as Kubernetes chooses"
    add("image_pull_policy", text, choices=("Always", "IfNotPresent", "Never"))
    add("image_pull_secret", "a Secret that opens the image's registry", [])
    add("namespace", "namespace of all objects, by default the one that kubectl has chosen")
    add("executable", "a Python zip or a script, for Slurm", "experiment.zip")
    text = "existing PersistentVolumeClaim for run directories, ReadWriteMany if they are shared"
    add("volume_claim", text, "runs")
    text = "the learner's port, where it takes rollouts and offers weights"
    add("port", text, 8470, count)
    add("gpus", "the learner's GPUs, 0 or 1; nobody else has any", 1, int, choices=(0, 1))
    text = "whether a process follows the run and logs its scores"
    action = argparse.BooleanOptionalAction
    parser.add_argument("--evaluator", action=action, default=True, help=text)
    # Each process is promised these cores and this memory, and gets no more.
    for role, cpus, memory_gib in (("learner", 8, 32), ("actor", 16, 16), ("evaluator", 8, 16)):
        add(f"{role}_cpus", "cores", cpus, count)
        add(f"{role}_memory_gib", "memory in GiB", memory_gib, count)
        text = "NAME=VALUE, which a Kubernetes node must have for this process"
        add(f"{role}_node_label", text, [], _match(r"[^=\s]+=\S*", "must be NAME=VALUE"))
    text = "limit, of ten minutes or more, after which a Slurm job is queued again"
    add("slurm_time", text, "1-00:00:00")
    option = _match("--?[a-zA-Z].*", "is not an option of sbatch; write --name=value")
    add("slurm_option", "an option of sbatch, such as --account=lab", [], option)
    add("slurm_learner_option", "the same for the learner only", [], option)
    parser.add_argument("--flag_file", help="file of flags of the experiment")
    parser.add_argument("--output_dir", default=".", help="where to write the files")
    return parser


def _refuse(message: str) -> NoReturn:
    raise UserError(message)


def _match(pattern: str, wrong: str, of: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """Makes a type of option, whose values are made `of` texts that match a pattern."""

    def read(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} {wrong}")
        return of(text)

    return read


def _add_runs(job: argparse.Namespace) -> None:
    """Adds to a job the words for its `processes`, and its runs.

    `runs` are those of a population's members, or else a single one. By name, each has the job's
    `flags` and perhaps a member's number from 0.
    """
    job.population_size = size = max(0, _parse(job.flags).get("population_size", 0))
    actors = f"{job.actor_jobs} actor job{'s' * (job.actor_jobs > 1)}"
    job.processes = f"a learner, {actors}{', an evaluator' * job.evaluator}"
    job.runs = {job.name: job.flags}
    if size:
        job.processes = f"a population of {size}, each {job.processes}"
        job.runs = {f"{job.name}-m{n:02d}": [*job.flags, f"--pbt_member={n}"] for n in range(size)}


def _parse(flags: Sequence[str]) -> dict[str, Any]:
    """Returns the values of the experiment's flags that these set, each of its declared type."""
    with flagsaver.flagsaver():
        try:
            _, *others = absl_flags.FLAGS(["experiment.py", *flags])
        except absl_flags.Error as error:  # This program's own --help would not list the flag.
            raise UserError(str(error)) from error
        if others:
            raise UserError(f"{others[0]!r} is not a flag; flags are written --name=value")
        return experiment.given_flags()


def _check(job: argparse.Namespace) -> None:
    """Raises UserError, which says what to change, if the job or its experiment cannot be."""
    if job.population_size > _MAX_MEMBERS:
        raise UserError(f"--population_size={job.population_size} is above {_MAX_MEMBERS}")
    run_name, run_flags = list(job.runs.items())[-1]
    max_characters = _MAX_CHARACTERS - len(run_name) + len(job.name)
    if not _NAME.fullmatch(job.name) or len(job.name) > max_characters:
        raise UserError(
            f"--name={job.name} is no name for a cluster: give at most {max_characters} lower-case "
            "letters, digits and hyphens, beginning with a letter and ending with no hyphen"
        )
    given = _parse(job.flags)
    allowed = {"mode", "population_size"} if given.get("mode") == "pbt" else set()
    if forbidden := given.keys() & (_SET_BY_MANIFESTS - allowed):
        raise UserError(f"--{forbidden.pop()} is set for each process of the job; leave it out")
    given = _parse(run_flags)
    Config.from_flags(given | {"actor_jobs": job.actor_jobs})  # Are they enough for all tasks?
    Config.from_flags(given | {"learner_address": f"learner:{job.port}"})


if __name__ == "__main__":
    # The experiment's flags are those of the job, not of this program.
    program.run(main, lambda argv: [*absl_flags.FLAGS(argv[:1]), *argv[1:]], OSError)

"""Writes what runs a training job on a cluster, from one description of it.

  python bazel/cluster/manifests.py --name=pong-popart --actor_jobs=4 --image=popart-impala:latest \
    -- --level_name=pong --use_popart --num_actors=32

writes `pong-popart.kubernetes.yaml` and `pong-popart.slurm.sh` into `--output_dir`. The arguments
after `--` are flags of `experiment.py`, which follow those in `--flag_file`. `--actor_jobs` counts
processes, and the experiment's `--num_actors` counts the environments that each of them plays.
`--mode=pbt --population_size=8` makes a population of eight such runs.

Flags that the experiment would refuse are refused here, before anything is written, and without
loading TensorFlow. A back end is an entry of `_BACK_ENDS` and a template of the same name.
"""

import argparse
import functools
import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from absl import flags as absl_flags
from absl.testing import flagsaver
from job_description import OPTIONS, Job

import experiment
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError

# What a back end's file is called after the job's name, and its template before `.j2`.
_BACK_ENDS = ("kubernetes.yaml", "slurm.sh")


def main(arguments: Sequence[str]) -> None:
    """Writes a file for each back end; a user's error is one line and exit code 2."""
    place = [*arguments, "--"].index("--")
    options = vars(_parser().parse_args(arguments[:place]))
    flags = arguments[place + 1 :]
    directory = Path(options.pop("output_dir"))
    if flag_file := options.pop("flag_file"):
        flags = [f"--flagfile={flag_file}", *flags]
    try:
        job = _job(options, flags)
        job.check()
        _check_experiment(job)
        directory.mkdir(parents=True, exist_ok=True)
        for back_end in _BACK_ENDS:
            path = directory / f"{job.name}.{back_end}"
            path.write_text(_render(back_end, job))
            print(f"written: {path}")
    except (UserError, absl_flags.Error, OSError) as error:
        _give_up(str(error))


def _give_up(message: str) -> NoReturn:
    line = " ".join(message.split()).removeprefix("ERROR:: ")  # absl begins some of its own so.
    print(f"error: {line}", file=sys.stderr)
    sys.exit(2)


def _render(back_end: str, job: Job) -> str:
    """Renders a back end's template for a job.

    In a template the filter `json` writes a value as YAML, and `shell` quotes it for a shell.
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
    parser.error = _give_up  # type: ignore[method-assign]
    for option in OPTIONS:
        name, text, default = f"--{option.name}", option.metadata["help"], option.default
        if option.type is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(name, action=action, default=default, help=text)
        elif default == ():
            parser.add_argument(name, action="append", default=[], help=f"{text}; may be repeated")
        elif default is MISSING:
            parser.add_argument(name, type=option.type, required=True, help=text)
        else:
            text += f"; default: {default}" * bool(default)
            choices = option.metadata["choices"]
            parser.add_argument(name, type=option.type, choices=choices, default=default, help=text)
    parser.add_argument("--flag_file", help="file of flags of the experiment")
    parser.add_argument("--output_dir", default=".", help="where to write the files")
    return parser


def _job(options: dict[str, Any], flags: Sequence[str]) -> Job:
    flags = absl_flags.FLAGS.read_flags_from_files(list(flags))
    given = _parse(flags)
    population_size = None
    if given.get("mode") == "pbt":
        if "population_size" not in given:
            raise UserError("--mode=pbt needs --population_size, a number of members")
        population_size = given["population_size"]
        flags = [flag for flag in flags if not re.match("--?(mode|population_size)=", flag)]
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return Job(**values, flags=tuple(flags), population_size=population_size)


def _parse(flags: Sequence[str]) -> dict[str, Any]:
    """Returns the values of the experiment's flags that these set, each of its declared type."""
    with flagsaver.flagsaver():
        absl_flags.FLAGS.unparse_flags()
        _, *others = absl_flags.FLAGS(["experiment.py", *flags])
        if others:
            raise UserError(f"{others[0]!r} is not a flag; flags are written --name=value")
        return experiment.given_flags()


def _check_experiment(job: Job) -> None:
    """Raises UserError if the experiment would refuse the flags of a process."""
    run = job.members[0]
    given = _parse(run.run_flags)
    Config.from_flags(given | {"actor_jobs": job.actor_jobs})  # Are they enough for all tasks?
    given["learner_address"] = f"learner:{job.port}"
    Config.from_flags(given)
    Config.from_flags(given | {"job_name": "actor", "task": 0})


if __name__ == "__main__":
    main(sys.argv[1:])

"""What one cluster job consists of, and what is wrong with it."""

import math
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from scalable_agent_popart.errors import UserError

# Kubernetes appends `-learner`, an actor's index and a suffix of its own to a name, which must stay
# a DNS label of at most 63 characters; a Service's may not start with a digit.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MAX_CHARACTERS = 40
_NAMESPACE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?")
_LABEL = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_NODE_LABEL = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]*=[-A-Za-z0-9_.]{0,63}")

_MAX_MEMBERS = 100  # Their numbers have two digits.

# A Slurm job needs three minutes to end, and some to begin.
_MIN_LIMIT_SECONDS = 600

# The manifests set these flags for each process.
_SET_BY_MANIFESTS = (
    *("job_name", "task", "learner_address", "logdir", "keys_dir", "gpus", "actor_jobs"),
    *("mode", "population_size", "pbt_member"),
)


def _option(
    text: str,
    default: Any = MISSING,
    allows: Callable[[Any], object] = lambda value: True,
    wrong: str = "",
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declares an option.

    Args:
      text: what `--help` shows.
      default: its value, unless it must be given.
      allows: returns whether a value can be, or each value of an option that may be repeated.
      wrong: what is wrong with a value that it does not allow.
      choices: the possible values, if they are few.
    """
    declared = {"help": text, "allows": allows, "wrong": wrong, "choices": choices}
    return field(default=default, metadata=declared)


def _number(text: str, default: Any = MISSING) -> Any:
    return _option(text, default, allows=lambda value: value >= 1, wrong="must be 1 or above")


def _word(text: str, default: Any = MISSING) -> Any:
    wrong = "must not be empty and must hold no spaces"
    return _option(text, default, allows=re.compile(r"\S+").fullmatch, wrong=wrong)


def _node_label() -> Any:
    text = "NAME=VALUE, which a Kubernetes node must have for this process"
    wrong = "must be NAME=VALUE of a label"
    return _option(text, (), allows=_NODE_LABEL.fullmatch, wrong=wrong)


def _sbatch_options(text: str) -> Any:
    def allows(option: str) -> bool:
        return bool(re.match(r"--?[a-zA-Z]", option)) and option.isprintable()

    return _option(text, (), allows=allows, wrong="is not an option of sbatch; write --name=value")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One learner, its actor jobs, and by choice an evaluator; or a population of such runs.

    Each field with a text is an option of `manifests.py` of the same name, declared here alone. A
    tuple's option may be repeated.

    Attributes:
      flags: those of the experiment, the same for every process. `--num_actors` among them is the
        number of environments that each actor job plays.
      population_size: the number of members; None if it is one run.
      member: the number, from 0, of the one that this is; None if it is all of them, or one run.
    """

    name: str = _option("a DNS label, with which the names of all that it creates begin")
    actor_jobs: int = _number("processes that play, each with an index from 0")
    image: str = _word("container image whose program is the experiment")
    image_pull_policy: str = _option(
        "when Kubernetes fetches the image, by default as Kubernetes chooses",
        default="",
        choices=("Always", "IfNotPresent", "Never"),
    )
    image_pull_secret: tuple[str, ...] = _option(
        "a Secret that opens the image's registry",
        default=(),
        allows=_LABEL.fullmatch,
        wrong="is no name of a Secret",
    )
    namespace: str = _option(
        "namespace of all objects, by default the one that kubectl has chosen",
        default="",
        allows=_NAMESPACE.fullmatch,
        wrong="is no name of a namespace",
    )
    executable: str = _word("a Python zip or a script, for Slurm", "experiment.zip")
    volume_claim: str = _option(
        "existing PersistentVolumeClaim that run directories are kept on, ReadWriteMany if shared",
        default="runs",
        allows=_LABEL.fullmatch,
        wrong="is no name of a claim",
    )
    port: int = _option(
        "the learner's port, where it takes rollouts and offers weights",
        default=8470,
        allows=lambda port: 1024 <= port < 2**16,
        wrong="must lie in [1024, 65535]",
    )
    gpus: int = _option(
        "the learner's GPUs, 0 or 1; nobody else has any",
        default=1,
        allows=lambda gpus: gpus in (0, 1),
        wrong="must be 0 or 1, since a learner uses one",
    )
    evaluator: bool = _option("whether a process follows the run and logs its scores", True)
    # Each process is promised these cores and this memory, and gets no more.
    learner_cpus: int = _number("cores", 8)
    learner_memory_gib: int = _number("memory in GiB", 32)
    learner_node_label: tuple[str, ...] = _node_label()
    actor_cpus: int = _number("cores", 16)
    actor_memory_gib: int = _number("memory in GiB", 16)
    actor_node_label: tuple[str, ...] = _node_label()
    evaluator_cpus: int = _number("cores", 8)
    evaluator_memory_gib: int = _number("memory in GiB", 16)
    evaluator_node_label: tuple[str, ...] = _node_label()
    slurm_time: str = _option(
        "limit after which a Slurm job is queued again",
        default="1-00:00:00",
        allows=lambda limit: _seconds(limit) >= _MIN_LIMIT_SECONDS,
        wrong="must be ten minutes or more",
    )
    slurm_option: tuple[str, ...] = _sbatch_options("an option of sbatch, such as --account=lab")
    slurm_learner_option: tuple[str, ...] = _sbatch_options("the same for the learner only")
    flags: tuple[str, ...]
    population_size: int | None = None
    member: int | None = None

    @property
    def processes(self) -> str:
        """Names the processes that the job consists of."""
        actors = f"{self.actor_jobs} actor job{'s' * (self.actor_jobs > 1)}"
        run = f"a learner, {actors}" + ", an evaluator" * self.evaluator
        size = self.population_size
        return f"a population of {size}, each {run}" if size else run

    @property
    def members(self) -> "list[Job]":
        """Lists the runs that it consists of: a population's members, or itself."""
        if self.population_size is None:
            return [self]
        return [replace(self, member=member) for member in range(self.population_size)]

    @property
    def run_name(self) -> str:
        """The name, which in a population is each member's own."""
        return self.name if self.member is None else f"{self.name}-m{self.member:02d}"

    @property
    def run_flags(self) -> tuple[str, ...]:
        """Returns the flags, with those that make the run a population's member."""
        if self.member is None:
            return self.flags
        size = f"--population_size={self.population_size}"
        return (*self.flags, "--mode=pbt", size, f"--pbt_member={self.member}")

    def check(self) -> None:
        """Raises UserError, which says what to change, if the job cannot be."""
        if self.population_size is not None and not 2 <= self.population_size <= _MAX_MEMBERS:
            raise UserError(
                f"--population_size must lie in [2, {_MAX_MEMBERS}], got {self.population_size}"
            )
        max_characters = _MAX_CHARACTERS - len(self.members[0].run_name) + len(self.name)
        if not _NAME.fullmatch(self.name) or len(self.name) > max_characters:
            raise UserError(
                f"--name={self.name} is no name for a cluster: give at most {max_characters} "
                "lower-case letters, digits and hyphens, beginning with a letter and ending with "
                "no hyphen"
            )
        for option in OPTIONS:
            values = getattr(self, option.name)
            for value in values if isinstance(values, tuple) else (values,):
                if not option.metadata["allows"](value):
                    raise UserError(f"--{option.name}={value!r} {option.metadata['wrong']}")
        for flag in self.flags:
            if not re.match(r"--?[a-z]", flag) or not flag.isprintable():
                raise UserError(f"{flag!r} is not a flag; flags are written --name=value")
            name = re.split("=", flag.lstrip("-"), maxsplit=1)[0]
            if name in _SET_BY_MANIFESTS:
                raise UserError(f"--{name} is set for each process of the job; leave it out")


OPTIONS = [each for each in fields(Job) if each.metadata]


def _seconds(limit: str) -> float:
    """Reads a time limit as Slurm does."""
    if limit.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    days, dash, rest = limit.rpartition("-")
    parts = rest.split(":")
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    numbers = [days, *parts] if dash else parts
    if not all(number.isdecimal() for number in numbers) or len(parts) > len(units):
        raise UserError(f"--slurm_time={limit} is no time limit; write DAYS-HOURS:MINUTES:SECONDS")
    return 86400 * int(days or 0) + sum(
        unit * int(part) for unit, part in zip(units, parts, strict=False)
    )

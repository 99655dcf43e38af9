"""What one cluster job consists of, and what is wrong with it."""

import math
import re
from dataclasses import dataclass, replace

# Names become DNS labels of at most 63 characters once Kubernetes has appended `-learner`, an
# actor's index and a suffix of its own; a Service's may not start with a digit.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MOST_CHARACTERS = 40
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_NODE_LABEL = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]*=[-A-Za-z0-9_.]{0,63}")

ROLES = ("learner", "actor", "evaluator")

# Their numbers have two digits.
_MOST_MEMBERS = 100

# Of a Slurm job, in seconds: it needs three minutes to end, and some to begin.
_SHORTEST_LIMIT = 600

# What the manifests tell each process themselves.
_SET_BY_MANIFESTS = (
    *("job_name", "task", "learner_address", "logdir", "keys_dir", "gpus", "actor_jobs"),
    *("mode", "population_size", "pbt_member"),
)


class JobError(Exception):
    """The job cannot be; the message says what to change."""


@dataclass(frozen=True)
class Resources:
    """The resources that one process is promised, and gets no more of.

    Attributes:
      node_labels: as `NAME=VALUE`, that a Kubernetes node must have for it.
    """

    cpus: int
    memory_gib: int
    node_labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """One learner, its actor jobs, and by choice an evaluator; or a population of such runs.

    Attributes:
      name: of the run; what it creates on the cluster begins with it.
      flags: of the experiment, the same for every process. `--num_actors` among them is the number
        of environments that each actor job plays.
      num_actor_jobs: processes that play, each with an index from 0.
      image: container whose program is the experiment, as Kubernetes knows it.
      image_pull_policy: of Kubernetes; empty for its own default.
      image_pull_secrets: names of the Secrets that open the image's registry.
      namespace: that all objects are in; empty for the one that `kubectl` has chosen.
      executable: of a Slurm job, a Python zip or a script.
      volume_claim: PersistentVolumeClaim that run directories are kept on.
      port: of the learner, where it takes rollouts and gives weights.
      gpus: of the learner, none or one; nobody else has any.
      slurm_time: limit after which a Slurm job is queued again.
      slurm_options: of `sbatch`, for all parts of the job, such as `--account=lab`.
      slurm_learner_options: the same for the learner only, such as `--partition=gpu`.
      population_size: number of members, each with as many processes and GPUs of its own; None if
        it is one run.
      member: the number, from 0, of the one that this is; None if it is all of them, or one run.
    """

    name: str
    flags: tuple[str, ...]
    num_actor_jobs: int
    image: str
    image_pull_policy: str
    image_pull_secrets: tuple[str, ...]
    namespace: str
    executable: str
    volume_claim: str
    port: int
    gpus: int
    evaluator: bool
    learner_resources: Resources
    actor_resources: Resources
    evaluator_resources: Resources
    slurm_time: str
    slurm_options: tuple[str, ...]
    slurm_learner_options: tuple[str, ...]
    population_size: int | None = None
    member: int | None = None

    @property
    def processes(self) -> str:
        """The processes that the job consists of, in words."""
        actors = f"{self.num_actor_jobs} actor job{'s' * (self.num_actor_jobs > 1)}"
        run = f"a learner, {actors}, an evaluator" if self.evaluator else f"a learner, {actors}"
        return (
            f"a population of {self.population_size}, each {run}" if self.population_size else run
        )

    @property
    def members(self) -> "list[Job]":
        """The runs that it consists of: a population's members, or itself."""
        if self.population_size is None:
            return [self]
        return [replace(self, member=member) for member in range(self.population_size)]

    @property
    def run_name(self) -> str:
        """The name, which in a population is each member's own."""
        return self.name if self.member is None else f"{self.name}-m{self.member:02d}"

    @property
    def run_flags(self) -> tuple[str, ...]:
        """The flags, with those that make the run a population's member."""
        if self.member is None:
            return self.flags
        size = f"--population_size={self.population_size}"
        return (*self.flags, "--mode=pbt", size, f"--pbt_member={self.member}")

    def check(self) -> None:
        """Raises JobError if the job cannot be."""
        if self.population_size is not None and not 2 <= self.population_size <= _MOST_MEMBERS:
            raise JobError(
                f"--population_size must lie in [2, {_MOST_MEMBERS}], got {self.population_size}"
            )
        appended = len(self.members[0].run_name) - len(self.name)
        if not _NAME.fullmatch(self.name) or len(self.name) + appended > _MOST_CHARACTERS:
            raise JobError(
                f"--name={self.name} is no name for a cluster: give at most "
                f"{_MOST_CHARACTERS - appended} lower-case letters, digits and hyphens, beginning "
                "with a letter and ending with no hyphen"
            )
        for name, values, of in (
            ("volume_claim", (self.volume_claim,), "a claim"),
            ("image_pull_secret", self.image_pull_secrets, "a Secret"),
            ("namespace", (self.namespace or "default",), "a namespace"),
        ):
            known = _NAMESPACE if name == "namespace" else _LABEL
            for value in values:
                if not known.fullmatch(value):
                    raise JobError(f"--{name}={value} is no name of {of}")
        for name in ("image", "executable", "slurm_time"):
            value = getattr(self, name)
            if not value or any(character.isspace() for character in value):
                raise JobError(f"--{name}={value!r} must not be empty and must hold no spaces")
        if _seconds(self.slurm_time) < _SHORTEST_LIMIT:
            raise JobError(f"--slurm_time={self.slurm_time} must be ten minutes or more")
        if self.num_actor_jobs < 1:
            raise JobError(f"--actor_jobs must be 1 or above, got {self.num_actor_jobs}")
        if not 1024 <= self.port < 2**16:
            raise JobError(f"--port must lie in [1024, 65535], got {self.port}")
        if self.gpus not in (0, 1):
            raise JobError(f"--gpus must be 0 or 1, since a learner uses one, got {self.gpus}")
        for role in ROLES:
            resources: Resources = getattr(self, f"{role}_resources")
            if min(resources.cpus, resources.memory_gib) < 1:
                raise JobError(f"--{role}_cpus and --{role}_memory_gib must be 1 or above")
            for label in resources.node_labels:
                if not _NODE_LABEL.fullmatch(label):
                    raise JobError(f"--{role}_node_label={label} must be NAME=VALUE of a label")
        self._check_flags()

    def _check_flags(self) -> None:
        for flag in self.flags:
            if not re.match(r"--?[a-z]", flag) or not flag.isprintable():
                raise JobError(f"{flag!r} is not a flag; flags are written --name=value")
            name = re.split("=", flag.lstrip("-"), maxsplit=1)[0]
            if name in _SET_BY_MANIFESTS:
                raise JobError(f"--{name} is set for each process of the job; leave it out")
        for option in (*self.slurm_options, *self.slurm_learner_options):
            if not re.match(r"--?[a-zA-Z]", option) or not option.isprintable():
                raise JobError(f"{option!r} is not an option of sbatch; write --name=value")


def _seconds(limit: str) -> float:
    """Reads a time limit as Slurm does."""
    if limit.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    days, dash, rest = limit.rpartition("-")
    parts = rest.split(":")
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    numbers = [days, *parts] if dash else parts
    if not all(number.isdecimal() for number in numbers) or len(parts) > len(units):
        raise JobError(f"--slurm_time={limit} is no time limit; write DAYS-HOURS:MINUTES:SECONDS")
    return 86400 * int(days or 0) + sum(
        unit * int(part) for unit, part in zip(units, parts, strict=False)
    )

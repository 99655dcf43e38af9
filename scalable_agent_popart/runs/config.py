"""The configuration of a run: all its settings, checked, and the suite that they name."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

from scalable_agent_popart import settings, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.settings import SETTINGS, Settings, Use
from scalable_agent_popart.suites import Suite
from scalable_agent_popart.suites import record as suite_record

_SUITES = ", ".join(suite.name for suite in suites.ALL)
_PATTERN = re.compile(r"[*?\[\]\\]")
_MAX_DIFFERENCES = 5  # A message names so many.
SAME = "give the same flags and the same suite"
_TYPES: dict[str, Any] = {each.name: each.type for each in fields(Settings)}
# Fewest pixels per side for the shallow network without padding, and for pixel control.
_MIN_UNPADDED, _MIN_PIXELS = 20, 32
# A host's name or IPv4 address, or its IPv6 address in brackets, and a port.
_ADDRESS = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of a run that agree with each other and the suite."""

    suite: Suite = field(repr=False, compare=False)  # No setting, but what `level_name` stands for.

    @classmethod
    def from_flags(cls, given: Mapping[str, Any]) -> "Config":
        """Returns what flags ask for; raises UserError if they make no sense together."""
        refuse_meaningless(given)
        return cls.from_settings(given)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Config":
        """Returns a record's configuration; settings that it lacks have the values of its time."""
        flags = dict(record["flags"])
        if flags.get("precision") == "auto":  # An older version did not record what it chose.
            del flags["precision"]
        for name, kept in settings.RETIRED.items():
            if (value := flags.pop(name, kept)) != kept:
                raise ValueError(f"it has --{name}={value}, which this version does not have")
        if newer := ", ".join(sorted(flags.keys() - SETTINGS.keys())):
            raise ValueError(f"it has flags that this version does not know: {newer}")
        return cls.from_settings({**settings.OLDER, **flags}, suite_record.recorded(record))

    @classmethod
    def from_settings(cls, flags: Mapping[str, Any], suite: Suite | None = None) -> "Config":
        """Returns what settings ask for; unlike flags, settings may mean nothing to the run."""
        if not flags.get("level_name"):
            given = f"give a suite ({_SUITES}) or levels of one; --list_levels lists them"
            raise UserError(f"--level_name is missing: {given}")
        if suite is None:
            suite = suites.resolve(flags["level_name"])
        frames, num_tasks = suite.total_frames, len(suite.tasks)
        defaults = {
            "total_environment_frames": frames * num_tasks // len(suite.reference_scores),
            "num_actors": suite.num_actors(),
            **suite.defaults,
        }
        if flags.get("mode") == "pbt":  # Tuning takes annealing's place.
            defaults["learning_rate_schedule"] = "constant"
        if unknown := defaults.keys() - SETTINGS.keys():
            message = f"{suite.name} has a default of {', '.join(sorted(unknown))}"
            raise UserError(f"--level_name: the suite {message}, which is no flag")
        values = {**defaults, **flags, "level_name": suite.level_name}
        if flags.get("use_popart"):  # PopArt has one head per task; older runs recorded both flags.
            values["multi_head"] = False
        values = {name: _in_its_type(name, value) for name, value in values.items()}
        fits = min(values["height"], values["width"]) >= _MIN_UNPADDED
        values.setdefault("padding", "valid" if fits and values["network"] == "shallow" else "same")
        config = cls(**values, suite=suite)
        for name, declared in SETTINGS.items():
            if declared.allowed and getattr(config, name) not in declared.allowed:
                raise UserError(f"--{name} must be {declared.range}, got {getattr(config, name)}")
        if problem := next(_problems(config), None):
            raise UserError(problem)
        return config

    @property
    def uses_port(self) -> bool:
        """Returns whether actors are other processes, which reach the learner by its port."""
        return bool(self.learner_address or self.actor_jobs) or self.job_name == "actor"

    def __reduce__(self) -> tuple[Any, ...]:
        # A suite from outside of the package may not pickle, so the other process imports its own.
        return Config.from_settings, (self.flags,)

    @property
    def flags(self) -> dict[str, Any]:
        """All settings, by name."""
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def record(self) -> dict[str, Any]:
        """The JSON that a file keeps for `from_record`."""
        options = self.environment_options(training=True)
        suite = suite_record.describe(self.suite, options)
        return {"flags": self.flags, "tasks": self.suite.tasks, "suite": suite}

    def check_playable(self) -> None:
        """Raises UserError if this machine cannot play the tasks as they are configured."""
        logdir = os.path.abspath(self.logdir)
        self.suite.check(self.environment_options(training=self.mode != "test"))
        if os.path.abspath(self.logdir) != logdir:  # The run would be written elsewhere.
            message = f"the environments of {self.suite.name} change the current directory"
            raise UserError(f"{message}: give --logdir={logdir}")

    @property
    def num_actions(self) -> int:
        return self.suite.action_sets[self.action_set]

    @property
    def minimal_actions(self) -> Sequence[str]:
        """The names of the actions if these are a minimal set; otherwise none."""
        minimal = self.action_set == suites.MINIMAL
        return self.suite.effective_actions.get(self.suite.tasks[0], ()) if minimal else ()

    @property
    def num_heads(self) -> int:
        """The number of value heads: one per task, or one for all."""
        return len(self.suite.tasks) if self.multi_head or self.use_popart else 1

    @property
    def agent_name(self) -> str:
        """The agent's name in the paper, or one formed alike."""
        head = "PopArt-" if self.use_popart else "MultiHead-" if self.multi_head else ""
        return f"{'Pixel-' if self.pixel_control else ''}{head}IMPALA"

    @property
    def experiment(self) -> dict[str, Any]:
        """The flags that shape learning, which runs of one experiment share, without the seed.

        A member of a population has those that all its members share.
        """
        flags = self.required(Use.HISTORY)
        del flags["seed"]
        return flags

    def remarks(self) -> dict[str, str]:
        """Returns what levels in play or their test versions lack with these flags, by level."""
        suite = self.suite
        levels = {*suite.tasks, *map(suite.test_version, suite.tasks)}
        every = suite.remarks(self.environment_options(training=True))
        return {level: text for level, text in every.items() if level in levels}

    @property
    def tuned(self) -> tuple[str, ...]:
        """The flags that population-based training tunes; none without a population."""
        return tuple(self.suite.search_space) if self.population_size else ()

    def options(self, record: type[Any]) -> Any:
        """Returns a record of a dataclass, whose fields that are settings have the run's values."""
        names = SETTINGS.keys() & {each.name for each in fields(record)}
        return record(**{name: getattr(self, name) for name in names})

    def environment_options(self, training: bool) -> suites.EnvironmentOptions:
        """Returns how environments behave; only tests have human starts."""
        options = replace(self.options(suites.EnvironmentOptions), training=training)
        return replace(options, human_starts_dir="") if training else options

    def with_flags(self, given: Mapping[str, Any]) -> "Config":
        """Returns this configuration with other values of some flags, checked again."""
        suite = None if "level_name" in given else self.suite
        return Config.from_settings({**self.flags, **given}, suite)

    def resuming(self, previous: "Config", given: Mapping[str, Any]) -> "Config":
        """Returns this with a run's values of `settings.OLDER` that no `given` flag names."""
        return replace(self, **{n: getattr(previous, n) for n in settings.OLDER if n not in given})

    def required(self, use: Use) -> dict[str, Any]:
        """Returns what must stay the same for a use of the run, settings first, by name.

        Settings that mean nothing to the run are left out, as are those that its population tunes.
        Value heads and statistics belong to tasks by their position alone, as logits do to actions.
        """
        flags = {}
        for name, each in SETTINGS.items():
            part = each.part
            applies = part.modes != ("pbt",) or self.population_size
            applies = applies and (not part.needs or getattr(self, part.needs))
            if part.same_for & use and applies and name not in self.tuned:
                flags[name] = getattr(self, name)
        if "dataset_path" in flags:  # It matters only whether levels that show images have some.
            flags["dataset_path"] = not self.remarks()
        suite, trains = self.suite, Use.RESUME | Use.TEST
        facts = {
            "the suite": (Use.POLICY, suite.name),
            "the number of actions": (trains | Use.POLICY, self.num_actions),
            "the minimal actions": (Use.POLICY, self.minimal_actions),
            "num_channels": (trains | Use.TORSO, suite.num_channels),
            "stacks_frames": (trains | Use.TORSO, suite.stacks_frames),
            "has_instructions": (Use.TORSO, suite.has_instructions),
            "the number of tasks": (trains, len(suite.tasks)),
            **{f"task {i}": (trains | Use.ROLLOUTS, task) for i, task in enumerate(suite.tasks)},
        }
        return flags | {name: value for name, (uses, value) in facts.items() if uses & use}

    def differences(self, then: "Config", use: Use) -> dict[str, tuple[Any, Any]]:
        """Returns what a use of a run needs to be as it was `then` and is not, with both values.

        These are settings, or facts of the suite if no setting differs.
        """
        before, now = then.required(use), self.required(use)
        differing = [name for name in now if before.get(name, now[name]) != now[name]]
        if flags := [name for name in differing if name in SETTINGS]:
            return {name: (getattr(then, name), getattr(self, name)) for name in flags}
        return {name: (before[name], now[name]) for name in differing}

    @property
    def has_own_network(self) -> bool:
        """Returns whether the network is from outside of the package, MODULE:NAME."""
        return ":" in self.network

    def refuse_network(self, network: str, logdir: str) -> None:
        """Raises UserError if a command names another network than that of this run.

        An empty name stands for none, which is refused for networks from outside of the package.
        """
        if network == self.network or not (network or self.has_own_network):
            return
        why = "since modules are loaded only if a command names them"
        advice = f", not {network}; give the same" if network else f": give --network too, {why}"
        raise UserError(f"{logdir} was trained with --network={self.network}{advice}")

    @property
    def is_outside(self) -> bool:
        """Returns whether the suite or a level is from outside of the package, see `for_test`."""
        return suites.is_outside(self.suite)

    def for_test(self, given: Mapping[str, Any]) -> "Config":
        """Returns how to test this run, or raises UserError if its policy cannot play like that."""
        refuse_meaningless({"mode": "test", **given}, self)
        logdir = given.get("logdir", self.logdir)
        if self.is_outside and "level_name" not in given:
            raise UserError(
                f"{logdir} was trained on {self.level_name}: give --level_name too, since modules "
                "and levels from outside of the package are loaded only if a command names them"
            )
        self.refuse_network(given.get("network", ""), logdir)
        suite = suites.resolve(given.get("level_name", self.level_name))
        if suite.name != self.suite.name:
            message = f"{logdir} was trained on {self.suite.name}; it cannot be tested on"
            raise UserError(f"{message} {suite.level_name} of {suite.name}")
        # Each test has its own flags, and takes no part in a run of many processes.
        parts = {name: each.part.name for name, each in SETTINGS.items()}
        kept = {n: v for n, v in self.flags.items() if parts[n] != settings.TEST.name}
        flags = {n: v for n, v in {**kept, **given}.items() if parts[n] != settings.JOB.name}
        config = Config.from_settings({**flags, "mode": "test"}, suite)
        played = config  # Scores are of raw rewards, and a test may play other levels.
        if config.level_name != self.level_name:
            played = replace(config, suite=suite.select(self.suite.tasks))
        refused = describe_differences(played.differences(self, Use.TEST))
        if not refused and config.minimal_actions != self.minimal_actions:
            refused = f"{suite.tasks[0]} has other minimal actions"
        if refused:
            raise UserError(f"{logdir} holds another run: {refused}; {SAME}")
        return config


def _in_its_type(name: str, value: Any) -> Any:
    """Returns a setting's value in its type, as a suite may have 1e6 for a count, or UserError."""
    kind = _TYPES[name]
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if (converted := kind(value)) == value:
            return converted
    raise UserError(f"--{name} cannot be {value!r}, which is no {kind.__name__}")


def describe_differences(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """Describes `Config.differences` in words, of a suite's many tasks only the first."""
    described = [
        f"{flag_name(name)} was {'empty' if then == '' else then} and is "
        f"{'empty' if now == '' else now}"
        for name, (then, now) in differences.items()
    ]
    if len(described) > _MAX_DIFFERENCES and not differences.keys() & SETTINGS.keys():
        described[_MAX_DIFFERENCES:] = [f"{len(described) - _MAX_DIFFERENCES} more"]
    return "; ".join(described)


def flag_name(name: str) -> str:
    """Returns a setting's name as users give it; names of anything else stay as they are."""
    return f"--{name}" if name in SETTINGS else name


def _problems(config: Config) -> Iterator[str]:
    """Yields what is wrong with a configuration."""
    suite = config.suite
    if not config.logdir:
        yield "--logdir is empty: give the directory of the run"
    lower, upper = config.popart_scale_lower_bound, config.popart_scale_upper_bound
    if lower > upper:
        yield f"--popart_scale_lower_bound={lower} is above --popart_scale_upper_bound={upper}"
    if config.action_set not in suite.action_sets:
        if config.action_set == suites.MINIMAL and suite.effective_actions:
            yield "--action_set=minimal is for levels with the same minimal actions; give full"
        yield f"--action_set={config.action_set} is none of {', '.join(suite.action_sets)}"
    if config.starts == "human" and not suite.human_starts_scores:
        yield f"--starts=human: {suite.name} has no human starts; leave it out"
    if (config.starts == "human") != bool(config.human_starts_dir):
        yield "--starts=human and --human_starts_dir, of tools/record_starts.py, go together"
    for name in sorted({name for each in suites.ALL for name in each.own_flags}):
        if getattr(config, name) and name not in suite.own_flags:
            yield f"--{name} means nothing to {suite.name}; leave it out"
    for name in () if suite.scalable else ("height", "width", "num_action_repeats"):
        if (value := getattr(config, name)) != suite.defaults[name]:
            yield f"--{name} is always {suite.defaults[name]} in {suite.name}, got {value}"
    if config.pixel_control and min(config.height, config.width) < _MIN_PIXELS:
        got = f"{config.height}x{config.width} in {suite.name}"
        yield f"--pixel_control needs images of {_MIN_PIXELS}x{_MIN_PIXELS} or more, got {got}"
    if config.network not in ("deep", "shallow") and not config.has_own_network:
        yield f"--network must be deep, shallow or MODULE:NAME, got {config.network}"
    of_torsos = (config.image_scale, config.zero_mean_filters, config.precision)
    if config.has_own_network and of_torsos != (1.0, False, "float32"):
        names = "--image_scale, --zero_mean_filters and --precision"
        yield f"{names} are not for {config.network}; leave them out"
    if config.padding == "valid" and (
        config.network != "shallow" or min(config.height, config.width) < _MIN_UNPADDED
    ):
        images = f"images of {_MIN_UNPADDED}x{_MIN_UNPADDED} or more"
        has = f"the {config.network} one on {config.height}x{config.width}"
        yield f"--padding=valid is for the shallow network on {images}, not for {has}"
    num_tasks, actors = len(suite.tasks), config.num_actors * (config.actor_jobs or 1)
    # A learner with an address may have any number of jobs.
    learns = config.job_name == "learner" and config.mode != "test"
    if learns and not config.learner_address and actors < num_tasks:
        jobs = f" in each of --actor_jobs={config.actor_jobs}" if config.actor_jobs else ""
        played = f"the {num_tasks} tasks of --level_name={config.level_name}"
        message = f"give at least {num_tasks}{' in all' if jobs else ''}"
        yield f"--num_actors={config.num_actors}{jobs} cannot play {played}: {message}"
    if config.actor_threads > config.num_actors and config.mode != "test":
        yield f"--actor_threads={config.actor_threads} is above --num_actors={config.num_actors}"
    port = _ADDRESS.fullmatch(config.learner_address)
    if config.learner_address and not (port and int(port[2]) < 2**16):
        yield f"--learner_address={config.learner_address} must be HOST:PORT as actors see it"
    if config.job_name == "actor" and port and not int(port[2]):
        yield "--learner_address with port 0 is for the learner; actor jobs find it in --logdir"
    if config.gpus > 1:
        yield (
            f"--gpus={config.gpus} is too many: a learner uses one; give each run, or each "
            "--pbt_member of a population, one of them by CUDA_VISIBLE_DEVICES"
        )
    if config.actor_jobs and config.job_name != "learner":
        yield f"--actor_jobs={config.actor_jobs} is for --job_name=learner; leave it out"
    if config.keys_dir and not config.uses_port:
        yield "--keys_dir is for a run of many processes: give --learner_address"
    if config.job_name == "actor" and config.task < 0:
        yield "--job_name=actor needs --task, the job's number: 0 for the first, then 1, ..."
    if config.mode != "pbt":
        return
    size, member = config.population_size, config.pbt_member
    if size < 2:
        yield f"--mode=pbt needs --population_size, 2 or more (the paper: 24 or 8), got {size}"
    if not -1 <= member < size:
        yield f"--pbt_member={member} must lie in [0, {size - 1}]; without it all are trained"
    if member < 0 and config.uses_port:
        how = "--learner_address, --actor_jobs and --job_name=actor"
        yield f"{how} are for one member: give --pbt_member too"
    if not suite.normalised or not set(suite.tasks) & set(suite.reference_scores):
        how = f"add a level of {suite.name}" if suite.normalised else "give the suite some"
        yield f"--mode=pbt compares normalised scores; {config.level_name} has none: {how}"


def refuse_meaningless(given: Mapping[str, Any], trained: Config | None = None) -> None:
    """Raises UserError if a flag means nothing, also to the `trained` run that is to be tested."""
    mode = given.get("mode", "train")
    evaluates = given.get("job_name") == "evaluator" and mode in settings.EVALUATED
    # All jobs of a run may have the same flags: an evaluator the learner's, and the reverse.
    in_many = any(map(given.get, ("learner_address", "actor_jobs", "job_name")))
    modes = settings.EVALUATED if evaluates else (mode, "test") if in_many else (mode,)
    is_known = trained is not None or not (evaluates or mode == "test")
    refuse_pattern(given.get("logdir", ""))
    defaults: Mapping[str, Any] = {} if trained is None else trained.flags
    if trained is None and is_known and given.get("level_name"):
        defaults = suites.resolve(given["level_name"]).defaults  # A suite may have PopArt.
    values = {**defaults, **given}
    if given.get("multi_head") and values.get("use_popart"):
        raise UserError(
            "--multi_head means nothing with --use_popart, which has one value head per level; "
            "leave it out"
        )
    parts = {each.name: each.metadata["setting"].part for each in settings.FIELDS}
    for name in given:
        if not set(modes) & set(parts[name].modes):
            meant = "|".join(parts[name].modes)
            raise UserError(f"--{name} is for --mode={meant}, not --mode={mode}; leave it out")
        if is_known and (needed := parts[name].needs) and not values.get(needed):
            raise UserError(f"--{name} means nothing without --{needed}; leave it out")


def refuse_pattern(path: str, flag: str = "logdir") -> None:
    """Raises UserError if a directory that a flag names is none of this machine to TensorFlow.

    An address such as gs://bucket/run would become a folder named gs: here. TensorFlow would take a
    pattern for the paths that fit, and find no files.
    """
    if "://" in path:
        raise UserError(f"--{flag}={path} is no directory of this machine; give one, or mount it")
    if pattern := _PATTERN.search(path):
        message = f"has the character {pattern[0]}, by which TensorFlow would take it for a pattern"
        raise UserError(f"--{flag}={path} {message} of several paths; rename it or give another")


def describe_default(each: Field) -> str:
    """Returns the default of a setting in words, by suite if it depends on that."""
    text = "" if each.default == () else str(each.default)
    if each.default is MISSING:
        by_value: dict[Any, list[str]] = {}
        for suite in suites.ALL:
            config = Config.from_settings({"level_name": suite.name})
            by_value.setdefault(getattr(config, each.name), []).append(suite.name)
        described = [f"{value} in {' and '.join(names)}" for value, names in by_value.items()]
        text = ", ".join(described) if len(described) > 1 else str(*by_value)
    if sampled := [suite.name for suite in suites.ALL if each.name in suite.search_space]:
        where = "" if len(sampled) == len(suites.ALL) else f" in {' and '.join(sampled)}"
        text += f"; with --mode=pbt each member samples its own{where}"
    return text

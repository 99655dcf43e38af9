"""Every setting, declared once, and the frozen record `Config` of all that make a run.

Flags, their ranges and choices, `--help`, docs/configuration.md and every list of settings that
another module needs follow from the declarations.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, NamedTuple

from scalable_agent_popart import config_checks, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import Suite
from scalable_agent_popart.suites import record as suite_record


class Part(NamedTuple):
    """A part of the program that settings belong to, and the modes in which it takes part."""

    name: str
    modes: tuple[str, ...]


_RUNS = ("train", "pbt", "test")
_MODES = (*_RUNS, "report")
EXPERIMENT = Part("experiment", ("train", "pbt"))  # Which runs with other seeds share.
CHECKPOINT = Part("checkpoint", _RUNS)  # The experiment's, and a run can never change it.
RUN = Part("run", _RUNS)
PROCESS = Part("process", ("train", "pbt"))
JOB = Part("job", ("train", "pbt"))  # A process's part in a run of many processes.
TEST = Part("test", ("test",))
REPORT = Part("report", ("report",))

_SUITES = ", ".join(suite.name for suite in suites.ALL)
_PATTERNS = frozenset("*?[]\\")
_MAX_TOLD = 5  # Differences that a message names.


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting, beside its name, its type and a constant default."""

    help: str
    belongs_to: Part
    modes: tuple[str, ...]  # That it means something to.
    choices: tuple[str, ...] = ()
    low: float | None = None  # The smallest number that it may be.
    above: float | None = None  # A number that it must exceed.
    high: float = math.inf
    needs: str = ""  # The setting without which it means nothing.
    shared: bool = False  # An actor job must have the learner's value; shapes follow from it.
    changes_freely: bool = False  # A run may be resumed with another value.
    # What runs had before the setting or its present default existed. A run that is resumed keeps
    # the value of its record unless the command names another.
    older: Any = None

    @property
    def range(self) -> str:
        """The possible values in words; empty if all are possible."""
        if self.low is None and self.above is None:
            return f"one of {', '.join(self.choices)}" if self.choices else ""
        least = f"above {self.above}" if self.low is None else f"at least {self.low}"
        return f"{least} and {'finite' if self.high == math.inf else f'at most {self.high}'}"

    def allows(self, value: Any) -> bool:
        """Tells whether a value is one of the choices, or within the bounds."""
        if self.choices or not self.range:
            return value in self.choices or not self.choices
        least = value > self.above if self.low is None else value >= self.low
        return least and value <= self.high and value < math.inf


def setting(default: Any, text: str, belongs_to: Part = EXPERIMENT, **declared: Any) -> Any:
    """Declares a field with a default, or with `...` where that depends on the suite."""
    made = Setting(text, belongs_to, **{"modes": belongs_to.modes, **declared})
    return field(default=MISSING if default is ... else default, metadata={"setting": made})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; names and meanings are those of the flags.

    Attributes:
      suite: what `level_name` stands for, with the tasks in play; of a run's record as recorded.
    """

    suite: Suite = field(repr=False, compare=False)  # Is no setting.
    level_name: str = setting(
        "",
        f"A suite ({_SUITES}), or levels of one, such as pong,boxing; MODULE:NAME is a suite or "
        "a level of a Python module.",
        CHECKPOINT,
        modes=_MODES,
        shared=True,
    )
    mode: str = setting(
        "train",
        "Train a run or a population, test the run in --logdir, or report on --runs.",
        PROCESS,
        choices=_MODES,
        modes=_MODES,
    )
    logdir: str = setting(
        "/tmp/agent", "Directory of the run or the population. The same command resumes.", RUN
    )
    job_name: str = setting(
        "learner",
        "This process's part in a run of many, which have a --learner_address. An evaluator tests "
        "the run in --logdir again and again while it trains.",
        JOB,
        choices=("learner", "actor", "evaluator"),
    )
    task: int = setting(-1, "Number of the actor job, from 0.", JOB, low=-1)
    learner_address: str = setting(
        "",
        "HOST:PORT of the learner, for a run of many processes; the learner takes any free port "
        "for 0. Actor jobs that see its --logdir find it there.",
        JOB,
    )
    keys_dir: str = setting(
        "",
        "Keys that close the learner's port to all but the run's own jobs. The learner makes them "
        "where there are none. Default: keys in --logdir.",
        JOB,
    )
    actor_jobs: int = setting(
        0,
        "Actor jobs that the learner starts beside itself on this machine, as processes with "
        "--num_actors environments each.",
        JOB,
        low=0,
    )
    seed: int = setting(1, "Random seed.", RUN, low=0)
    total_environment_frames: int = setting(
        ...,
        "Environment frames to train for; in a population, of each member. Defaults are for whole "
        "suites; for only some of a suite's levels they are smaller in proportion.",
        above=0,
        changes_freely=True,
    )
    num_actors: int = setting(
        ...,
        "Environments, dealt round robin over the levels. Defaults are for whole suites; for only "
        "some of a suite's levels it is 32 (DmLab: 30), rounded up to a multiple of the levels.",
        PROCESS,
        above=0,
        modes=_RUNS,
    )
    actor_threads: int = setting(
        0,
        "Threads that step actors; 0: one a core, or fewer, so that each has at least "
        "eight actors if there are that many.",
        PROCESS,
        low=0,
    )
    unroll_length: int = setting(..., "Rollout length in agent steps.", above=0, shared=True)
    batch_size: int = setting(..., "Rollouts per batch.", above=0)
    num_action_repeats: int = setting(
        ..., "Frames per agent step.", CHECKPOINT, above=0, shared=True
    )
    height: int = setting(..., "Height of the observation.", CHECKPOINT, above=0, shared=True)
    width: int = setting(..., "Width of the observation.", CHECKPOINT, above=0, shared=True)
    action_set: str = setting(
        ..., "Set of actions; for DmLab-30 popart or impala.", CHECKPOINT, shared=True
    )
    dataset_path: str = setting(
        "",
        "Images for two psychlab levels of DmLab-30; dummy, its default, for squares.",
        modes=_RUNS,
    )
    level_cache_dir: str = setting("", "Where to keep compiled DmLab levels.", PROCESS, modes=_RUNS)
    level_cache_gib: float = setting(
        10.0,
        "GiB of compiled levels to keep, at most; those not used for longest go first.",
        PROCESS,
        above=0,
        modes=_RUNS,
        needs="level_cache_dir",
    )
    network: str = setting(
        ..., "Network of IMPALA's paper.", CHECKPOINT, choices=("deep", "shallow"), shared=True
    )
    padding: str = setting(
        ...,
        "Padding of the shallow network's convolutions: valid as in IMPALA's Figure 3, or same, "
        "the default for images of fewer than 20 pixels per side. The deep network has only same.",
        CHECKPOINT,
        choices=("valid", "same"),
        shared=True,
        older="same",
    )
    use_lstm: bool = setting(..., "Adds an LSTM after the torso.", CHECKPOINT, shared=True)
    multi_head: bool = setting(False, "One value head a level (MultiHead-IMPALA).", CHECKPOINT)
    use_popart: bool = setting(
        False, "One value head a level, normalised (PopArt-IMPALA).", CHECKPOINT
    )
    popart_step_size: float = setting(
        3e-4,
        "Weight of a rollout in PopArt's statistics.",
        above=0,
        high=1,
        needs="use_popart",
        older=3e-4,
    )
    popart_start: str = setting(
        "average",
        "PopArt's statistics begin as the plain average of a task's rollouts until each of these "
        "weighs less than the step size, or they are fixed at a shift of 0 and a scale of 1.",
        CHECKPOINT,
        choices=("average", "fixed"),
        needs="use_popart",
        older="fixed",
    )
    popart_scale_lower_bound: float = setting(
        1e-4, "Smallest scale (sigma).", above=0, needs="use_popart"
    )
    popart_scale_upper_bound: float = setting(
        1e6, "Largest scale (sigma).", above=0, needs="use_popart"
    )
    popart_second_moment_of: str = setting(
        "squares",
        "The second moment averages the squares of a rollout's targets, or squares their mean.",
        choices=("squares", "mean"),
        needs="use_popart",
    )
    popart_order: str = setting(
        "gradient_first",
        "The gradient step or the update of the statistics comes first.",
        choices=("gradient_first", "statistics_first"),
        needs="use_popart",
    )
    reward_clipping: str = setting(
        ...,
        "Transformation of rewards for learning. Scores always use raw rewards.",
        CHECKPOINT,
        choices=("abs_one", "none", "soft_asymmetric", "oar"),
    )
    entropy_cost: float = setting(..., "Entropy cost/multiplier.", low=0)
    baseline_cost: float = setting(0.5, "Baseline cost/multiplier.", low=0)
    discounting: float = setting(0.99, "Discounting factor.", low=0, high=1)
    pixel_control: bool = setting(
        False, "Adds the auxiliary task of pixel control (Pixel-IMPALA).", CHECKPOINT
    )
    pixel_control_cost: float = setting(
        0.01, "Weight of pixel control's loss, a sum over cells.", low=0, needs="pixel_control"
    )
    pixel_control_discount: float = setting(
        0.9, "Discounting factor of pixel control.", low=0, high=1, needs="pixel_control"
    )
    learning_rate: float = setting(..., "Learning rate, at the start.", above=0)
    learning_rate_schedule: str = setting(
        "linear",
        "Anneals the learning rate to 0 over the run, or keeps it as --mode=pbt does by default.",
        choices=("linear", "constant"),
    )
    decay: float = setting(0.99, "RMSProp decay.", low=0, high=1)
    momentum: float = setting(0.0, "RMSProp momentum.", low=0)
    epsilon: float = setting(..., "RMSProp epsilon, inside the root.", above=0)
    max_grad_norm: float = setting(
        ..., "Global norm that gradients are clipped to; 0: never.", low=0
    )
    precision: str = setting(
        "float32",
        "Type of the convolutional part of the network; the rest is float32.",
        choices=("float32", "bfloat16"),
        modes=_RUNS,
        older="float32",
    )
    gpus: int = setting(
        -1,
        "GPUs of the learner: 1 refuses to train without one, 0 leaves it unused; -1: 1 if there "
        "is one. A learner uses no more.",
        PROCESS,
        low=-1,
        high=1,
    )
    xla: bool = setting(False, "XLA compiles the learner's update. For GPUs.", PROCESS)
    population_size: int = setting(
        0, "Number of members.", CHECKPOINT, low=0, modes=("pbt", "test")
    )
    pbt_member: int = setting(
        -1,
        "Number of the member to train or test, from 0. Without it this machine trains all.",
        PROCESS,
        modes=("pbt", "test"),
    )
    pbt_places: int = setting(
        1, "Members that this machine trains at a time.", PROCESS, above=0, modes=("pbt",)
    )
    pbt_episodes: int = setting(
        ...,
        "Episodes of all levels between comparisons; at least one of each level with a score.",
        above=0,
        modes=("pbt",),
    )
    pbt_burn_in_frames: int = setting(
        ..., "Frames of each member before episodes count.", low=0, modes=("pbt",)
    )
    checkpoint_seconds: float = setting(60.0, "Seconds between checkpoints.", PROCESS, above=0)
    log_seconds: float = setting(5.0, "Seconds between lines of metrics.", PROCESS, above=0)
    log_task_gradients: bool = setting(
        False,
        "Logs the norm of each level's gradients; to measure it takes as long as some updates.",
        PROCESS,
    )
    allow_changes: bool = setting(
        False,
        "Lets a run that is resumed go on with other flags that shape learning; config.json keeps "
        "what changed when, and reports name it.",
        PROCESS,
        modes=("train",),  # Members of a population copy one another.
    )
    test_num_episodes: int = setting(..., "Episodes of each level.", TEST, above=0)
    starts: str = setting(
        "noop", "1 to 30 no-ops, or human starts.", TEST, choices=("noop", "human")
    )
    human_starts_dir: str = setting("", "Recorded starts, a file a game, for --starts=human.", TEST)
    record_video: bool = setting(False, "Films the first minute of each level.", TEST)

    @classmethod
    def from_flags(cls, given: Mapping[str, Any]) -> "Config":
        """The configuration that flags ask for; raises UserError if they make no sense together."""
        refuse_meaningless(given)
        return cls.from_settings(given)

    @classmethod
    def from_record(cls, record: Mapping[str, Any], own: Suite | None = None) -> "Config":
        """The configuration of a `record`, perhaps of an older version; see `suites.record`.

        Settings that did not exist when it was made have their defaults, or what these were then.
        """
        flags = dict(record["flags"])
        if flags.get("precision") == "auto":  # An older version chose, and recorded nothing of it.
            del flags["precision"]
        for name in SETTINGS.keys() & flags.keys():
            kind, value = cls.__dataclass_fields__[name].type, flags[name]
            if type(value) is not kind and (kind, type(value)) != (float, int):
                raise ValueError(f"--{name} is {value!r}")
        return cls.from_settings({**OLDER, **flags}, suite_record.recorded(record, own))

    @classmethod
    def from_settings(cls, flags: Mapping[str, Any], suite: Suite | None = None) -> "Config":
        """The configuration of flags that need not all mean something; else as `from_flags`."""
        if not flags.get("level_name"):
            given = f"give a suite ({_SUITES}) or levels of one; --list_levels lists them"
            raise UserError(f"--level_name is missing: {given}")
        if suite is None:
            suite = suites.resolve(flags["level_name"])
        frames, num_tasks = suite.total_frames, len(suite.tasks)
        defaults = {
            "total_environment_frames": frames * num_tasks // len(suite.reference_scores),
            "num_actors": num_tasks * math.ceil(suite.usual_num_actors / num_tasks),
            **suite.defaults,
        }
        if flags.get("mode") == "pbt":  # Tuning takes annealing's place.
            defaults["learning_rate_schedule"] = "constant"
        if unknown := defaults.keys() - SETTINGS.keys():
            told = f"{suite.name} has a default of {', '.join(sorted(unknown))}"
            raise UserError(f"--level_name: the suite {told}, which is no flag")
        own = {"level_name": suite.level_name, "suite": suite}
        if flags.get("use_popart"):  # Its heads are one per task anyhow; older runs recorded both.
            own["multi_head"] = False
        values = {**defaults, **flags, **own}
        fits = min(values["height"], values["width"]) >= config_checks.MIN_UNPADDED
        values.setdefault("padding", "valid" if fits and values["network"] == "shallow" else "same")
        config = cls(**values)
        for name, declared in SETTINGS.items():
            if not declared.allows(value := getattr(config, name)):
                raise UserError(f"--{name} must be {declared.range}, got {value}")
        for problem in config_checks.problems(config, suite):
            raise UserError(problem)
        return config

    @property
    def uses_port(self) -> bool:
        """Tells if actors are processes of their own, which reach the learner by its port."""
        return bool(self.learner_address or self.actor_jobs) or self.job_name == "actor"

    def __reduce__(self) -> tuple[Any, ...]:
        # A suite from outside of the package need not pickle: the other process imports its own.
        return _unpickle, (self.flags,)

    @property
    def flags(self) -> dict[str, Any]:
        """All settings, by name."""
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def record(self) -> dict[str, Any]:
        """The JSON that a file keeps of this configuration, for `from_record`."""
        options = self.environment_options(training=True)
        described = suite_record.describe(self.suite, options)
        return {"flags": self.flags, "tasks": self.suite.tasks, "suite": described}

    def check_playable(self) -> None:
        """Raises UserError if this machine cannot play the tasks as they are configured."""
        self.suite.check(self.environment_options(training=self.mode != "test"))

    @property
    def num_actions(self) -> int:
        return self.suite.action_sets[self.action_set]

    @property
    def num_heads(self) -> int:
        """Value heads: one a task if they are task-specific, else one."""
        return len(self.suite.tasks) if self.multi_head or self.use_popart else 1

    @property
    def agent_name(self) -> str:
        """The agent's name in the paper; where it has none, one formed alike."""
        head = "PopArt-" if self.use_popart else "MultiHead-" if self.multi_head else ""
        return f"{'Pixel-' if self.pixel_control else ''}{head}IMPALA"

    @property
    def experiment(self) -> dict[str, Any]:
        """The flags that shape learning, which two runs of one experiment share, seeds aside.

        Of a population's member, those that all its members share.
        """
        flags = {
            name: getattr(self, name)
            for name, declared in SETTINGS.items()
            if declared.belongs_to in (EXPERIMENT, CHECKPOINT) and name not in self.tuned
            if declared.modes != ("pbt",) or self.population_size
            if not declared.needs or getattr(self, declared.needs)
        }
        # Not where the images lie, but whether there are any for levels that show them.
        return {**flags, "dataset_path": not self.remarks()}

    def remarks(self) -> dict[str, str]:
        """Says, by level in play or its test version, what it lacks with these flags."""
        suite = self.suite
        levels = {*suite.tasks, *map(suite.test_version, suite.tasks)}
        every = suite.remarks(self.environment_options(training=True))
        return {level: text for level, text in every.items() if level in levels}

    @property
    def tuned(self) -> tuple[str, ...]:
        """Flags whose values population-based training tunes; none without a population."""
        return tuple(self.suite.search_space) if self.population_size else ()

    @property
    def shared(self) -> dict[str, Any]:
        """The flags that an actor job and its learner must agree on."""
        return {name: getattr(self, name) for name, each in SETTINGS.items() if each.shared}

    def environment_options(self, training: bool) -> suites.EnvironmentOptions:
        """The environments' behaviour; only in tests do episodes begin at human starts."""
        names = SETTINGS.keys() & {each.name for each in fields(suites.EnvironmentOptions)}
        own = {name: getattr(self, name) for name in names} | {"training": training}
        return suites.EnvironmentOptions(**own | ({"human_starts_dir": ""} if training else {}))

    def with_flags(self, given: Mapping[str, Any]) -> "Config":
        """This configuration with other values of some flags; checked again."""
        suite = None if "level_name" in given else self.suite
        return Config.from_settings({**self.flags, **given}, suite)

    def resuming(self, previous: "Config", given: Mapping[str, Any]) -> "Config":
        """This configuration, with what a run of `previous` keeps unless the flags `given` name it.

        Defaults have changed since older runs were made; they go on as they were.
        """
        return replace(self, **{n: getattr(previous, n) for n in OLDER if n not in given})

    def differences(self, other: "Config") -> list[str]:
        """Names what keeps a run of `other` from being resumed as this one: flags, tasks, actions.

        Value heads and statistics belong to tasks by their position alone, as logits do to actions.
        """

        def fixed(config: Config) -> Iterator[tuple[str, Any]]:
            for name, declared in SETTINGS.items():
                if declared.belongs_to == CHECKPOINT:
                    yield f"--{name}", getattr(config, name)
            if self.level_name == other.level_name:
                yield "the number of actions", config.num_actions
                yield from ((f"task {i}", task) for i, task in enumerate(config.suite.tasks))

        then, now = dict(fixed(other)), dict(fixed(self))
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        return [f"{name} was {then.get(name)} and is {now.get(name)}" for name in names[:_MAX_TOLD]]

    def changes(self, previous: "Config") -> dict[str, tuple[Any, Any]]:
        """The flags that shape learning and are others than `previous` has: then, and now.

        These are the seed and those of `experiment`. Actors and their threads are not, since they
        follow the machine, though the policy's lag and the tasks' shares follow from them.
        """
        then, now = ({"seed": each.seed, **each.experiment} for each in (previous, self))
        return {
            name: (getattr(previous, name), getattr(self, name))
            for name in now
            if then.get(name, now[name]) != now[name]
        }

    def refused_changes(self, previous: "Config") -> list[str]:
        """Names the `changes` that make another run of one that has learned; more frames do not."""
        return [
            f"--{name} was {then} and is {now}"
            for name, (then, now) in self.changes(previous).items()
            if not SETTINGS[name].changes_freely
        ]

    def for_test(self, given: Mapping[str, Any]) -> "Config":
        """The configuration to test this run with the flags given, perhaps on other levels.

        Raises UserError if a policy of this run cannot play under these flags.
        """
        refuse_meaningless({"mode": "test", **given}, self)
        logdir = given.get("logdir", self.logdir)
        if suites.is_outside(self.suite) and "level_name" not in given:
            raise UserError(
                f"{logdir} was trained on {self.level_name}: give --level_name too, since "
                "modules and levels from outside of the package are loaded only if a command names "
                "them"
            )
        suite = suites.resolve(given.get("level_name", self.level_name))
        if suite.name != self.suite.name:
            other = f"{suite.level_name} of {suite.name}"
            raise UserError(
                f"{logdir} was trained on {self.suite.name}; it cannot be tested on {other}"
            )
        # What its tests are to be like is asked each time, and its part in a run of many is over.
        own = {n: v for n, v in self.flags.items() if SETTINGS[n].belongs_to not in (TEST, JOB)}
        asked = {n: v for n, v in given.items() if SETTINGS[n].belongs_to != JOB}
        config = Config.from_settings({**own, **asked, "mode": "test"}, suite)
        # Scores are of raw rewards, whatever the clipping, and may be of other levels.
        played = replace(config, level_name=self.level_name, reward_clipping=self.reward_clipping)
        if config.level_name != self.level_name:
            played = replace(played, suite=suite.select(self.suite.tasks))
        differences = played.differences(self)
        if played.remarks() != self.remarks():
            differences.append(
                f"--dataset_path was {self.dataset_path} and is {played.dataset_path}"
            )
        if differences:
            of_flags = differences[0].startswith("--")
            advice = "leave these flags out" if of_flags else "give the suite its tasks of then"
            raise UserError(f"{logdir} holds another run: {'; '.join(differences)}; {advice}")
        return config


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Settings of a report, which is about runs and is none itself."""

    runs: tuple = setting(
        (),
        "Runs to report on, with commas: run directories, folders of them, or patterns such as "
        "runs/*.",
        REPORT,
    )
    report_dir: str = setting("", "Where to write the report.", REPORT)


# All settings, in the order of their declaration, and those of each record by name.
FIELDS = tuple(f for record in (Config, ReportConfig) for f in fields(record) if f.metadata)
SETTINGS, REPORT_SETTINGS = (
    {each.name: each.metadata["setting"] for each in fields(record) if each.metadata}
    for record in (Config, ReportConfig)
)
# What runs had before these settings or their present defaults existed.
OLDER = {name: each.older for name, each in SETTINGS.items() if each.older is not None}


def _unpickle(flags: dict[str, Any]) -> Config:
    return Config(**flags, suite=suites.resolve(flags["level_name"]))


def refuse_meaningless(given: Mapping[str, Any], trained: Config | None = None) -> None:
    """Raises UserError if a flag given means nothing; `trained` is the run tested, if known.

    Also refuses a --logdir with a character of file patterns.
    """
    mode = given.get("mode", "train")
    evaluates = given.get("job_name") == "evaluator" and mode != "report"
    # An evaluator is given its learner's flags, and a learner and its actors the evaluator's.
    in_many = any(map(given.get, ("learner_address", "actor_jobs", "job_name")))
    modes = _RUNS if evaluates else (mode, "test") if in_many else (mode,)
    own = given if trained is None else {**trained.flags, **given}
    is_known = trained is not None or not (evaluates or mode == "test")
    if found := sorted(_PATTERNS & set(given.get("logdir", ""))):
        raise UserError(
            f"--logdir={given['logdir']} has the character {found[0]}, by which TensorFlow would "
            "take it for a pattern of several paths, and delete checkpoints of them all; give "
            "another"
        )
    if given.get("multi_head") and own.get("use_popart"):
        raise UserError(
            "--multi_head means nothing with --use_popart, which has one value head per level; "
            "leave it out"
        )
    for name in given:
        declared = (SETTINGS | REPORT_SETTINGS)[name]
        if not set(modes) & set(declared.modes):
            meant = "|".join(declared.modes)
            raise UserError(f"--{name} is for --mode={meant}, not --mode={mode}; leave it out")
        if is_known and declared.needs and not own.get(declared.needs):
            raise UserError(f"--{name} means nothing without --{declared.needs}; leave it out")


def describe_default(each: Field) -> str:
    """The default of a field that is a setting, in words; by suite where it depends on that."""
    text = "" if each.default == () else str(each.default)
    if each.default is MISSING:
        by_value: dict[Any, list[str]] = {}
        for suite in suites.ALL:
            config = Config.from_settings({"level_name": suite.name})
            by_value.setdefault(getattr(config, each.name), []).append(suite.name)
        named = [f"{value} in {' and '.join(names)}" for value, names in by_value.items()]
        text = ", ".join(named) if len(named) > 1 else str(*by_value)
    if sampled := [suite.name for suite in suites.ALL if each.name in suite.search_space]:
        where = "" if len(sampled) == len(suites.ALL) else f" in {' and '.join(sampled)}"
        text += f"; with --mode=pbt each member samples its own{where}"
    return text

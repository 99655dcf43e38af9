"""Every setting, declared once, and the frozen record `Config` of all that make a run.

Flags, their ranges and choices, `--help`, docs/configuration.md and every list of settings that
another module needs follow from the declarations.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import Suite


class Part(NamedTuple):
    """What settings may belong to, and the modes that they then mean something to."""

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
# A host's name or IPv4 address, or its IPv6 address in brackets; and a port.
_ADDRESS = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
# A side of the image must have these for pixel control's deconvolutions.
_MIN_PIXELS = 32


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting, beside its name, its type and a constant default."""

    help: str
    belongs_to: Part
    section: str = ""  # Title of the group of settings that begins with this one.
    computed: Callable[[Suite], Any] | None = None  # Its default, if the suite does not name it.
    pbt_default: Any = None  # Its default with --mode=pbt, if that is another.
    choices: tuple[str, ...] = ()
    low: float | None = None  # The smallest number that it may be.
    above: float | None = None  # A number that it must exceed.
    high: float = math.inf
    only_in: tuple[str, ...] = ()  # Modes, if not those of all that belongs there.
    needs: str = ""  # The setting without which it means nothing.
    shared: bool = False  # An actor job must have the learner's value; shapes follow from it.
    changes_freely: bool = False  # A run may be resumed with another value.

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that it means something to."""
        return self.only_in or self.belongs_to.modes

    @property
    def range(self) -> str:
        """The possible values in words; empty if all are possible."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        least = f"above {self.above}" if self.low is None else f"at least {self.low}"
        most = "finite" if self.high == math.inf else f"at most {self.high}"
        return f"{least} and {most}" if self.is_bounded else ""

    @property
    def is_bounded(self) -> bool:
        """Tells whether it is a number with bounds."""
        return self.low is not None or self.above is not None

    def allows(self, value: Any) -> bool:
        """Tells whether a value is one of the choices, or within the bounds."""
        if not self.is_bounded:
            return value in self.choices or not self.choices
        least = value > self.above if self.low is None else value >= self.low
        return least and value <= self.high and value < math.inf


def setting(
    text: str, belongs_to: Part = EXPERIMENT, *, default: Any = MISSING, **declared: Any
) -> Any:
    """Declares a field; without a default here, it has one that depends on the suite."""
    return field(default=default, metadata={"setting": Setting(text, belongs_to, **declared)})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; names and meanings are those of the flags."""

    level_name: str = setting(
        f"A suite ({_SUITES}), or levels of one, such as pong,boxing; MODULE:NAME is a suite or "
        "a level of a Python module.",
        CHECKPOINT,
        section="Run",
        default="",
        only_in=_MODES,
        shared=True,
    )
    mode: str = setting(
        "Train a run or a population, test the run in --logdir, or report on --runs.",
        PROCESS,
        default="train",
        choices=_MODES,
        only_in=_MODES,
    )
    logdir: str = setting(
        "Run directory, or with --mode=pbt the population's. The same command resumes.",
        RUN,
        default="/tmp/agent",
    )
    job_name: str = setting(
        "This process's part in a run of many, which have a --learner_address. An evaluator tests "
        "the run in --logdir again and again while it trains.",
        JOB,
        section="Cluster",
        default="learner",
        choices=("learner", "actor", "evaluator"),
    )
    task: int = setting("Number of the actor job, from 0.", JOB, default=-1, low=-1)
    learner_address: str = setting(
        "HOST:PORT of the learner, for a run of many processes. Whoever can reach the port can "
        "make the learner run anything: close it to all but the run's own machines.",
        JOB,
        default="",
    )
    seed: int = setting("Random seed.", RUN, section="Training", default=1, low=0)
    total_environment_frames: int = setting(
        "Environment frames to train for, of each member if several.",
        computed=lambda suite: suite.total_frames * len(suite.tasks) // len(suite.reference_scores),
        above=0,
        changes_freely=True,
    )
    num_actors: int = setting(
        "Environments, dealt round robin over the levels.",
        PROCESS,
        computed=lambda suite: len(suite.tasks) * -(-suite.usual_num_actors // len(suite.tasks)),
        above=0,
        only_in=_RUNS,
    )
    actor_threads: int = setting(
        "Threads that step actors; 0: one a core, with eight actors or more.",
        PROCESS,
        default=0,
        low=0,
    )
    unroll_length: int = setting("Rollout length in agent steps.", above=0, shared=True)
    batch_size: int = setting("Rollouts per batch.", above=0)
    num_action_repeats: int = setting(
        "Frames per agent step.", CHECKPOINT, section="Environment", above=0, shared=True
    )
    height: int = setting("Height of the observation.", CHECKPOINT, above=0, shared=True)
    width: int = setting("Width of the observation.", CHECKPOINT, above=0, shared=True)
    action_set: str = setting(
        "Set of actions; for DmLab-30 popart or impala.", CHECKPOINT, shared=True
    )
    dataset_path: str = setting(
        "Images for two psychlab levels of DmLab-30, or dummy.", default="", only_in=_RUNS
    )
    level_cache_dir: str = setting(
        "Where to keep compiled DmLab levels.", PROCESS, default="", only_in=_RUNS
    )
    network: str = setting(
        "IMPALA's deep or shallow network.",
        CHECKPOINT,
        section="Agent",
        choices=("deep", "shallow"),
        shared=True,
    )
    use_lstm: bool = setting("Adds an LSTM after the torso.", CHECKPOINT, shared=True)
    multi_head: bool = setting(
        "One value head a level (MultiHead-IMPALA).", CHECKPOINT, default=False
    )
    use_popart: bool = setting(
        "One value head a level, normalised (PopArt-IMPALA).", CHECKPOINT, default=False
    )
    popart_step_size: float = setting(
        "Weight of a rollout in PopArt's statistics.", above=0, high=1, needs="use_popart"
    )
    popart_scale_lower_bound: float = setting(
        "Smallest scale (sigma).", default=1e-4, above=0, needs="use_popart"
    )
    popart_scale_upper_bound: float = setting(
        "Largest scale (sigma).", default=1e6, above=0, needs="use_popart"
    )
    popart_second_moment_of: str = setting(
        "The second moment averages the squares of a rollout's targets, or squares their mean.",
        default="squares",
        choices=("squares", "mean"),
        needs="use_popart",
    )
    popart_order: str = setting(
        "The gradient step or the update of the statistics comes first.",
        default="gradient_first",
        choices=("gradient_first", "statistics_first"),
        needs="use_popart",
    )
    reward_clipping: str = setting(
        "Transformation of rewards for learning. Scores always use raw rewards.",
        CHECKPOINT,
        section="Losses",
        choices=("abs_one", "none", "soft_asymmetric", "oar"),
    )
    entropy_cost: float = setting("Entropy cost/multiplier.", low=0)
    baseline_cost: float = setting("Baseline cost/multiplier.", default=0.5, low=0)
    discounting: float = setting("Discounting factor.", default=0.99, low=0, high=1)
    pixel_control: bool = setting(
        "Adds the auxiliary task of pixel control (Pixel-IMPALA).", CHECKPOINT, default=False
    )
    pixel_control_cost: float = setting(
        "Weight of pixel control's loss, a sum over cells.",
        default=0.01,
        low=0,
        needs="pixel_control",
    )
    pixel_control_discount: float = setting(
        "Discounting factor of pixel control.", default=0.9, low=0, high=1, needs="pixel_control"
    )
    learning_rate: float = setting("Learning rate, at the start.", section="Optimiser", above=0)
    learning_rate_schedule: str = setting(
        "Anneals the learning rate to 0 over the run, or keeps it.",
        default="linear",
        pbt_default="constant",  # Whether a population's is annealed, IMPALA's paper leaves open.
        choices=("linear", "constant"),
    )
    decay: float = setting("RMSProp decay.", default=0.99, low=0, high=1)
    momentum: float = setting("RMSProp momentum.", default=0.0, low=0)
    epsilon: float = setting("RMSProp epsilon, inside the root.", above=0)
    max_grad_norm: float = setting("Global norm that gradients are clipped to; 0: never.", low=0)
    precision: str = setting(
        "Type of the convolutions; all else is float32. auto: bfloat16 where it is measured to be "
        "clearly faster as the run begins; a run that is resumed keeps its type.",
        section="Arithmetic",
        default="auto",
        choices=("float32", "bfloat16", "auto"),
        only_in=_RUNS,
    )
    xla: bool = setting("XLA compiles the learner's update. For GPUs.", PROCESS, default=False)
    population_size: int = setting(
        "Number of members.",
        CHECKPOINT,
        section="Population",
        default=0,
        low=0,
        only_in=("pbt", "test"),
    )
    pbt_member: int = setting(
        "Number of the one member to train or test, from 0. Without it this machine trains all.",
        PROCESS,
        default=-1,
        only_in=("pbt", "test"),
    )
    pbt_places: int = setting(
        "Members that this machine trains at a time.", PROCESS, default=1, above=0, only_in=("pbt",)
    )
    pbt_episodes: int = setting(
        "Episodes from one comparison with another member to the next, of all levels together; "
        "one at least of each level that has a score.",
        above=0,
        only_in=("pbt",),
    )
    pbt_burn_in_frames: int = setting(
        "Frames of each member before episodes count.", low=0, only_in=("pbt",)
    )
    checkpoint_seconds: float = setting(
        "Seconds between checkpoints.", PROCESS, section="Records", default=60.0, above=0
    )
    log_seconds: float = setting("Seconds between lines of metrics.", PROCESS, default=5.0, above=0)
    log_task_gradients: bool = setting(
        "Adds the size of each level's gradients, of the policy's loss and of the total; measuring "
        "that once takes as long as some updates.",
        PROCESS,
        default=False,
    )
    allow_changes: bool = setting(
        "Lets a run that is resumed go on with other flags that shape learning; config.json keeps "
        "what changed when, and reports name it.",
        PROCESS,
        default=False,
        only_in=("train",),  # Members of a population copy one another.
    )
    test_num_episodes: int = setting("Episodes of each level.", TEST, section="Test", above=0)
    starts: str = setting(
        "Up to 30 no-ops, or human starts.", TEST, default="noop", choices=("noop", "human")
    )
    human_starts_dir: str = setting(
        "Recorded starts, a file a game, for --starts=human.", TEST, default=""
    )
    record_video: bool = setting("Films the first minute of each level.", TEST, default=False)

    @classmethod
    def from_flags(cls, given: Mapping[str, Any]) -> "Config":
        """The configuration that a user asks for; see also `check_playable`.

        Args:
          given: the flags that were set; a flag that is absent takes its default.

        Raises:
          UserError: if a value is impossible, two contradict each other, or a flag means nothing.
        """
        refuse_meaningless(given)
        return cls.from_record(given)

    @classmethod
    def from_record(cls, flags: Mapping[str, Any]) -> "Config":
        """The configuration of flags that need not all mean something; else as `from_flags`."""
        if not flags.get("level_name"):
            raise UserError(f"--level_name is missing: give a suite ({_SUITES}) or levels of one")
        suite = suites.resolve(flags["level_name"])
        defaults = {name: s.computed(suite) for name, s in SETTINGS.items() if s.computed}
        if flags.get("mode") == "pbt":
            defaults |= {name: s.pbt_default for name, s in SETTINGS.items() if s.pbt_default}
        config = cls(**{**suite.defaults, **defaults, **flags, "level_name": suite.level_name})
        for name, declared in SETTINGS.items():
            if not declared.allows(value := getattr(config, name)):
                raise UserError(f"--{name} must be {declared.range}, got {value}")
        for problem in config._problems(suite):
            raise UserError(problem)
        return config

    def _problems(self, suite: Suite) -> Iterator[str]:
        """Yields what is wrong with flags that contradict each other or the suite."""
        lower, upper = self.popart_scale_lower_bound, self.popart_scale_upper_bound
        if lower > upper:
            yield f"--popart_scale_lower_bound={lower} is above --popart_scale_upper_bound={upper}"
        if self.action_set not in suite.action_sets:
            names = ", ".join(suite.action_sets)
            yield f"--action_set must be one of {names} in {suite.name}, got {self.action_set}"
        if self.starts == "human" and not suite.human_starts_scores:
            yield f"--starts=human: {suite.name} has no human starts; leave it out"
        if (self.starts == "human") != bool(self.human_starts_dir):
            yield "--starts=human and --human_starts_dir, of tools/record_starts.py, go together"
        for name in sorted({name for each in suites.ALL for name in each.own_flags}):
            if getattr(self, name) and name not in suite.own_flags:
                yield f"--{name} means nothing to {suite.name}; leave it out"
        for name in () if suite.scalable else ("height", "width", "num_action_repeats"):
            if (value := getattr(self, name)) != suite.defaults[name]:
                yield f"--{name} is always {suite.defaults[name]} in {suite.name}, got {value}"
        if self.pixel_control and min(self.height, self.width) < _MIN_PIXELS:
            advice = "give more" if suite.scalable else f"leave it out in {suite.name}"
            sides = f"{_MIN_PIXELS}x{_MIN_PIXELS} or more, got {self.height}x{self.width}"
            yield f"--pixel_control needs images of {sides} pixels; {advice}"
        alone = self.mode != "test" and not self.learner_address
        if alone and self.num_actors < len(suite.tasks):
            yield (
                f"--num_actors={self.num_actors} cannot play the {len(suite.tasks)} tasks of "
                f"--level_name={self.level_name}: give at least one actor a task"
            )
        if self.actor_threads > self.num_actors:
            yield f"--actor_threads={self.actor_threads} is above --num_actors={self.num_actors}"
        port = _ADDRESS.fullmatch(self.learner_address)
        if self.learner_address and not (port and 0 < int(port[2]) < 2**16):
            yield f"--learner_address={self.learner_address} must be HOST:PORT as actors see it"
        if self.job_name == "actor" and not self.learner_address:
            yield "--job_name=actor needs --learner_address=HOST:PORT, where its learner is"
        if self.job_name == "actor" and self.task < 0:
            yield "--job_name=actor needs --task, the job's number: 0 for the first, then 1, ..."
        if self.job_name != "actor" and self.task > 0:
            yield f"--task={self.task} is for --job_name=actor; leave it out"
        if self.mode == "pbt":
            yield from self._problems_of_population(suite)

    def _problems_of_population(self, suite: Suite) -> Iterator[str]:
        size, member = self.population_size, self.pbt_member
        if size < 2:
            yield f"--mode=pbt needs --population_size, 2 or more (the paper: 24 or 8), got {size}"
        if not -1 <= member < size:
            yield f"--pbt_member={member} must lie in [0, {size - 1}]; without it all are trained"
        if member < 0 and self.learner_address:
            yield "--learner_address is that of one member: give --pbt_member too"
        if member >= 0 and self.pbt_places > 1:
            yield "--pbt_places is for members that share a machine; with --pbt_member leave it out"
        for name in suite.search_space:
            if getattr(self, name) == 0:  # Which no factor changes.
                yield f"--{name}=0 cannot be tuned; give a value above 0, or leave it out"
        if not suite.normalised or not set(suite.tasks) & set(suite.reference_scores):
            yield (
                f"--mode=pbt compares human-normalised scores; {self.level_name} has none: "
                + (f"add a level of {suite.name}" if suite.normalised else "give the suite some")
            )

    @property
    def suite(self) -> Suite:
        """The tasks in play."""
        return suites.resolve(self.level_name)

    def check_playable(self) -> None:
        """Raises UserError if this machine cannot play the tasks as they are configured."""
        self.suite.check(self.environment_options(training=self.mode != "test"))

    @property
    def num_actions(self) -> int:
        """Size of the action set."""
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
        }
        return {**flags, "dataset_path": self.dataset_path == "dummy"}

    @property
    def tuned(self) -> tuple[str, ...]:
        """Flags whose values population-based training tunes; none without a population."""
        return tuple(self.suite.search_space) if self.population_size else ()

    @property
    def shared(self) -> dict[str, Any]:
        """The flags that an actor job and its learner must agree on."""
        return {name: getattr(self, name) for name, s in SETTINGS.items() if s.shared}

    def environment_options(self, training: bool) -> suites.EnvironmentOptions:
        """The environments' behaviour; only in tests do episodes begin at human starts."""
        names = SETTINGS.keys() & {each.name for each in fields(suites.EnvironmentOptions)}
        own = {name: getattr(self, name) for name in names}
        starts_dir = "" if training else self.human_starts_dir
        return suites.EnvironmentOptions(
            **{**own, "human_starts_dir": starts_dir}, training=training
        )

    def with_flags(self, given: Mapping[str, Any]) -> "Config":
        """This configuration with the given flags in place of its own; checked again."""
        return Config.from_record({**asdict(self), **given})

    def differences(self, other: "Config") -> list[str]:
        """Says what keeps a run of `other` from being continued as this one, flag by flag."""
        return [
            f"--{name} was {getattr(other, name)} and is {getattr(self, name)}"
            for name, declared in SETTINGS.items()
            if declared.belongs_to == CHECKPOINT and getattr(self, name) != getattr(other, name)
        ]

    def changes(self, previous: "Config") -> dict[str, tuple[Any, Any]]:
        """The flags that shape learning and are others than `previous` has: then, and now.

        These are the seed and those of `experiment`. Actors and their threads are none, since
        they follow the machine: they shape how far the policy lags behind and, where tasks have
        different numbers of actors, the tasks' shares. `--precision=auto` is whatever type it
        turns out to be, so that it is no other than any.
        """
        then, now = ({"seed": each.seed, **each.experiment} for each in (previous, self))
        if "auto" in (then["precision"], now["precision"]):
            now["precision"] = then["precision"]
        return {
            name: (getattr(previous, name), getattr(self, name))
            for name in now
            if name in then and now[name] != then[name]
        }

    def refused_changes(self, previous: "Config") -> list[str]:
        """Names the `changes` that make another run of one that has learned, flag by flag.

        A run may be made longer at any time; where the learning rate is annealed, that is to the
        new end from then on, and the record tells.
        """
        return [
            f"--{name} was {then} and is {now}"
            for name, (then, now) in self.changes(previous).items()
            if not SETTINGS[name].changes_freely
        ]

    def for_test(self, given: Mapping[str, Any]) -> "Config":
        """The configuration to test this run with, other levels of its suite perhaps.

        Args:
          given: the flags that a user has set for the test.

        Raises:
          UserError: if a policy of this run cannot play under the given flags.
        """
        refuse_meaningless({"mode": "test", **given}, self)
        suite = suites.resolve(given.get("level_name", self.level_name))
        if suite.name != self.suite.name:
            raise UserError(
                f"the run in {self.logdir} was trained on {self.suite.name}; it cannot be "
                f"tested on {suite.level_name} of {suite.name}"
            )
        # What its tests are to be like is asked each time, and its part in a run of many is over.
        own = {n: v for n, v in asdict(self).items() if SETTINGS[n].belongs_to not in (TEST, JOB)}
        asked = {n: v for n, v in given.items() if SETTINGS[n].belongs_to != JOB}
        if asked.get("precision") == "auto":
            del asked["precision"]  # That of the run.
        config = Config.from_record({**own, **asked, "mode": "test"})
        # Scores are of raw rewards, whatever the clipping.
        played = replace(config, level_name=self.level_name, reward_clipping=self.reward_clipping)
        if differences := played.differences(self):
            raise UserError(
                f"{self.logdir} holds another run: {'; '.join(differences)}; leave these flags out"
            )
        return config


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Settings of a report, which is about runs and is none itself."""

    runs: tuple = setting(
        "Run directories to report on, with commas.", REPORT, section="Report", default=()
    )
    report_dir: str = setting("Where to write the report.", REPORT, default="")
    ignore_flags: tuple = setting(
        "Flags, such as precision, by which runs are not told apart as agents.", REPORT, default=()
    )


def _declared(cls: type) -> dict[str, Setting]:
    return {each.name: each.metadata["setting"] for each in fields(cls)}


# By name, in the order of their declaration.
SETTINGS = _declared(Config)
REPORT_SETTINGS = _declared(ReportConfig)


def refuse_meaningless(given: Mapping[str, Any], trained: Config | None = None) -> None:
    """Raises UserError if a flag means nothing in the mode, or without another flag.

    Args:
      given: the flags that a user has set now, as opposed to those of a record.
      trained: the configuration of the run to be tested; None if it is not known yet.
    """
    mode, evaluates = given.get("mode", "train"), given.get("job_name") == "evaluator"
    modes: tuple[str, ...] = (mode,)
    if evaluates:
        modes = _RUNS  # It is given the flags of its learner,
    elif given.get("learner_address"):
        modes = (mode, "test")  # and the learner and its actors those of their evaluator.
    own = given if trained is None else {**asdict(trained), **given}
    is_known = trained is not None or not (evaluates or mode == "test")
    for name in given:
        declared = (SETTINGS | REPORT_SETTINGS)[name]
        if not set(modes) & set(declared.modes):
            meant = "|".join(declared.modes)
            raise UserError(f"--{name} is for --mode={meant}, not --mode={mode}; leave it out")
        if is_known and declared.needs and not own.get(declared.needs):
            raise UserError(f"--{name} means nothing without --{declared.needs}; leave it out")


@functools.cache
def _defaults_by_suite() -> dict[str, Config]:
    return {suite.name: Config.from_record({"level_name": suite.name}) for suite in suites.ALL}


def describe_default(each: Field) -> str:
    """The default of a field that is a setting, in words; by suite where it depends on that."""
    declared = each.metadata["setting"]
    text = "" if each.default == () else str(each.default)
    if each.default is MISSING:
        by_value: dict[Any, list[str]] = {}
        for suite, config in _defaults_by_suite().items():
            by_value.setdefault(getattr(config, each.name), []).append(suite)
        named = [f"{value} in {' and '.join(names)}" for value, names in by_value.items()]
        text = ", ".join(named) if len(named) > 1 else str(*by_value)
    if declared.pbt_default:
        text += f", with --mode=pbt {declared.pbt_default}"
    if sampled := [suite.name for suite in suites.ALL if each.name in suite.search_space]:
        where = "" if len(sampled) == len(suites.ALL) else f" in {' and '.join(sampled)}"
        text += f"; with --mode=pbt each member samples its own{where}"
    return text

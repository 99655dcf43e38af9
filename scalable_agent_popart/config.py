"""One frozen record of everything a run was asked to do."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError

# Choices of the enumerated flags.
MODES = ("train", "test")
STARTS = ("noop", "human")
JOB_NAMES = ("learner", "actor", "evaluator")
NETWORKS = ("deep", "shallow")
REWARD_CLIPPINGS = ("abs_one", "none", "soft_asymmetric", "oar")
POPART_ORDERS = ("gradient_first", "statistics_first")
SECOND_MOMENTS = ("squares", "mean")
PRECISIONS = ("float32", "bfloat16", "auto")

# What is asked of a test; a run's own are those it would be tested with at its start.
_OF_TEST = ("mode", "test_num_episodes", "starts", "human_starts_dir", "record_video")
# A process's part in a run of many; a test, or an evaluator's, is the same without it.
_OF_JOB = ("job_name", "task", "learner_address")
# Of a host: a name or an IPv4 address, or an IPv6 address in brackets.
_ADDRESS = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")

# A side of the image must have these for pixel control's deconvolutions.
_LEAST_PIXELS = 32

# What makes a run no other experiment: where, how fast, how often. All else does.
_OF_OCCASION = (
    *_OF_TEST,
    "logdir",
    *_OF_JOB,
    "num_actors",
    "actor_threads",
    "level_cache_dir",
    "xla",
    "checkpoint_seconds",
    "log_seconds",
)

# What a run directory's checkpoints and statistics are bound to.
_FIXED_BY_RUN = (
    "level_name",
    "network",
    "use_lstm",
    "use_popart",
    "multi_head",
    "pixel_control",
    "height",
    "width",
    "num_action_repeats",
    "reward_clipping",
    "action_set",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; names and meanings are those of the flags.

    Fields without a default here have one that depends on the suite.
    """

    level_name: str
    mode: str = "train"
    logdir: str = "/tmp/agent"
    # Cluster.
    job_name: str = "learner"
    task: int = -1
    learner_address: str = ""
    seed: int = 1
    total_environment_frames: int
    # Actors.
    num_actors: int
    actor_threads: int = 2
    unroll_length: int
    batch_size: int
    # Environment.
    num_action_repeats: int
    height: int
    width: int
    action_set: str
    dataset_path: str = ""
    level_cache_dir: str = ""
    # Agent.
    network: str
    use_lstm: bool
    multi_head: bool = False
    use_popart: bool = False
    popart_step_size: float
    popart_scale_lower_bound: float = 1e-4
    popart_scale_upper_bound: float = 1e6
    popart_second_moment_of: str = "squares"
    popart_order: str = "gradient_first"
    # Losses.
    reward_clipping: str
    entropy_cost: float
    baseline_cost: float = 0.5
    discounting: float = 0.99
    # Pixel control.
    pixel_control: bool = False
    pixel_control_cost: float = 0.01
    pixel_control_discount: float = 0.9
    # Optimiser.
    learning_rate: float
    decay: float = 0.99
    momentum: float = 0.0
    epsilon: float
    max_grad_norm: float
    # Arithmetic.
    precision: str = "auto"
    xla: bool = False
    # Run directory.
    checkpoint_seconds: float = 60.0
    log_seconds: float = 5.0
    # Test.
    test_num_episodes: int
    starts: str = "noop"
    human_starts_dir: str = ""
    record_video: bool = False

    @classmethod
    def from_flags(cls, given: Mapping[str, Any]) -> "Config":
        """A complete configuration whose values are possible; see also `check_playable`.

        Args:
          given: the flags that were set; a flag that is absent takes the suite's default.

        Raises:
          UserError: if a value is impossible, or two contradict each other.
        """
        if not given.get("level_name"):
            names = ", ".join(suite.name for suite in suites.ALL)
            raise UserError(
                f"--level_name is missing: give a suite ({names}), a level or a list of levels"
            )
        suite = suites.resolve(given["level_name"])
        num_tasks = len(suite.tasks)
        defaults = {
            **suite.defaults,
            "total_environment_frames": suite.total_frames
            * num_tasks
            // len(suite.reference_scores),
            "num_actors": num_tasks * -(-suite.usual_num_actors // num_tasks),
        }
        config = cls(**{**defaults, **given, "level_name": suite.level_name})
        config._validate(suite)
        return config

    @property
    def suite(self) -> suites.Suite:
        """The tasks in play."""
        return suites.resolve(self.level_name)

    def check_playable(self) -> None:
        """Raises UserError if this machine cannot play the tasks as they are configured."""
        self.suite.check(self.environment_options(training=self.mode == "train"))

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
        if self.use_popart:
            name = "PopArt-IMPALA"
        else:
            name = "MultiHead-IMPALA" if self.multi_head else "IMPALA"
        return f"Pixel-{name}" if self.pixel_control else name

    @property
    def experiment(self) -> dict[str, Any]:
        """What two runs of one experiment share, seeds aside: the flags that shape learning."""
        flags = {**dataclasses.asdict(self), "dataset_path": self.dataset_path == "dummy"}
        return {name: v for name, v in flags.items() if name not in (*_OF_OCCASION, "seed")}

    def environment_options(self, training: bool) -> suites.EnvironmentOptions:
        """How the environments are to behave."""
        return suites.EnvironmentOptions(
            self.num_action_repeats,
            self.height,
            self.width,
            self.action_set,
            training,
            self.dataset_path,
            self.level_cache_dir,
            self.human_starts_dir,
        )

    def with_flags(self, given: Mapping[str, Any]) -> "Config":
        """This configuration with the given flags in place of its own; checked again."""
        return Config.from_flags({**dataclasses.asdict(self), **given})

    def differences(self, other: "Config") -> list[str]:
        """What keeps a run of `other` from being continued as this one, flag by flag."""
        return [
            f"--{name} was {getattr(other, name)} and is {getattr(self, name)}"
            for name in _FIXED_BY_RUN
            if getattr(self, name) != getattr(other, name)
        ]

    def for_test(self, given: Mapping[str, Any]) -> "Config":
        """The configuration to test this run with, other levels of its suite perhaps.

        Raises:
          UserError: if a policy of this run cannot play under the given flags.
        """
        suite = suites.resolve(given.get("level_name", self.level_name))
        if suite.name != self.suite.name:
            raise UserError(
                f"the run in {self.logdir} was trained on {self.suite.name}; it cannot be "
                f"tested on {suite.level_name} of {suite.name}"
            )
        own = {name: v for name, v in dataclasses.asdict(self).items() if name not in _OF_TEST}
        asked = {**own, **given}
        config = Config.from_flags({name: v for name, v in asked.items() if name not in _OF_JOB})
        # Scores are of raw rewards, whatever the clipping.
        played = replace(config, level_name=self.level_name, reward_clipping=self.reward_clipping)
        differences = played.differences(self)
        if differences:
            raise UserError(
                f"{self.logdir} holds another run: {'; '.join(differences)}; leave these flags out"
            )
        return config

    def _validate(self, suite: suites.Suite) -> None:
        for name, choices in (
            ("mode", MODES),
            ("network", NETWORKS),
            ("reward_clipping", REWARD_CLIPPINGS),
            ("popart_order", POPART_ORDERS),
            ("popart_second_moment_of", SECOND_MOMENTS),
            ("precision", PRECISIONS),
            ("starts", STARTS),
            ("job_name", JOB_NAMES),
        ):
            if getattr(self, name) not in choices:
                raise UserError(f"--{name} must be one of {', '.join(choices)}")
        for name in (
            "total_environment_frames",
            "test_num_episodes",
            "num_actors",
            "actor_threads",
            "unroll_length",
            "batch_size",
            "num_action_repeats",
            "height",
            "width",
            "learning_rate",
            "epsilon",
            "checkpoint_seconds",
            "log_seconds",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"--{name} must be above 0 and finite, got {getattr(self, name)}")
        for name in (
            "entropy_cost",
            "baseline_cost",
            "pixel_control_cost",
            "max_grad_norm",
            "momentum",
            "seed",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(
                    f"--{name} must be 0 or above and finite, got {getattr(self, name)}"
                )
        for name in ("discounting", "pixel_control_discount", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"--{name} must lie in [0, 1], got {getattr(self, name)}")
        self._validate_popart()
        self._validate_suite(suite)

    def _validate_popart(self) -> None:
        if not 0 < self.popart_step_size <= 1:
            raise UserError(f"--popart_step_size must lie in (0, 1], got {self.popart_step_size}")
        lower, upper = self.popart_scale_lower_bound, self.popart_scale_upper_bound
        if not 0 < lower <= upper < math.inf:
            raise UserError(
                "--popart_scale_lower_bound and --popart_scale_upper_bound must satisfy "
                f"0 < lower <= upper and be finite, got {lower} and {upper}"
            )

    def _validate_test(self, suite: suites.Suite) -> None:
        if self.starts == "human" and not suite.human_starts_scores:
            raise UserError(f"--starts=human: {suite.name} has no human starts; leave it out")
        if (self.starts == "human") != bool(self.human_starts_dir):
            raise UserError(
                "--starts=human and --human_starts_dir go together: the directory holds the "
                "recorded starts, one file a game; tools/record_starts.py makes them"
            )
        for name, off in (("starts", "noop"), ("record_video", False)):
            if self.mode == "train" and getattr(self, name) != off:
                raise UserError(f"--{name} is for --mode=test; leave it out")

    def _validate_job(self) -> None:
        job = f"--job_name={self.job_name}"
        if self.learner_address:
            parts = _ADDRESS.fullmatch(self.learner_address)
            if parts is None or not 0 < int(parts[2]) < 2**16:
                raise UserError(
                    f"--learner_address={self.learner_address} must be HOST:PORT, the learner's "
                    "host as actors see it and a port that is free there"
                )
            if self.mode != "train":
                raise UserError("--learner_address is for training; leave it out")
        if self.job_name == "actor":
            if not self.learner_address:
                raise UserError(f"{job} needs --learner_address=HOST:PORT, where its learner is")
            if self.task < 0:
                raise UserError(
                    f"{job} needs --task, the job's number: 0 for the first actor job, 1 for the "
                    f"next, and so on; got {self.task}"
                )
        elif self.task not in (-1, 0):
            raise UserError(f"--task={self.task} is for --job_name=actor; leave it out")

    def _validate_suite(self, suite: suites.Suite) -> None:
        if self.action_set not in suite.action_sets:
            raise UserError(
                f"--action_set must be one of {', '.join(suite.action_sets)} in {suite.name}, "
                f"got {self.action_set}"
            )
        for name in ("dataset_path", "level_cache_dir", "human_starts_dir"):
            if getattr(self, name) and name not in suite.own_flags:
                raise UserError(f"--{name} means nothing to {suite.name}; leave it out")
        self._validate_test(suite)
        self._validate_job()
        alone = self.mode == "train" and not self.learner_address
        if alone and self.num_actors < len(suite.tasks):
            raise UserError(
                f"--num_actors={self.num_actors} cannot play the {len(suite.tasks)} tasks of "
                f"--level_name={self.level_name}: give at least one actor a task"
            )
        if self.actor_threads > self.num_actors:
            raise UserError(
                f"--actor_threads={self.actor_threads} is more than --num_actors="
                f"{self.num_actors}: a thread needs at least one actor"
            )
        if self.pixel_control and min(self.height, self.width) < _LEAST_PIXELS:
            raise UserError(
                f"--pixel_control needs images of at least {_LEAST_PIXELS}x{_LEAST_PIXELS} "
                f"pixels; in {suite.name} they are {self.height}x{self.width}: "
                + ("give more" if suite.scalable else "leave it out")
            )
        for name in () if suite.scalable else ("height", "width", "num_action_repeats"):
            if getattr(self, name) != suite.defaults[name]:
                raise UserError(
                    f"--{name} is always {suite.defaults[name]} in {suite.name}, "
                    f"got {getattr(self, name)}"
                )


def flag_default(name: str) -> Any:
    """The default of a flag, or None where it depends on the suite."""
    field = Config.__dataclass_fields__[name]
    return None if field.default is dataclasses.MISSING else field.default

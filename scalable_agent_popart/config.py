"""One frozen record of everything a run was asked to do."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalable_agent_popart import config_checks, suites
from scalable_agent_popart.errors import UserError

# What is asked of a test; a run's own are those it would be tested with at its start.
_OF_TEST = ("mode", "test_num_episodes", "starts", "human_starts_dir", "record_video")
# A process's part in a run of many; a test, or an evaluator's, is the same without it.
_OF_JOB = ("job_name", "task", "learner_address")
# A process's part in a population.
_OF_MEMBER = ("pbt_member", "pbt_places")

# What makes a run no other experiment: where, how fast, how often. All else does.
_OF_OCCASION = (
    *_OF_TEST,
    "logdir",
    *_OF_JOB,
    *_OF_MEMBER,
    "num_actors",
    "actor_threads",
    "level_cache_dir",
    "xla",
    "checkpoint_seconds",
    "log_seconds",
    "log_task_gradients",
    "allow_changes",
)

# What a run directory's checkpoints and statistics are bound to.
_FIXED_BY_RUN = (
    "level_name",
    "network",
    "use_lstm",
    "use_popart",
    "multi_head",
    "pixel_control",
    "population_size",
    "height",
    "width",
    "num_action_repeats",
    "reward_clipping",
    "action_set",
)

# What changes nothing of what was learned. A run may be made longer at any time; where the learning
# rate is annealed, that is to the new end from then on, and the record tells.
_CHANGES_FREELY = ("total_environment_frames",)


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
    actor_threads: int = 0  # 0: as many as suit the machine
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
    learning_rate_schedule: str
    decay: float = 0.99
    momentum: float = 0.0
    epsilon: float
    max_grad_norm: float
    # Arithmetic.
    precision: str = "auto"
    xla: bool = False
    # Population.
    population_size: int = 0
    pbt_member: int = -1
    pbt_places: int = 1
    pbt_episodes: int
    pbt_burn_in_frames: int
    # Run directory.
    checkpoint_seconds: float = 60.0
    log_seconds: float = 5.0
    log_task_gradients: bool = False
    allow_changes: bool = False
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
            # Beside population-based training, IMPALA's paper leaves open whether it is annealed.
            "learning_rate_schedule": "constant" if given.get("mode") == "pbt" else "linear",
        }
        config = cls(**{**defaults, **given, "level_name": suite.level_name})
        config_checks.check(config, suite)
        return config

    @property
    def suite(self) -> suites.Suite:
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
        if self.use_popart:
            name = "PopArt-IMPALA"
        else:
            name = "MultiHead-IMPALA" if self.multi_head else "IMPALA"
        return f"Pixel-{name}" if self.pixel_control else name

    @property
    def experiment(self) -> dict[str, Any]:
        """What two runs of one experiment share, seeds aside: the flags that shape learning.

        Of a population's member, those that all its members share.
        """
        flags = {**dataclasses.asdict(self), "dataset_path": self.dataset_path == "dummy"}
        own = (*_OF_OCCASION, "seed", *self.tuned)
        if not self.population_size:
            own = (*own, "pbt_episodes", "pbt_burn_in_frames")
        return {name: v for name, v in flags.items() if name not in own}

    @property
    def tuned(self) -> tuple[str, ...]:
        """Flags whose values population-based training tunes; none without a population."""
        return tuple(self.suite.search_space) if self.population_size else ()

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
        """Names the `changes` that make another run of one that has learned, flag by flag."""
        return [
            f"--{name} was {then} and is {now}"
            for name, (then, now) in self.changes(previous).items()
            if name not in _CHANGES_FREELY
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
        if asked["precision"] == "auto":
            asked["precision"] = self.precision  # That of the run.
        config = Config.from_flags({name: v for name, v in asked.items() if name not in _OF_JOB})
        # Scores are of raw rewards, whatever the clipping.
        played = replace(config, level_name=self.level_name, reward_clipping=self.reward_clipping)
        differences = played.differences(self)
        if differences:
            raise UserError(
                f"{self.logdir} holds another run: {'; '.join(differences)}; leave these flags out"
            )
        return config


def flag_default(name: str) -> Any:
    """The default of a flag, or None where it depends on the suite."""
    field = Config.__dataclass_fields__[name]
    return None if field.default is dataclasses.MISSING else field.default

"""Every setting, declared once.

Flags, their ranges and choices, `--help`, docs/configuration.md and `config.Config` follow from the
declarations.
"""

import enum
import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple


class Bounds(NamedTuple):
    """The finite numbers from `low`, or greater than `above`, up to `high`."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high and self.above < value < math.inf

    def __str__(self) -> str:
        least = f"at least {self.low}" if self.above == -math.inf else f"above {self.above}"
        return f"{least} and {'finite' if self.high == math.inf else f'at most {self.high}'}"


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting, next to its name, its type and a constant default."""

    help: str
    part: "Part"
    allowed: Bounds | tuple[str, ...] | None = None  # Numbers or choices; None is for any value.

    @property
    def choices(self) -> tuple[str, ...]:
        """The possible values if these are words, and otherwise none."""
        return () if isinstance(self.allowed, Bounds) else self.allowed or ()

    @property
    def range(self) -> str:
        """The possible values in words, empty if all are possible."""
        return f"one of {', '.join(self.choices)}" if self.choices else str(self.allowed or "")


class Use(enum.Flag):
    """The uses of a trained run. For each of them some settings must have the run's values.

    A `Part` names the uses that its settings matter for, and `Config.differences` compares two
    configurations for a use.
    """

    RESUME = enum.auto()  # It is trained further.
    RESUME_UNASKED = enum.auto()  # It is trained further without --allow_changes.
    HISTORY = enum.auto()  # Its record names what it was trained with, and when this changed.
    TEST = enum.auto()
    TORSO = enum.auto()  # Another run starts with its torso; see --init_from.
    POLICY = enum.auto()  # Another run starts with its policy as well.
    VALUES = enum.auto()  # Another run starts with its values as well.
    ROLLOUTS = enum.auto()  # Actor jobs make rollouts for its learner.


class Part(NamedTuple):
    """A part of the program that settings belong to, and when they mean something."""

    name: str
    modes: tuple[str, ...]
    needs: str = ""  # Without this setting they mean nothing.
    same_for: Use = Use(0)  # The uses of a run for which they must stay the same.

    def during(self, *modes: str) -> "Part":
        """Returns this part for a setting that means something in other modes."""
        return self._replace(modes=modes)

    def also(self, *modes: str) -> "Part":
        """Returns this part for a setting that means something in further modes."""
        return self._replace(modes=(*self.modes, *modes))

    def within(self, needs: str) -> "Part":
        """Returns this part for settings that mean nothing without another setting."""
        return self._replace(needs=needs)

    def same(self, uses: Use) -> "Part":
        """Returns this part for settings that must stay the same for more uses of a run."""
        return self._replace(same_for=self.same_for | uses)

    def free(self, uses: Use) -> "Part":
        """Returns this part for settings that may change in spite of these uses of a run."""
        return self._replace(same_for=self.same_for & ~uses)

    def setting(self, default: Any, text: str, allowed: Any = None) -> Any:
        """Declares a field with a default, which is `...` if it depends on the suite."""
        made = {"setting": Setting(text, self, allowed)}
        return field(default=MISSING if default is ... else default, metadata=made)


POSITIVE, SHARE = Bounds(above=0), Bounds(0, 1)
# Arrays, queues and loops have these sizes, and a larger one is a slip such as 32M for 32.
SIZE = Bounds(1, 10**6)
SIZE_OR_NONE = Bounds(0, 10**6)
RUNS = ("train", "pbt", "test")
EVALUATED = RUNS  # An evaluator may work next to runs of these modes.
_MODES = (*RUNS, "report")
# The same in runs with other seeds; a run that changes it becomes another experiment.
EXPERIMENT = Part("experiment", ("train", "pbt")).same(Use.HISTORY | Use.RESUME_UNASKED)
# It belongs to the experiment, and a run never changes it.
CHECKPOINT = Part("checkpoint", RUNS).same(Use.HISTORY | Use.RESUME | Use.TEST)
# A test may play others, and all jobs of a run must agree on their order.
LEVELS = CHECKPOINT.also("report").same(Use.ROLLOUTS).free(Use.TEST)
# A test must show the agent the images that it knows.
IMAGES = EXPERIMENT.also("test").same(Use.TEST)
# The torso has these, so a run with others cannot start with its weights.
NETWORK = CHECKPOINT.same(Use.TORSO | Use.ROLLOUTS)
VALUES = CHECKPOINT.same(Use.VALUES)  # What the heads and their statistics have learned.
POPART = EXPERIMENT.within("use_popart").same(Use.VALUES)
PIXEL_CONTROL = EXPERIMENT.within("pixel_control")
RUN = Part("run", RUNS)
PROCESS = Part("process", ("train", "pbt"))
PLAY = PROCESS.also("test")  # Tests play as well.
MEMBER = PROCESS.during("pbt", "test").same(Use.ROLLOUTS)
JOB = Part("job", ("train", "pbt"))  # What this process is in a run of many.
TEST = Part("test", ("test",))
REPORT = Part("report", ("report",))
# Runs had these values before the settings or their present defaults existed. A run that is resumed
# keeps the value of its record unless the command names another. A new setting needs no entry if
# its default is what runs did before.
OLDER = {
    "padding": "same",
    "popart_step_size": 3e-4,
    "popart_start": "fixed",
    "precision": "float32",
}
# Older versions had these flags. This version does what these values asked for.
RETIRED = {"popart_order": "gradient_first"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a run; names and meanings are those of the flags."""

    level_name: str = LEVELS.setting(
        "",
        "A suite such as atari57 or dmlab30, or levels of one, such as pong,boxing; MODULE:NAME is "
        "a suite or a level of a Python module. --list_levels names all suites.",
    )
    mode: str = PROCESS.during(*_MODES).setting(
        "train",
        "Train a run or a population, test the run in --logdir, or report on --runs.",
        _MODES,
    )
    logdir: str = RUN.setting(
        "/tmp/agent", "Directory of the run or the population. The same command resumes."
    )
    job_name: str = JOB.setting(
        "learner",
        "What this process is in a run of many, which have a --learner_address. An evaluator tests "
        "the run in --logdir again and again while it trains.",
        ("learner", "actor", "evaluator"),
    )
    task: int = JOB.setting(-1, "Number of the actor job, from 0.", Bounds(-1))
    learner_address: str = JOB.setting(
        "",
        "HOST:PORT of the learner, for a run of many processes. With port 0 the learner takes any "
        "that is free. Actor jobs that see its --logdir find it there.",
    )
    learner_timeout_hours: float = JOB.setting(
        72.0,
        "Hours without a learner after which an actor job takes the run for finished and ends, if "
        "it has a --learner_address. A learner that is started again is found before. An evaluator "
        "ends after as many hours without a newer checkpoint.",
        POSITIVE,
    )
    keys_dir: str = JOB.setting(
        "",
        "Keys that close the learner's port to everybody but the run's own jobs. The learner makes "
        "them if there are none. Default: keys in --logdir.",
    )
    actor_jobs: int = JOB.setting(
        0,
        "Actor jobs that the learner starts on its own machine, as processes with --num_actors "
        "environments each.",
        SIZE_OR_NONE,
    )
    seed: int = RUN.same(Use.HISTORY | Use.RESUME_UNASKED).setting(
        1,
        "Random seed. Tests of a seed play the same games. Training does not, since actors take "
        "new weights whenever these arrive.",
        Bounds(0),
    )
    init_from: str = EXPERIMENT.setting(
        "",
        "Directory of another run, with whose weights a new run starts: network, policy, and the "
        "values of tasks that both know. With other actions only the torso is taken.",
    )
    total_environment_frames: int = EXPERIMENT.free(Use.RESUME_UNASKED).setting(
        ...,
        "Environment frames to train for, per member in a population. Defaults are for whole "
        "suites; for only some of a suite's levels they are smaller in proportion.",
        POSITIVE,
    )
    num_actors: int = PLAY.setting(
        ...,
        "Environments, dealt round robin over the levels. Defaults are for whole suites; for only "
        "some of a suite's levels it is 32 (DmLab: 30), rounded up to a multiple of the levels. "
        "With a GPU --mode=train plays at least 256 of Atari.",
        SIZE,
    )
    actor_threads: int = PROCESS.setting(
        0,
        "Threads that step actors. 0 stands for one per core, with a GPU for four, or for fewer if "
        "each would have less than eight actors.",
        SIZE_OR_NONE,
    )
    unroll_length: int = EXPERIMENT.same(Use.ROLLOUTS).setting(
        ..., "Agent steps per rollout.", SIZE
    )
    batch_size: int = EXPERIMENT.setting(..., "Rollouts per batch.", SIZE)
    num_action_repeats: int = CHECKPOINT.same(Use.ROLLOUTS).setting(
        ..., "Frames per agent step.", SIZE
    )
    height: int = NETWORK.setting(..., "Height of the observation.", SIZE)
    width: int = NETWORK.setting(..., "Width of the observation.", SIZE)
    action_set: str = CHECKPOINT.same(Use.POLICY | Use.ROLLOUTS).setting(
        ...,
        "Set of actions: in DmLab-30 popart or impala, in Atari full (18) or minimal, those that "
        "have an effect, for games that share them.",
    )
    dataset_path: str = IMAGES.setting(
        "", "Images for two psychlab levels of DmLab-30; dummy, the default there, for squares."
    )
    level_cache_dir: str = PLAY.setting("", "Where to keep compiled DmLab levels.")
    level_cache_gib: float = PLAY.within("level_cache_dir").setting(
        10.0,
        "Most GiB of compiled levels to keep; those not used for longest are removed first.",
        POSITIVE,
    )
    network: str = NETWORK.setting(
        ...,
        "Torso: deep or shallow, of IMPALA's paper, or MODULE:NAME, one of a Python module.",
    )
    padding: str = NETWORK.setting(
        ...,
        "Padding of the shallow network's convolutions: valid as in IMPALA's Figure 3, or same, "
        "the default for images of fewer than 20 pixels per side. The deep network has only same.",
        ("valid", "same"),
    )
    image_scale: float = NETWORK.setting(
        1.0,
        "Factor of the network's images, which are in [0, 1]: 1 as in the papers, or more for "
        "short runs, whose first features are then larger.",
        POSITIVE,
    )
    zero_mean_filters: bool = NETWORK.setting(
        False,
        "Subtracts from each filter of the network's first layer the mean of its weights. An even "
        "grey background then passes only the bias, and no gradient to the filters.",
    )
    use_lstm: bool = NETWORK.setting(..., "Adds an LSTM after the torso.")
    multi_head: bool = VALUES.setting(False, "One value head per level (MultiHead-IMPALA).")
    use_popart: bool = VALUES.setting(
        False, "One value head per level, normalised (PopArt-IMPALA)."
    )
    popart_step_size: float = POPART.free(Use.VALUES).setting(
        3e-4, "Weight of a rollout in PopArt's statistics.", Bounds(above=0, high=1)
    )
    popart_start: str = VALUES.within("use_popart").setting(
        "average",
        "PopArt's statistics begin as the plain average of a task's rollouts, until each of these "
        "weighs less than the step size. If fixed, they begin at a shift of 0 and a scale of 1.",
        ("average", "fixed"),
    )
    popart_scale_lower_bound: float = POPART.setting(1e-4, "Smallest scale (sigma).", POSITIVE)
    popart_scale_upper_bound: float = POPART.setting(1e6, "Largest scale (sigma).", POSITIVE)
    popart_second_moment_of: str = POPART.setting(
        "squares",
        "The second moment averages the squares of a rollout's targets, or squares their mean.",
        ("squares", "mean"),
    )
    reward_clipping: str = VALUES.free(Use.TEST).setting(
        ...,
        "Transformation of rewards for learning. Scores always use raw rewards.",
        ("abs_one", "none", "soft_asymmetric", "oar"),
    )
    reward_scale: float = VALUES.setting(
        1.0, "Factor of the rewards to learn from, before they are clipped.", POSITIVE
    )
    entropy_cost: float = EXPERIMENT.setting(..., "Entropy cost/multiplier.", Bounds(0))
    baseline_cost: float = EXPERIMENT.setting(0.5, "Baseline cost/multiplier.", Bounds(0))
    discounting: float = EXPERIMENT.same(Use.VALUES).setting(0.99, "Discounting factor.", SHARE)
    pixel_control: bool = CHECKPOINT.setting(
        False, "Adds the auxiliary task of pixel control (Pixel-IMPALA)."
    )
    pixel_control_cost: float = PIXEL_CONTROL.setting(
        0.01, "Weight of pixel control's loss, a sum over cells.", Bounds(0)
    )
    pixel_control_discount: float = PIXEL_CONTROL.setting(
        0.9, "Discounting factor of pixel control.", SHARE
    )
    learning_rate: float = EXPERIMENT.setting(..., "Learning rate, at the start.", POSITIVE)
    learning_rate_schedule: str = EXPERIMENT.setting(
        "linear",
        "Anneals the learning rate to 0 over the run, or keeps it as --mode=pbt does by default.",
        ("linear", "constant"),
    )
    decay: float = EXPERIMENT.setting(0.99, "RMSProp decay.", SHARE)
    momentum: float = EXPERIMENT.setting(0.0, "RMSProp momentum.", Bounds(0))
    initial_mean_square: float = CHECKPOINT.setting(
        1.0,
        "Mean of squared gradients with which RMSProp begins: 1 as in the papers, which makes the "
        "first updates small, or 0 for short runs, corrected as in Adam.",
        Bounds(0),
    )
    epsilon: float = EXPERIMENT.setting(..., "RMSProp epsilon, inside the root.", POSITIVE)
    max_grad_norm: float = EXPERIMENT.setting(
        ..., "Global norm that gradients are clipped to; 0 for never.", Bounds(0)
    )
    precision: str = EXPERIMENT.also("test").setting(
        "float32",
        "Type of the network's convolutional part; the rest is float32.",
        ("float32", "bfloat16"),
    )
    gpus: int = PROCESS.setting(
        -1,
        "GPUs of the learner: 0 uses none, 1 refuses to train without one, -1 uses one if there "
        "is one.",
        Bounds(-1),
    )
    xla: bool = PROCESS.setting(False, "XLA compiles the learner's update, which is for GPUs.")
    population_size: int = CHECKPOINT.during("pbt", "test").setting(
        0, "Number of members.", SIZE_OR_NONE
    )
    pbt_member: int = MEMBER.setting(
        -1, "Number of the member to train or test, from 0. Without it this machine trains all."
    )
    pbt_places: int = PROCESS.during("pbt").setting(
        1, "Members that this machine trains at a time.", SIZE
    )
    pbt_episodes: int = EXPERIMENT.during("pbt").setting(
        ...,
        "Episodes of all levels between comparisons; at least one of each level with a score.",
        POSITIVE,
    )
    pbt_burn_in_frames: int = EXPERIMENT.during("pbt").setting(
        ..., "Frames of each member before episodes count.", Bounds(0)
    )
    checkpoint_seconds: float = PROCESS.setting(60.0, "Seconds between checkpoints.", POSITIVE)
    log_seconds: float = PROCESS.setting(5.0, "Seconds between lines of metrics.", POSITIVE)
    log_task_gradients: bool = PROCESS.setting(
        False,
        "Logs the norm of each level's gradients; measuring it takes as long as some updates.",
    )
    # Members of a population copy one another, so this is for single runs.
    allow_changes: bool = PROCESS.during("train").setting(
        False,
        "Lets a run be resumed with other flags that shape learning; config.json keeps what "
        "changed when, and reports name it.",
    )
    test_num_episodes: int = TEST.setting(..., "Episodes of each level.", SIZE)
    starts: str = TEST.setting("noop", "1 to 30 no-ops, or human starts.", ("noop", "human"))
    human_starts_dir: str = TEST.setting(
        "", "Recorded starts for --starts=human, one file per game."
    )
    record_video: bool = TEST.setting(False, "Films the first minute of each level.")
    video_policy: bool = TEST.within("record_video").setting(
        False,
        "Shows the probabilities of actions and the agent's value next to the films' pictures.",
    )


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Settings of a report, which is about runs and is none itself."""

    runs: tuple = REPORT.setting(
        (),
        "Runs to report on, separated by commas: run directories, folders of them, or patterns "
        "such as runs/*.",
    )
    report_dir: str = REPORT.setting("", "Where to write the report.")
    scores: tuple = REPORT.setting(
        (),
        "CSV files of other programs' agents to compare with the runs, with the columns "
        "agent,seed,task,frames,return.",
    )
    zero: str = REPORT.setting(
        "published",
        "The random play whose score is 0%: as published, or in Atari as measured with this "
        "agent's actions.",
        ("published", "measured"),
    )


# All settings, in the order of their declaration, and those of a run by name.
FIELDS = (*fields(Settings), *fields(ReportSettings))
SETTINGS: dict[str, Setting] = {each.name: each.metadata["setting"] for each in fields(Settings)}

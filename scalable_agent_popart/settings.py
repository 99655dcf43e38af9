"""Every setting, declared once.

Flags, their ranges and choices, `--help`, docs/configuration.md, `config.Config` and other modules'
lists of settings follow from the declarations.
"""

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple


class Part(NamedTuple):
    """A part of the program that settings belong to, and the modes in which they mean something."""

    name: str
    modes: tuple[str, ...]

    def during(self, *modes: str) -> "Part":
        """Returns this part for a setting that means something in other modes."""
        return self._replace(modes=modes)


RUNS = ("train", "pbt", "test")
_MODES = (*RUNS, "report")
EXPERIMENT = Part("experiment", ("train", "pbt"))  # The same in runs with other seeds.
CHECKPOINT = Part("checkpoint", RUNS)  # It belongs to the experiment, and a run never changes it.
RUN = Part("run", RUNS)
PROCESS = Part("process", ("train", "pbt"))
JOB = Part("job", ("train", "pbt"))  # What this process is in a run of many.
TEST = Part("test", ("test",))
REPORT = Part("report", ("report",))
PARTS = (EXPERIMENT, CHECKPOINT, RUN, PROCESS, JOB, TEST, REPORT)


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


POSITIVE, SHARE = Bounds(above=0), Bounds(0, 1)


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting, next to its name, its type and a constant default."""

    help: str
    part: Part
    allowed: Bounds | tuple[str, ...] | None = None  # Numbers or choices; None is for any value.
    needs: str = ""  # Without this setting it means nothing.
    shared: bool = False  # An actor job must have the learner's value; shapes follow from it.
    # Runs had this value before the setting or its present default existed. A run that is resumed
    # keeps the value of its record unless the command names another.
    older: Any = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The possible values if these are words, and otherwise none."""
        return () if isinstance(self.allowed, Bounds) else self.allowed or ()

    @property
    def range(self) -> str:
        """The possible values in words, empty if all are possible."""
        return f"one of {', '.join(self.choices)}" if self.choices else str(self.allowed or "")


def setting(default: Any, text: str, part: Part = EXPERIMENT, **declared: Any) -> Any:
    """Declares a field with a default, which is `...` if it depends on the suite."""
    made = Setting(text, part, **declared)
    return field(default=MISSING if default is ... else default, metadata={"setting": made})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a run; names and meanings are those of the flags."""

    level_name: str = setting(
        "",
        "A suite such as atari57 or dmlab30, or levels of one, such as pong,boxing; MODULE:NAME is "
        "a suite or a level of a Python module. --list_levels names all suites.",
        CHECKPOINT.during(*_MODES),
        shared=True,
    )
    mode: str = setting(
        "train",
        "Train a run or a population, test the run in --logdir, or report on --runs.",
        PROCESS.during(*_MODES),
        allowed=_MODES,
    )
    logdir: str = setting(
        "/tmp/agent", "Directory of the run or the population. The same command resumes.", RUN
    )
    job_name: str = setting(
        "learner",
        "What this process is in a run of many, which have a --learner_address. An evaluator tests "
        "the run in --logdir again and again while it trains.",
        JOB,
        allowed=("learner", "actor", "evaluator"),
    )
    task: int = setting(-1, "Number of the actor job, from 0.", JOB, allowed=Bounds(-1))
    learner_address: str = setting(
        "",
        "HOST:PORT of the learner, for a run of many processes. With port 0 the learner takes any "
        "that is free. Actor jobs that see its --logdir find it there.",
        JOB,
    )
    keys_dir: str = setting(
        "",
        "Keys that close the learner's port to everybody but the run's own jobs. The learner makes "
        "them if there are none. Default: keys in --logdir.",
        JOB,
    )
    actor_jobs: int = setting(
        0,
        "Actor jobs that the learner starts on its own machine, as processes with --num_actors "
        "environments each.",
        JOB,
        allowed=Bounds(0),
    )
    seed: int = setting(1, "Random seed.", RUN, allowed=Bounds(0))
    total_environment_frames: int = setting(
        ...,
        "Environment frames to train for, per member in a population. Defaults are for whole "
        "suites; for only some of a suite's levels they are smaller in proportion.",
        allowed=POSITIVE,
    )
    num_actors: int = setting(
        ...,
        "Environments, dealt round robin over the levels. Defaults are for whole suites; for only "
        "some of a suite's levels it is 32 (DmLab: 30), rounded up to a multiple of the levels.",
        PROCESS.during(*RUNS),
        allowed=POSITIVE,
    )
    actor_threads: int = setting(
        0,
        "Threads that step actors. 0 stands for one per core, or for fewer if each would have less "
        "than eight actors.",
        PROCESS,
        allowed=Bounds(0),
    )
    unroll_length: int = setting(
        ..., "Rollout length in agent steps.", allowed=POSITIVE, shared=True
    )
    batch_size: int = setting(..., "Rollouts per batch.", allowed=POSITIVE)
    num_action_repeats: int = setting(
        ..., "Frames per agent step.", CHECKPOINT, allowed=POSITIVE, shared=True
    )
    height: int = setting(
        ..., "Height of the observation.", CHECKPOINT, allowed=POSITIVE, shared=True
    )
    width: int = setting(
        ..., "Width of the observation.", CHECKPOINT, allowed=POSITIVE, shared=True
    )
    action_set: str = setting(
        ..., "Set of actions; for DmLab-30 popart or impala.", CHECKPOINT, shared=True
    )
    dataset_path: str = setting(
        "",
        "Images for two psychlab levels of DmLab-30; dummy, the default there, for squares.",
        EXPERIMENT.during(*RUNS),
    )
    level_cache_dir: str = setting(
        "", "Where to keep compiled DmLab levels.", PROCESS.during(*RUNS)
    )
    level_cache_gib: float = setting(
        10.0,
        "Most GiB of compiled levels to keep; those not used for longest are removed first.",
        PROCESS.during(*RUNS),
        allowed=POSITIVE,
        needs="level_cache_dir",
    )
    network: str = setting(
        ..., "Network of IMPALA's paper.", CHECKPOINT, allowed=("deep", "shallow"), shared=True
    )
    padding: str = setting(
        ...,
        "Padding of the shallow network's convolutions: valid as in IMPALA's Figure 3, or same, "
        "the default for images of fewer than 20 pixels per side. The deep network has only same.",
        CHECKPOINT,
        allowed=("valid", "same"),
        shared=True,
        older="same",
    )
    use_lstm: bool = setting(..., "Adds an LSTM after the torso.", CHECKPOINT, shared=True)
    multi_head: bool = setting(False, "One value head per level (MultiHead-IMPALA).", CHECKPOINT)
    use_popart: bool = setting(
        False, "One value head per level, normalised (PopArt-IMPALA).", CHECKPOINT
    )
    popart_step_size: float = setting(
        3e-4,
        "Weight of a rollout in PopArt's statistics.",
        allowed=Bounds(above=0, high=1),
        needs="use_popart",
        older=3e-4,
    )
    popart_start: str = setting(
        "average",
        "PopArt's statistics begin as the plain average of a task's rollouts, until each of these "
        "weighs less than the step size. Or they begin fixed at a shift of 0 and a scale of 1.",
        CHECKPOINT,
        allowed=("average", "fixed"),
        needs="use_popart",
        older="fixed",
    )
    popart_scale_lower_bound: float = setting(
        1e-4, "Smallest scale (sigma).", allowed=POSITIVE, needs="use_popart"
    )
    popart_scale_upper_bound: float = setting(
        1e6, "Largest scale (sigma).", allowed=POSITIVE, needs="use_popart"
    )
    popart_second_moment_of: str = setting(
        "squares",
        "The second moment averages the squares of a rollout's targets, or squares their mean.",
        allowed=("squares", "mean"),
        needs="use_popart",
    )
    popart_order: str = setting(
        "gradient_first",
        "The gradient step or the update of the statistics comes first.",
        allowed=("gradient_first", "statistics_first"),
        needs="use_popart",
    )
    reward_clipping: str = setting(
        ...,
        "Transformation of rewards for learning. Scores always use raw rewards.",
        CHECKPOINT,
        allowed=("abs_one", "none", "soft_asymmetric", "oar"),
    )
    entropy_cost: float = setting(..., "Entropy cost/multiplier.", allowed=Bounds(0))
    baseline_cost: float = setting(0.5, "Baseline cost/multiplier.", allowed=Bounds(0))
    discounting: float = setting(0.99, "Discounting factor.", allowed=SHARE)
    pixel_control: bool = setting(
        False, "Adds the auxiliary task of pixel control (Pixel-IMPALA).", CHECKPOINT
    )
    pixel_control_cost: float = setting(
        0.01,
        "Weight of pixel control's loss, a sum over cells.",
        allowed=Bounds(0),
        needs="pixel_control",
    )
    pixel_control_discount: float = setting(
        0.9, "Discounting factor of pixel control.", allowed=SHARE, needs="pixel_control"
    )
    learning_rate: float = setting(..., "Learning rate, at the start.", allowed=POSITIVE)
    learning_rate_schedule: str = setting(
        "linear",
        "Anneals the learning rate to 0 over the run, or keeps it as --mode=pbt does by default.",
        allowed=("linear", "constant"),
    )
    decay: float = setting(0.99, "RMSProp decay.", allowed=SHARE)
    momentum: float = setting(0.0, "RMSProp momentum.", allowed=Bounds(0))
    epsilon: float = setting(..., "RMSProp epsilon, inside the root.", allowed=POSITIVE)
    max_grad_norm: float = setting(
        ..., "Global norm that gradients are clipped to; 0 for never.", allowed=Bounds(0)
    )
    precision: str = setting(
        "float32",
        "Type of the network's convolutional part; the rest is float32.",
        EXPERIMENT.during(*RUNS),
        allowed=("float32", "bfloat16"),
        older="float32",
    )
    gpus: int = setting(
        -1,
        "GPUs of the learner: 0 uses none, 1 refuses to train without one, -1 uses one if there "
        "is one.",
        PROCESS,
        allowed=Bounds(-1, 1),
    )
    xla: bool = setting(False, "XLA compiles the learner's update. For GPUs.", PROCESS)
    population_size: int = setting(
        0, "Number of members.", CHECKPOINT.during("pbt", "test"), allowed=Bounds(0)
    )
    pbt_member: int = setting(
        -1,
        "Number of the member to train or test, from 0. Without it this machine trains all.",
        PROCESS.during("pbt", "test"),
    )
    pbt_places: int = setting(
        1, "Members that this machine trains at a time.", PROCESS.during("pbt"), allowed=POSITIVE
    )
    pbt_episodes: int = setting(
        ...,
        "Episodes of all levels between comparisons; at least one of each level with a score.",
        EXPERIMENT.during("pbt"),
        allowed=POSITIVE,
    )
    pbt_burn_in_frames: int = setting(
        ...,
        "Frames of each member before episodes count.",
        EXPERIMENT.during("pbt"),
        allowed=Bounds(0),
    )
    checkpoint_seconds: float = setting(
        60.0, "Seconds between checkpoints.", PROCESS, allowed=POSITIVE
    )
    log_seconds: float = setting(
        5.0, "Seconds between lines of metrics.", PROCESS, allowed=POSITIVE
    )
    log_task_gradients: bool = setting(
        False,
        "Logs the norm of each level's gradients; measuring it takes as long as some updates.",
        PROCESS,
    )
    allow_changes: bool = setting(
        False,
        "Lets a run be resumed with other flags that shape learning; config.json keeps what "
        "changed when, and reports name it.",
        PROCESS.during("train"),  # Members of a population copy one another.
    )
    test_num_episodes: int = setting(..., "Episodes of each level.", TEST, allowed=POSITIVE)
    starts: str = setting(
        "noop", "1 to 30 no-ops, or human starts.", TEST, allowed=("noop", "human")
    )
    human_starts_dir: str = setting(
        "", "Recorded starts for --starts=human, one file per game.", TEST
    )
    record_video: bool = setting(False, "Films the first minute of each level.", TEST)


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Settings of a report, which is about runs and is none itself."""

    runs: tuple = setting(
        (),
        "Runs to report on, separated by commas: run directories, folders of them, or patterns "
        "such as runs/*.",
        REPORT,
    )
    report_dir: str = setting("", "Where to write the report.", REPORT)


# All settings, in the order of their declaration, and those of each record by name.
FIELDS = tuple(f for record in (Settings, ReportSettings) for f in fields(record) if f.metadata)
SETTINGS, REPORT_SETTINGS = (
    {each.name: each.metadata["setting"] for each in fields(record) if each.metadata}
    for record in (Settings, ReportSettings)
)
# What runs had before these settings or their present defaults existed.
OLDER = {name: each.older for name, each in SETTINGS.items() if each.older is not None}

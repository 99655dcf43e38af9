"""What is wrong with a configuration: each refusal names the flag and says what to give."""

import math
import re
from typing import Any

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import Suite

# A `config.Config`, whose module needs this one.
Config = Any

# Choices of the enumerated flags.
MODES = ("train", "test", "pbt")
STARTS = ("noop", "human")
JOB_NAMES = ("learner", "actor", "evaluator")
NETWORKS = ("deep", "shallow")
REWARD_CLIPPINGS = ("abs_one", "none", "soft_asymmetric", "oar")
POPART_ORDERS = ("gradient_first", "statistics_first")
SECOND_MOMENTS = ("squares", "mean")
LEARNING_RATE_SCHEDULES = ("linear", "constant")
PRECISIONS = ("float32", "bfloat16", "auto")

# Of a host: a name or an IPv4 address, or an IPv6 address in brackets.
_ADDRESS = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")

# A side of the image must have these for pixel control's deconvolutions.
_LEAST_PIXELS = 32


def check(config: Config, suite: Suite) -> None:
    """Raises UserError if a value is impossible, or two contradict each other.

    Args:
      config: the flags.
      suite: that its `level_name` asks for.
    """
    for name, choices in (
        ("mode", MODES),
        ("network", NETWORKS),
        ("reward_clipping", REWARD_CLIPPINGS),
        ("popart_order", POPART_ORDERS),
        ("popart_second_moment_of", SECOND_MOMENTS),
        ("precision", PRECISIONS),
        ("starts", STARTS),
        ("job_name", JOB_NAMES),
        ("learning_rate_schedule", LEARNING_RATE_SCHEDULES),
    ):
        if getattr(config, name) not in choices:
            raise UserError(f"--{name} must be one of {', '.join(choices)}")
    for name in (
        "total_environment_frames",
        "test_num_episodes",
        "num_actors",
        "unroll_length",
        "batch_size",
        "num_action_repeats",
        "height",
        "width",
        "learning_rate",
        "epsilon",
        "pbt_places",
        "pbt_episodes",
        "checkpoint_seconds",
        "log_seconds",
    ):
        if not 0 < getattr(config, name) < math.inf:
            raise UserError(f"--{name} must be above 0 and finite, got {getattr(config, name)}")
    for name in (
        "entropy_cost",
        "baseline_cost",
        "pixel_control_cost",
        "max_grad_norm",
        "momentum",
        "seed",
        "actor_threads",
        "population_size",
        "pbt_burn_in_frames",
    ):
        if not 0 <= getattr(config, name) < math.inf:
            raise UserError(f"--{name} must be 0 or above and finite, got {getattr(config, name)}")
    for name in ("discounting", "pixel_control_discount", "decay"):
        if not 0 <= getattr(config, name) <= 1:
            raise UserError(f"--{name} must lie in [0, 1], got {getattr(config, name)}")
    _check_popart(config)
    _check_suite(config, suite)
    _check_test(config, suite)
    _check_job(config)
    _check_population(config, suite)
    _check_sizes(config, suite)


def _check_popart(config: Config) -> None:
    if not 0 < config.popart_step_size <= 1:
        raise UserError(f"--popart_step_size must lie in (0, 1], got {config.popart_step_size}")
    lower, upper = config.popart_scale_lower_bound, config.popart_scale_upper_bound
    if not 0 < lower <= upper < math.inf:
        raise UserError(
            "--popart_scale_lower_bound and --popart_scale_upper_bound must satisfy "
            f"0 < lower <= upper and be finite, got {lower} and {upper}"
        )


def _check_test(config: Config, suite: Suite) -> None:
    if config.starts == "human" and not suite.human_starts_scores:
        raise UserError(f"--starts=human: {suite.name} has no human starts; leave it out")
    if (config.starts == "human") != bool(config.human_starts_dir):
        raise UserError(
            "--starts=human and --human_starts_dir go together: the directory holds the "
            "recorded starts, one file a game; tools/record_starts.py makes them"
        )
    for name, off in (("starts", "noop"), ("record_video", False)):
        if config.mode != "test" and getattr(config, name) != off:
            raise UserError(f"--{name} is for --mode=test; leave it out")


def _check_job(config: Config) -> None:
    job = f"--job_name={config.job_name}"
    if config.learner_address:
        parts = _ADDRESS.fullmatch(config.learner_address)
        if parts is None or not 0 < int(parts[2]) < 2**16:
            raise UserError(
                f"--learner_address={config.learner_address} must be HOST:PORT, the learner's "
                "host as actors see it and a port that is free there"
            )
        if config.mode == "test":
            raise UserError("--learner_address is for training; leave it out")
    if config.job_name == "actor":
        if not config.learner_address:
            raise UserError(f"{job} needs --learner_address=HOST:PORT, where its learner is")
        if config.task < 0:
            raise UserError(
                f"{job} needs --task, the job's number: 0 for the first actor job, 1 for the "
                f"next, and so on; got {config.task}"
            )
    elif config.task not in (-1, 0):
        raise UserError(f"--task={config.task} is for --job_name=actor; leave it out")


def _check_population(config: Config, suite: Suite) -> None:
    if config.mode == "pbt" and config.allow_changes:
        raise UserError(
            "--allow_changes is for a single run: the members of a population, which copy one "
            "another, have the same flags; leave it out"
        )
    if config.mode != "pbt":
        for name, off in (("population_size", 0), ("pbt_member", -1), ("pbt_places", 1)):
            # A member is tested with the flags that it was trained with.
            if config.mode == "train" and getattr(config, name) != off:
                raise UserError(f"--{name} is for --mode=pbt; leave it out")
        return
    size = config.population_size
    if size < 2:
        raise UserError(
            "--mode=pbt needs --population_size, 2 members or more (the paper has 24 for Atari and "
            f"8 for DmLab); got {size}"
        )
    if not -1 <= config.pbt_member < size:
        raise UserError(
            f"--pbt_member={config.pbt_member} must lie in [0, {size - 1}], or be left out to "
            "train all members on this machine"
        )
    if config.learner_address and config.pbt_member < 0:
        raise UserError("--learner_address is that of one member: give --pbt_member too")
    if config.pbt_places > 1 and config.pbt_member >= 0:
        raise UserError(
            "--pbt_places is for members that share a machine; with --pbt_member leave it out"
        )
    for name in suite.search_space:
        if getattr(config, name) == 0:  # Which no factor changes.
            raise UserError(f"--{name}=0 cannot be tuned; give a value above 0, or leave it out")
    if not set(suite.tasks) & set(suite.reference_scores) or not suite.normalised:
        raise UserError(
            f"--mode=pbt compares human-normalised scores, which {config.level_name} has none of; "
            + (f"add a level that is part of {suite.name}" if suite.normalised else "give it some")
        )


def _check_suite(config: Config, suite: Suite) -> None:
    if config.action_set not in suite.action_sets:
        raise UserError(
            f"--action_set must be one of {', '.join(suite.action_sets)} in {suite.name}, "
            f"got {config.action_set}"
        )
    for name in ("dataset_path", "level_cache_dir", "human_starts_dir"):
        if getattr(config, name) and name not in suite.own_flags:
            raise UserError(f"--{name} means nothing to {suite.name}; leave it out")


def _check_sizes(config: Config, suite: Suite) -> None:
    alone = config.mode != "test" and not config.learner_address
    if alone and config.num_actors < len(suite.tasks):
        raise UserError(
            f"--num_actors={config.num_actors} cannot play the {len(suite.tasks)} tasks of "
            f"--level_name={config.level_name}: give at least one actor a task"
        )
    if config.actor_threads > config.num_actors:
        raise UserError(
            f"--actor_threads={config.actor_threads} is more than --num_actors="
            f"{config.num_actors}: a thread needs at least one actor"
        )
    if config.pixel_control and min(config.height, config.width) < _LEAST_PIXELS:
        raise UserError(
            f"--pixel_control needs images of at least {_LEAST_PIXELS}x{_LEAST_PIXELS} "
            f"pixels; in {suite.name} they are {config.height}x{config.width}: "
            + ("give more" if suite.scalable else "leave it out")
        )
    for name in () if suite.scalable else ("height", "width", "num_action_repeats"):
        if getattr(config, name) != suite.defaults[name]:
            raise UserError(
                f"--{name} is always {suite.defaults[name]} in {suite.name}, "
                f"got {getattr(config, name)}"
            )

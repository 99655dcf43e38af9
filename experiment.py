"""PopArt-IMPALA: trains and tests one agent on many tasks, and compares agents.

  python experiment.py --level_name=atari57 --use_popart --logdir=/tmp/atari57
  python experiment.py --level_name=dmlab30 --use_popart --dataset_path=dummy --logdir=/tmp/dmlab30
  python experiment.py --mode=pbt --population_size=24 --level_name=atari57 --logdir=/tmp/population
  python experiment.py --mode=test --logdir=/tmp/atari57
  python experiment.py --mode=report --runs=/tmp/atari57,/tmp/other --report_dir=/tmp/report

Flags become one `Config`; nothing below this file reads them. Heavy imports wait until `main`,
so that a wrong flag is answered at once and processes that re-import this script start fast.
"""

import os
import signal
import sys
from typing import Any

from absl import app, flags, logging

from scalable_agent_popart import config as config_lib
from scalable_agent_popart import config_checks, errors, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.suites.search_space import PAPER_ATARI

MODES = (*config_checks.MODES, "report")


# Flags with no default of their own that is the suite's.
_NOT_BY_SUITE = ("level_name", "learning_rate_schedule")


def _define(kind: str, name: str, text: str) -> str:
    """Defines a flag whose default is that of the `Config` field of its name."""
    getattr(flags, f"DEFINE_{kind}")(name, config_lib.flag_default(name), _explain(name, text))
    return name


def _define_enum(name: str, choices: tuple[str, ...], text: str) -> str:
    flags.DEFINE_enum(name, config_lib.flag_default(name), choices, _explain(name, text))
    return name


def _explain(name: str, text: str) -> str:
    if config_lib.flag_default(name) is not None or name in _NOT_BY_SUITE:
        return text
    drawn = "; with --mode=pbt each member draws its own" if name in PAPER_ATARI else ""
    return f"{text} Default: set by the suite{drawn}."


_FLAGS = (
    _define(
        "string",
        "logdir",
        "Run directory, or with --mode=pbt the population's. The same command resumes.",
    ),
    _define_enum(
        "mode", MODES, "Train; test the run in --logdir; train a population; report on --runs."
    ),
    _define(
        "string",
        "level_name",
        f"A suite ({', '.join(suite.name for suite in suites.ALL)}), a level or levels, "
        "or MODULE:NAME for those of a Python module.",
    ),
    _define("integer", "seed", "Random seed."),
    # Cluster.
    _define_enum(
        "job_name",
        config_checks.JOB_NAMES,
        "With --learner_address: what this process does for a run of many. An evaluator tests "
        "the run in --logdir again and again while it trains.",
    ),
    _define("integer", "task", "Number of the actor job, from 0."),
    _define(
        "string",
        "learner_address",
        "HOST:PORT of the learner, for a run of many processes. Whoever can reach the port can "
        "make the learner run anything: close it to all but the run's own machines.",
    ),
    # Training.
    _define(
        "integer",
        "total_environment_frames",
        "Total environment frames, of each member if several.",
    ),
    _define("integer", "num_actors", "Environments, dealt round robin over the levels."),
    _define(
        "integer",
        "actor_threads",
        "Threads that step them, each a batch of its own. 0: one a core, but each with eight "
        "actors or more, if there are so many.",
    ),
    _define("integer", "batch_size", "Rollouts per batch."),
    _define("integer", "unroll_length", "Rollout length in agent steps."),
    _define("integer", "num_action_repeats", "Environment frames per agent step."),
    _define("integer", "width", "Width of the observation."),
    _define("integer", "height", "Height of the observation."),
    _define("string", "action_set", "Set of actions; for DmLab-30 popart or impala."),
    _define("string", "dataset_path", "Images for two psychlab levels of DmLab-30, or dummy."),
    _define("string", "level_cache_dir", "Where to keep compiled DmLab levels. Default: nowhere."),
    # Agent.
    _define_enum("network", config_checks.NETWORKS, "IMPALA's deep or shallow network."),
    _define("boolean", "use_lstm", "Whether an LSTM follows the torso."),
    _define("boolean", "multi_head", "One value head a level (MultiHead-IMPALA)."),
    _define("boolean", "use_popart", "One value head a level, normalised (PopArt-IMPALA)."),
    _define("float", "popart_step_size", "Weight of a rollout in PopArt's statistics."),
    _define("float", "popart_scale_lower_bound", "Smallest scale (sigma)."),
    _define("float", "popart_scale_upper_bound", "Largest scale (sigma)."),
    _define_enum(
        "popart_second_moment_of",
        config_checks.SECOND_MOMENTS,
        "Whether the second moment averages the squares of a rollout's targets, or squares "
        "their mean.",
    ),
    _define_enum(
        "popart_order",
        config_checks.POPART_ORDERS,
        "Whether the gradient step or the update of the statistics comes first.",
    ),
    # Losses.
    _define_enum(
        "reward_clipping",
        config_checks.REWARD_CLIPPINGS,
        "How rewards are transformed for learning. Scores always use raw rewards.",
    ),
    _define("float", "entropy_cost", "Entropy cost/multiplier."),
    _define("float", "baseline_cost", "Baseline cost/multiplier."),
    _define("float", "discounting", "Discounting factor."),
    # Pixel control.
    _define("boolean", "pixel_control", "Adds the auxiliary task of pixel control (Pixel-IMPALA)."),
    _define("float", "pixel_control_cost", "Weight of pixel control's loss, a sum over cells."),
    _define("float", "pixel_control_discount", "Discounting factor of pixel control."),
    # Optimiser.
    _define("float", "learning_rate", "Learning rate, at the start."),
    _define_enum(
        "learning_rate_schedule",
        config_checks.LEARNING_RATE_SCHEDULES,
        "Whether the learning rate is annealed to 0 over the run. Default: linear, and constant "
        "with --mode=pbt.",
    ),
    _define("float", "decay", "RMSProp decay."),
    _define("float", "momentum", "RMSProp momentum."),
    _define("float", "epsilon", "RMSProp epsilon, inside the root."),
    _define("float", "max_grad_norm", "Global norm that gradients are clipped to; 0: never."),
    # Arithmetic.
    _define_enum(
        "precision",
        config_checks.PRECISIONS,
        "Type of the convolutions; all else is float32. auto: bfloat16 where it is measured to "
        "be clearly faster as the run begins; a run that is resumed keeps its type.",
    ),
    _define("boolean", "xla", "Whether XLA compiles the learner's update. For GPUs."),
    # Population.
    _define("integer", "population_size", "Members of the population, for --mode=pbt."),
    _define(
        "integer",
        "pbt_member",
        "Number of the one member to train or test, from 0. Without it this machine trains all.",
    ),
    _define("integer", "pbt_places", "How many members this machine trains at a time."),
    _define(
        "integer",
        "pbt_episodes",
        "Episodes from one comparison with another member to the next, of all levels together; "
        "one at least of each level that has a score.",
    ),
    _define("integer", "pbt_burn_in_frames", "Frames of each member before episodes count."),
    # Records.
    _define("float", "checkpoint_seconds", "Seconds between checkpoints."),
    _define("float", "log_seconds", "Seconds between lines of metrics."),
    _define(
        "boolean",
        "log_task_gradients",
        "Whether they say how large each level's gradients are, of the policy's loss and of the "
        "total; measuring that once takes as long as some updates.",
    ),
    _define(
        "boolean",
        "allow_changes",
        "Lets a run that is resumed go on with other flags that shape learning; config.json keeps "
        "what changed when, and reports name it.",
    ),
    # Test.
    _define("integer", "test_num_episodes", "Number of episodes per level to test."),
    _define_enum("starts", config_checks.STARTS, "Up to 30 no-ops, or recorded human starts."),
    _define("string", "human_starts_dir", "Recorded starts, a file a game, for --starts=human."),
    _define("boolean", "record_video", "Film the first minute of each level."),
)


# Of --mode=report, which is about runs and is none itself.
flags.DEFINE_list("runs", [], "Run directories to report on, separated by commas.")
flags.DEFINE_string("report_dir", None, "Where to write the report.")
flags.DEFINE_list(
    "ignore_flags",
    [],
    "Flags, such as precision, by which runs of a report are not told apart as agents.",
)
_REPORT_FLAGS = ("runs", "report_dir", "ignore_flags")


def main(argv: list[str]) -> None:
    """Runs the mode asked for; a user's error is one line and exit code 1."""
    try:
        if len(argv) > 1:
            raise UserError(f"{argv[1]!r} is not a flag; flags are written --name=value")
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)
        if flags.FLAGS.mode == "report":
            _report()
            return
        signal_number = _run(_make_config())
    except KeyboardInterrupt:  # Training turns it into a checkpoint; elsewhere it just ends.
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        line = errors.explain(error)
        if line is None:
            raise
        sys.exit(f"error: {line}")
    if signal_number is not None:
        sys.exit(128 + signal_number)


def given_flags() -> dict[str, Any]:
    """The flags that were set, name to value."""
    return {
        name: flags.FLAGS[name].value
        for name in _FLAGS
        if not flags.FLAGS[name].using_default_value
    }


def _make_config() -> config_lib.Config:
    given = given_flags()
    for name in _REPORT_FLAGS:
        if not flags.FLAGS[name].using_default_value:
            raise UserError(f"--{name} is for --mode=report; leave it out")
    if given.get("mode") != "test" and given.get("job_name") != "evaluator":
        config = config_lib.Config.from_flags(given)
    else:
        config = _run_to_test().for_test({**given, "logdir": _tested_logdir(), "mode": "test"})
    if not (config.learner_address and config.job_name == "learner"):  # Which plays nothing.
        config.check_playable()
    return config


def _run_to_test() -> config_lib.Config:
    """The configuration of the run in --logdir, whose settings a test plays by."""
    directory = RunDirectory(_tested_logdir())
    directory.refuse_population()
    if flags.FLAGS.job_name == "evaluator":
        if flags.FLAGS.mode == "pbt" and flags.FLAGS.pbt_member < 0:
            raise UserError("an evaluator tests one member of a population: give --pbt_member")
        return directory.wait_for_config()  # Its learner may start later.
    trained = directory.read_config()
    if trained is None:
        raise UserError(f"there is no run in {directory.path} to test; train first")
    return trained


def _tested_logdir() -> str:
    """The run directory of the test's run: --logdir, or that of the --pbt_member in it."""
    logdir, member = flags.FLAGS.logdir, flags.FLAGS.pbt_member
    return str(PopulationDirectory(logdir).member(member).path) if member >= 0 else logdir


def _report() -> None:
    """Writes a report on other runs; loads no TensorFlow."""
    foreign = given_flags().keys() - {"mode", "level_name"}
    if foreign:
        raise UserError(
            f"--{sorted(foreign)[0]} means nothing to --mode=report, which takes --runs, "
            "--report_dir, --ignore_flags and, for some levels only, --level_name"
        )
    for name in ("runs", "report_dir"):
        if not getattr(flags.FLAGS, name):
            raise UserError(f"--{name} is missing: --mode=report --runs=DIR,DIR --report_dir=DIR")
    level_name = flags.FLAGS.level_name
    from scalable_agent_popart.report import page  # noqa: PLC0415

    skipped = page.write_report(
        flags.FLAGS.runs,
        flags.FLAGS.report_dir,
        suites.resolve(level_name) if level_name else None,
        flags.FLAGS.ignore_flags,
    )
    for line in skipped:
        print(f"note: {line}", file=sys.stderr)
    print(f"report written: {os.path.join(flags.FLAGS.report_dir, 'report.html')}")


def _run(config: config_lib.Config) -> int | None:
    """Dispatches on the mode; returns the signal that ended the run, if any."""
    if config.mode == "pbt":
        return _train_population(config)
    if config.mode == "train" and config.job_name == "learner":
        RunDirectory(config.logdir).check(config)  # Before TensorFlow takes its time to load.
    _import_tensorflow()
    from scalable_agent_popart.evaluation import evaluate, evaluator  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415
    from scalable_agent_popart.training import remote_actors, trainer  # noqa: PLC0415

    hardware.prepare_process()
    if config.mode == "test":
        # Not at once, so that environments' processes and half-made films are cleared away.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        if flags.FLAGS.job_name == "evaluator":
            evaluator.follow(config)
        else:
            evaluate.Tester(config).test()
        return None
    if config.job_name == "actor":
        return remote_actors.run_actor_job(config)
    return trainer.train(config)


def _import_tensorflow() -> None:
    """Imports TensorFlow without its messages on the terminal."""
    from scalable_agent_popart.system import tensorflow_import  # noqa: PLC0415

    tensorflow_import.import_quietly()


def _train_population(config: config_lib.Config) -> int | None:
    """All members of a population, or this process's part of one; returns as `_run` does."""
    directory = PopulationDirectory(config.logdir)
    if config.job_name == "learner":  # An actor has no directory.
        directory.check(config)
    given = given_flags()
    start = {name: given[name] for name in config.tuned if name in given}
    if config.pbt_member < 0:
        from scalable_agent_popart.population import workers  # noqa: PLC0415

        return workers.train(config, start)
    _import_tensorflow()
    from scalable_agent_popart.population import worker  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415
    from scalable_agent_popart.training import remote_actors  # noqa: PLC0415

    hardware.prepare_process()
    if config.job_name == "actor":
        return remote_actors.run_actor_job(directory.member_config(config, config.pbt_member, {}))
    return worker.train_member(config, start)


if __name__ == "__main__":
    app.run(main)

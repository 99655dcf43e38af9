"""PopArt-IMPALA: trains and tests one agent on many tasks, and compares agents.

  python experiment.py --level_name=atari57 --use_popart --logdir=/tmp/atari57
  python experiment.py --level_name=dmlab30 --use_popart --logdir=/tmp/dmlab30
  python experiment.py --mode=pbt --population_size=24 --level_name=atari57 --logdir=/tmp/population
  python experiment.py --mode=test --logdir=/tmp/atari57
  python experiment.py --mode=report --runs=/tmp/atari57,/tmp/other --report_dir=/tmp/report

If the package is installed, the command popart-impala does the same as python experiment.py.
A flag that is on or off is written --name or --noname, and any other one --name=value.
Whole numbers may be written as 1e6, 10k, 200M or 11.4B.
"""

if __name__ == "__main__":
    # The package refuses other Pythons. Those from 3.6 on can read this file.
    from scalable_agent_popart.system import signals

    signals.end_at_ctrl_c()

# Flags become one `Config`, and no other file reads them. Heavy imports wait, so that a wrong flag
# is answered at once.

import argparse
import dataclasses
import functools
import itertools
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags, logging

import scalable_agent_popart
from scalable_agent_popart import settings, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.runs import config as config_lib
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import find_runs, git_revision
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.system import program, terminal

# Groups of flags in `--help` and docs/configuration.md, each by its first flag.
GROUPS = {
    **{"level_name": "Run", "job_name": "Cluster", "seed": "Training"},
    **{"num_action_repeats": "Environment", "network": "Agent", "reward_clipping": "Losses"},
    **{"learning_rate": "Optimiser", "precision": "Arithmetic", "population_size": "Population"},
    **{"checkpoint_seconds": "Records", "test_num_episodes": "Test", "runs": "Report"},
}
_HELP, _VERSION = re.compile(r"-h|-\?|--?help(full|short)?"), re.compile("--?version")
_LIST_LEVELS = "Lists the levels of the suite in --level_name, or without it the suites, and ends."
# `--help` names these after the settings.
_OTHER_FLAGS = {
    "--help": "Lists the flags, and ends.",
    "--version": "Prints the version and the git revision, if that is known, and ends.",
    "--list_levels": _LIST_LEVELS,
    "--flagfile=FILE": "Reads flags from a file, one per line; later flags win over earlier ones.",
    "--verbosity=N": "Logs on the terminal: -1 warnings, 0 information, 1 details. Default: -1.",
}
# What defines a flag of a type, and how `--help` shows its value.
_KINDS: dict[Any, tuple[Callable[..., Any], str]] = {
    str: (flags.DEFINE_string, "=TEXT"),
    bool: (flags.DEFINE_boolean, ""),
    tuple: (flags.DEFINE_list, "=LIST"),
    int: (functools.partial(flags.DEFINE, program.Integer()), "=N"),
    float: (flags.DEFINE_float, "=X"),
}


def _define_flags() -> None:
    for field in settings.FIELDS:
        declared = field.metadata["setting"]
        default = None if field.default is dataclasses.MISSING else field.default
        if declared.choices:
            flags.DEFINE_enum(field.name, default, declared.choices, declared.help)
        else:
            _KINDS[field.type][0](field.name, default, declared.help)
    flags.DEFINE_boolean("list_levels", False, _LIST_LEVELS)


_define_flags()


def main(argv: list[str]) -> None:
    """Runs the mode that is asked for; exits with one line for a user's error."""
    try:
        if len(argv) > 1:
            raise UserError(f"{argv[1]!r} is not a flag; flags are written --name=value")
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)
        given = given_flags()
        if flags.FLAGS.list_levels:
            _list_levels(given.get("level_name", ""))
            return
        config_lib.refuse_meaningless(given)
        job = _JOBS[given.get("mode", "train"), given.get("job_name", "learner")]
        number = job(given)
        if number is not None:
            sys.exit(128 + number)
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:  # After a signal.
            raise
        place = traceback.extract_tb(end.__traceback__)[-1]
        message = f"{place.filename}, line {place.lineno}, called sys.exit, which ends the program"
        raise SystemExit(f"error: {message}; raise an exception there instead") from end
    except Exception as error:
        line = program.explain(error)
        if line is None:
            raise
        raise SystemExit(f"error: {line}") from error


def given_flags() -> dict[str, Any]:
    """Returns the values of the flags that were set, by name."""
    defined = {field.name: flags.FLAGS[field.name] for field in settings.FIELDS}
    given = {name: flag.value for name, flag in defined.items() if not flag.using_default_value}
    return {name: _at_home(value) for name, value in given.items()}


def _at_home(value: Any) -> Any:
    """Puts the home folder in place of a leading ~, which shells leave after --name=."""
    if isinstance(value, list):
        return [_at_home(each) for each in value]
    return os.path.expanduser(value) if isinstance(value, str) else value


def describe(field: dataclasses.Field) -> str:
    """Returns what a setting means, its possible values, and what it needs or keeps."""
    declared: settings.Setting = field.metadata["setting"]
    part, text = declared.part, [declared.help]
    if declared.range:
        text.append(f"{declared.range[0].upper()}{declared.range[1:]}.".replace(" and finite", ""))
    if len({"train", "pbt"}.intersection(part.modes)) == 1:  # Most are for both or for neither.
        text.append(f"For --mode={'|'.join(part.modes)}.")
    if part.needs:
        text.append(f"For --{part.needs}.")
    if settings.Use.RESUME in part.same_for:
        text.append("A run keeps its value.")
    return " ".join(text)


def _help() -> str:
    """Returns the list of flags by group, as docs/configuration.md has it."""
    layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, description=__doc__, formatter_class=layout, add_help=False
    )

    def add(flag: str, text: str) -> None:
        group.add_argument(flag, action="store_true", help=text.replace("%", "%%"))

    for field in settings.FIELDS:
        if field.name in GROUPS:
            group = parser.add_argument_group(GROUPS[field.name])
        default = config_lib.describe_default(field)
        text = describe(field) + (f" Default: {default}." if default else "")
        add(f"--{field.name}{_KINDS[field.type][1]}", text)
    group = parser.add_argument_group("Others")
    for flag, text in _OTHER_FLAGS.items():
        add(flag, text)
    return parser.format_help()


def _version() -> str:
    revision = git_revision()
    return f"PopArt-IMPALA {scalable_agent_popart.__version__}" + f" ({revision})" * bool(revision)


def _list_levels(level_name: str) -> None:
    if level_name:
        print("\n".join(suites.resolve(level_name).reference_scores))  # All, not only the named.
    else:
        for suite in suites.ALL:
            print(f"{suite.name}: {len(suite.tasks)} level{'s' * (len(suite.tasks) > 1)}")


def _config_to_train(given: Mapping[str, Any]) -> Config:
    """Returns the configuration of what trains or acts; its run may have begun already."""
    config = Config.from_flags(given)
    # An actor job may have no directory.
    if config.job_name == "learner" or "logdir" in given:
        if config.mode == "pbt":
            previous = PopulationDirectory(config.logdir).read_config()
        else:
            run = Run.find(config.logdir)
            # Before its first checkpoint a learner begins again, whatever the record says.
            resumes = run and (config.job_name != "learner" or run.directory.has_checkpoint)
            previous = run.config if run and resumes else None
        if previous is not None:
            config = config.resuming(previous, given)
    # A learner with actor jobs plays nothing itself.
    if config.actor_jobs or not (config.learner_address and config.job_name == "learner"):
        config.check_playable()
    return config


def _config_to_test(given: Mapping[str, Any]) -> tuple[Run, Config]:
    """Returns a run and how to test it; an evaluator waits for a run that has not begun."""
    logdir, member = given.get("logdir", flags.FLAGS.logdir), flags.FLAGS.pbt_member
    if member >= 0:
        logdir = str(PopulationDirectory(logdir).member(member).path)
    elif given.get("mode") == "pbt":
        raise UserError("an evaluator tests one member of a population: give --pbt_member")
    hours = given.get("learner_timeout_hours", flags.FLAGS.learner_timeout_hours)
    deadline = time.monotonic() + 3600 * hours
    if given.get("job_name") == "evaluator":
        while Run.find(logdir) is None and time.monotonic() < deadline:
            time.sleep(1.0)
    run = Run.open(logdir)
    config = run.config.for_test({**given, "logdir": logdir})
    config.check_playable()
    return run, dataclasses.replace(config, learner_timeout_hours=hours)


def _report(given: Mapping[str, Any]) -> None:
    """Writes a report on runs, without TensorFlow."""
    for name in ("runs", "report_dir"):
        if not given.get(name):
            raise UserError(f"--{name} is missing: --mode=report --runs=DIR,DIR --report_dir=DIR")
    from scalable_agent_popart.report import page  # noqa: PLC0415

    suite = suites.resolve(given["level_name"]) if given.get("level_name") else None
    paths, files = list(find_runs(given["runs"])), given.get("scores", ())
    measured_zero = given.get("zero") == "measured"
    written = page.write_report(paths, given["report_dir"], suite, files, measured_zero)
    for line in written.left_out:
        print(f"note: {line}", file=sys.stderr)
    print("\n".join(written.outcome))
    print(f"report written: {given['report_dir']}/report.html")


def _train(given: Mapping[str, Any]) -> int | None:
    config = _config_to_train(given)
    Run.check(config)  # Before TensorFlow takes its time to load.
    _load_tensorflow(config, f"{config.agent_name} on {config.level_name}; logs in {config.logdir}")
    from scalable_agent_popart.system import hardware  # noqa: PLC0415
    from scalable_agent_popart.training import trainer  # noqa: PLC0415

    is_default = "num_actors" not in {**given, **config.suite.defaults}
    if hardware.has_gpu() and is_default and not config.uses_port:
        config = dataclasses.replace(config, num_actors=config.suite.num_actors(with_gpu=True))
    return trainer.train(config, parts=_parts(config))


def _train_population(given: Mapping[str, Any]) -> int | None:
    """Trains all members, or the one that is named."""
    config = _config_to_train(given)
    PopulationDirectory(config.logdir).check(config)
    start = {name: v for name, v in given.items() if name in config.tuned}  # It is not sampled.
    what = f"population of {config.population_size}, {config.agent_name} on {config.level_name}"
    what += f"; logs in {config.logdir}"
    if config.pbt_member < 0:
        from scalable_agent_popart.population import train  # noqa: PLC0415

        print(what, file=sys.stderr)
        return train.train_population(config, start)
    _load_tensorflow(config, what)
    from scalable_agent_popart.population import member  # noqa: PLC0415

    return member.train_member(config, start, _parts(config), show_progress=True)


def _parts(config: Config) -> Any:
    """Returns what makes the run's actors, if they are other processes."""
    if not config.uses_port:
        return None
    from scalable_agent_popart.distributed import learner_side  # noqa: PLC0415

    return learner_side.RemoteParts()


def _act(given: Mapping[str, Any]) -> int | None:
    config = _config_to_train(given)
    learner = config.learner_address or f"the learner in {config.logdir}"
    what = f"actor job {config.task}, {config.num_actors} actors, for {learner}"
    _load_tensorflow(config, what, learns=False)
    from scalable_agent_popart.distributed import actor_side  # noqa: PLC0415

    if config.pbt_member >= 0:
        population = PopulationDirectory(config.logdir)
        config = population.member_config(config, config.pbt_member, {})
    return actor_side.run_actor_job(config, show_progress=True)


def _test(given: Mapping[str, Any]) -> None:
    """Tests a run once, or as an evaluator again and again while it trains."""
    run, config = _config_to_test(given)
    follows = given.get("job_name") == "evaluator"
    what = f"{'evaluator' if follows else 'test'} of {config.agent_name} in {config.logdir}"
    _load_tensorflow(config, what, learns=False)
    from scalable_agent_popart.evaluation import evaluate  # noqa: PLC0415

    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup SIGHUP stays ignored, so that closing the terminal does not end the test.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    if follows:
        evaluate.follow(run, config)
    else:
        evaluate.Tester(run, config).test()


def _load_tensorflow(config: Config, what: str, learns: bool = True) -> None:
    """Prints what this process is about to do, loads TensorFlow, and chooses its devices."""
    from scalable_agent_popart.system import signals, tensorflow_import  # noqa: PLC0415

    print(f"{what}: loading TensorFlow", file=sys.stderr)
    signals.end_at_ctrl_c()
    tensorflow_import.import_quietly()
    signals.raise_at_ctrl_c()
    from scalable_agent_popart.system import hardware  # noqa: PLC0415

    # Only a learner demands a GPU, although all jobs and tests may have its flags.
    hardware.prepare_process(config.gpus if learns else -abs(config.gpus))


# The function of a process, by its mode and its job; it returns the signal that ended it, if any.
_JOBS: dict[tuple[str, str], Callable[[Mapping[str, Any]], int | None]] = {
    ("train", "learner"): _train,
    ("train", "actor"): _act,
    ("pbt", "learner"): _train_population,
    ("pbt", "actor"): _act,
    ("test", "learner"): _test,
    ("report", "learner"): _report,
    **{(mode, "evaluator"): _test for mode in settings.EVALUATED},
}


def _parse_flags(argv: list[str]) -> list[str]:
    words = list(itertools.takewhile(lambda word: word != "--", argv[1:]))
    for pattern, make in ((_HELP, _help), (_VERSION, _version)):
        if any(map(pattern.fullmatch, words)):
            print(make())
            sys.exit()
    return flags.FLAGS(argv)


if __name__ == "__main__":
    terminal.outlive_terminal()
    # The parent may ignore SIGTERM, and this program would inherit that until it is ready to save.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    program.run(main, _parse_flags)

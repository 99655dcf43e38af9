"""Benchmarks: their tasks, how they are played and scored, and what `--level_name` calls them.

A suite knows its own benchmark and the environment contract, nothing of agents, flags or runs.
In goes a `--level_name`, which `resolve` turns into a `Suite`; out come the environments that it
makes. Suites from outside of the package are described in `docs/own_suite.md`.
"""

import difflib
import functools
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.scores import Aggregate, ReferenceScore
from scalable_agent_popart.suites import catch, cluttered_catch
from scalable_agent_popart.suites.atari import atari57
from scalable_agent_popart.suites.dmlab import dmlab30
from scalable_agent_popart.suites.search_space import OneOf
from scalable_agent_popart.suites.suite import EnvironmentOptions, Suite

# The fields of a suite from outside of the package that a record holds as they are.
_DESCRIBED = (
    *("name", "title", "module", "action_sets", "num_channels", "stacks_frames"),
    *("has_instructions", "scalable", "headline", "full_score", "total_frames"),
    *("usual_num_actors", "defaults", "own_flags", "test_versions"),
)
_OLD_NAMES = {"clutter": "cluttered_catch"}  # Of tasks, in older records.
_SUITE_NAME = re.compile(r"[\w.-]+", re.ASCII)  # Files of reports begin with it.
ALL = (atari57.SUITE, catch.SUITE, cluttered_catch.SUITE, dmlab30.SUITE)


def resolve(level_name: str) -> Suite:
    """Returns the suite that `--level_name` asks for, with the named tasks in play.

    That is a suite (`atari57`), a task (`pong`), or tasks of one suite, separated by commas. Every
    level of DeepMind Lab counts as a task of dmlab30. For the `SUITE` of a Python module, the
    module and a colon come first (`my_tasks:left,right`).

    Raises UserError if a name is unknown, named twice, or not of the same suite as the others, or
    if a suite from outside of the package cannot be loaded.
    """
    module, _, listed = level_name.rpartition(":")
    names = [name.strip() for name in listed.split(",")]
    suites: tuple[Suite, ...] = ALL
    broken: list[str] = []  # Why other packages' suites, one of which may be meant, are not there.
    if module:
        if os.getcwd() not in sys.path:  # Child processes get `sys.path`, too.
            sys.path.append(os.getcwd())
        suite = _load(lambda: importlib.import_module(module).SUITE, f"the SUITE of {module}")
        suites = (replace(suite, module=module),)
    elif not all(map(_is_of_the_package, names)):
        entries = importlib.metadata.entry_points(group="scalable_agent_popart.suites")
        # Other packages' suites of the given names, or else all, one of which may have the tasks.
        for entry in [entry for entry in entries if entry.name in names] or entries:
            source = f"the suite {entry.name}, registered as {entry.value},"
            try:
                suite = _load(entry.load, source)
                if suite.name != entry.name:
                    raise UserError(f"--level_name: {source} must have that name, not {suite.name}")
                suites += (suite,)
            except UserError as error:
                if entry.name in names:
                    raise
                broken.append(str(error).removeprefix("--level_name: "))
    for suite in suites:
        if names == [suite.name]:
            return suite
    suite_of = {}
    for name in names:
        suite, task = _find(name, suites, broken)
        if task in suite_of:
            raise UserError(f"--level_name names {task} more than once")
        suite_of[task] = suite
    if len({suite.name for suite in suite_of.values()}) > 1:
        listing = ", ".join(f"{task} ({suite.name})" for task, suite in suite_of.items())
        raise UserError(f"--level_name mixes tasks of different suites: {listing}")
    return suite.select(suite_of)


def _is_of_the_package(name: str) -> bool:
    return any(
        name in (suite.name, *suite.tasks) or bool(name and suite.other_tasks(name))
        for suite in ALL
    )


def _find(name: str, suites: Sequence[Suite], broken: Sequence[str]) -> tuple[Suite, str]:
    """Returns the suite that a task belongs to, and the task's own name.

    Raises UserError, which also says what is `broken`, if there is no such task.
    """
    suite_names = [suite.name for suite in suites]
    if name in suite_names:
        raise UserError(f"--level_name: {name} is a whole suite and cannot stand in a list")
    for suite in suites:
        if name in suite.reference_scores:
            return suite, name
    for suite in suites if name else ():
        if task := suite.other_tasks(name):
            return suite, task
    candidates = {*suite_names, *(task for suite in suites for task in suite.tasks)}
    # Gymnasium's PongNoFrameskip-v4, Pong-ram-v4 and ALE/Pong-v5 are pong here.
    other = re.fullmatch(r"(?:\w+/)?(\w+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+", name)
    meant = re.sub("(?<!^)(?=[A-Z])", "_", other[1]).lower() if other else name
    near = difflib.get_close_matches(meant, sorted(candidates), n=3)
    if meant in candidates:
        hint = f"did you mean {meant}?"
    elif near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        reasons = [suite.why_unknown(name) for suite in suites if name]
        hint = "; ".join([f"suites: {', '.join(suite_names)}", *filter(None, reasons)])
    raise UserError("; ".join([f"--level_name: there is no level {name!r}", hint, *broken]))


def _load(load: Callable[[], Any], source: str) -> Suite:
    """Loads a suite from outside of the package; `source` names it in messages."""
    try:
        suite = load()
        if not isinstance(suite, Suite):
            problem = f"must be a scalable_agent_popart.suites.Suite, not {type(suite).__name__}"
        elif suite.name in (own.name for own in ALL):
            problem = f"must not be named {suite.name}, as a suite of the package is"
        else:
            problem = _fault_of_names(suite) or _fault_of_scores(suite)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"--level_name: {source} cannot be loaded ({reason})") from error
    if problem:
        raise UserError(f"--level_name: {source} {problem}")
    return suite


def _fault_of_names(suite: Suite) -> str:
    """Returns what the names of a suite must be and are not; empty if they are fine."""
    names = (suite.name, *suite.tasks)
    if not all(isinstance(name, str) and name.isprintable() for name in names):
        return "must have names of printable text"
    if not _SUITE_NAME.fullmatch(suite.name):
        return f"must have a name of letters, digits, '.', '_' and '-', not {suite.name!r}"
    if any(set(",: ") & set(name) or not name for name in suite.tasks):
        return "must have tasks with names, without commas, colons and spaces"
    if len(set(suite.tasks)) < len(suite.tasks) or not suite.tasks:
        return "must have tasks, each of them once"
    return ""


def _fault_of_scores(suite: Suite) -> str:
    """Returns what else a suite must be and is not, which concerns scores most of all."""
    if set(suite.tasks) != set(suite.reference_scores):
        return "must have reference scores of all its tasks, or of none"
    for task, score in (*suite.reference_scores.items(), *suite.human_starts_scores.items()):
        if not isinstance(score, ReferenceScore):
            return f"must have a ReferenceScore of {task}, not {score!r}"
        if not np.isfinite(score).all() or score.random == score.human:
            numbers = f"{score.random:g} and {score.human:g} for {task}"
            return f"must have reference scores of two different finite numbers, not {numbers}"
    if suite.stacks_frames and suite.num_channels != 1:
        return f"must have images of one channel to stack them, not of {suite.num_channels}"
    if suite.headline not in Aggregate._fields:
        return f"must have a headline of {', '.join(Aggregate._fields)}, not {suite.headline}"
    return ""


def describe(suite: Suite, options: EnvironmentOptions) -> dict[str, Any]:
    """Returns what the record of a run with these options holds of its suite; see `recorded`."""
    if suite.name in (own.name for own in ALL):
        return {"name": suite.name}
    values = {name: getattr(suite, name) for name in _DESCRIBED}
    return {
        **{name: dict(v) if isinstance(v, Mapping) else v for name, v in values.items()},
        "every_task": list(suite.reference_scores),
        "reference_scores": suite.reference_scores if suite.normalised else {},
        "human_starts_scores": suite.human_starts_scores,
        "search_space": list(suite.search_space),
        "remarks": dict(suite.remarks(options)),
    }


def recorded(record: Mapping[str, Any], own: Suite | None = None) -> Suite:
    """Returns the suite of a run's record, with the record's tasks in play, in its order.

    Nothing is imported that the record names, as whoever can write a record would have it executed.
    So a suite from outside of the package is as it was described, and has no environments. Records
    of older versions do not describe it, and `own`, which the command itself names, is taken.

    Raises UserError if that is another suite or None, and `runs.json_lines.DAMAGE` as it comes.
    """
    level_name, described = record["flags"]["level_name"], record.get("suite")
    if described is None:
        suite = _undescribed(level_name, own)
        tasks = record.get("tasks", suite.tasks)
        return suite.select(tasks) if set(tasks) == set(suite.tasks) else suite
    for suite in ALL:
        if suite.name == described["name"]:
            break
    else:
        values = {name: described[name] for name in _DESCRIBED}
        for name in ("reference_scores", "human_starts_scores"):
            own_scores = {t: ReferenceScore(*map(float, v)) for t, v in described[name].items()}
            values[name] = own_scores
        suite = Suite(
            **values,
            tasks=described["every_task"],
            search_space=dict.fromkeys(described["search_space"], OneOf(())),
            remarks=functools.partial(_recorded_remarks, dict(described["remarks"])),
            environment_factory=_refuse_to_play,
        )
        if problem := _fault_of_scores(suite):
            raise ValueError(f"its suite {problem}")
    suite = suite.select(record["tasks"])
    if problem := _fault_of_names(suite):
        raise ValueError(f"its suite {problem}")
    return suite


def _undescribed(level_name: str, own: Suite | None) -> Suite:
    """Returns the suite of a record of an older version, see `recorded`."""
    module, _, listed = level_name.rpartition(":")
    names = [_OLD_NAMES.get(name, name) for name in listed.split(",")]
    # Any other level might be one of DeepMind Lab, and its engine would have to be asked.
    known = () if module else ALL
    for suite in (*known, own) if own is not None and own.module == module else known:
        if names == [suite.name]:
            return suite.select(suite.reference_scores)
        if set(names) <= {*suite.reference_scores, *suite.more_tasks, *suite.tasks}:
            return suite.select(names)
    raise UserError(
        "it was made by an older version, which recorded nothing of its suite; give "
        f"--level_name={level_name}, if you trust what that is"
    )


def _recorded_remarks(remarks: Mapping[str, str], _: EnvironmentOptions) -> Mapping[str, str]:
    return remarks


def _refuse_to_play(*_: Any) -> Any:
    raise AssertionError("a suite of a record is only to be read")


__all__ = ["ALL", "EnvironmentOptions", "Suite", "describe", "recorded", "resolve"]

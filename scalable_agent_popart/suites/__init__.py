"""Benchmarks: their tasks, how they are played and scored, and what `--level_name` calls them.

A suite knows its own benchmark and the environment contract, nothing of agents, flags or runs.
`resolve` turns a `--level_name` into a `Suite`, which makes the environments. Suites from outside
of the package are described in `docs/own_suite.md`.
"""

import difflib
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.scores import Aggregate, ReferenceScore
from scalable_agent_popart.suites import catch, checked, cluttered_catch
from scalable_agent_popart.suites.atari import atari57
from scalable_agent_popart.suites.dmlab import dmlab30
from scalable_agent_popart.suites.suite import MINIMAL, EnvironmentOptions, Suite

_SUITE_NAME = re.compile(r"[\w.-]+", re.ASCII)  # Files of reports begin with it.
_OWN_MODULES = ("environments", "experiment", "popart", "vtrace")
ALL = (atari57.SUITE, catch.SUITE, cluttered_catch.SUITE, dmlab30.SUITE)


def resolve(level_name: str) -> Suite:
    """Returns the suite that `--level_name` asks for, with the named tasks in play.

    It names a suite (`atari57`), a task (`pong`), or tasks of one suite, separated by commas. A
    Python module and a colon come before tasks of its `SUITE` (`my_tasks:left,right`). Every level
    of DeepMind Lab counts as a task of dmlab30. Raises UserError if a name is unknown, named twice,
    or of another suite than the rest, and if a suite cannot be loaded.
    """
    module, _, listed = level_name.rpartition(":")
    names = [name.strip() for name in listed.split(",")]
    suites: tuple[Suite, ...] = ALL
    broken: list[str] = []  # Reasons why other packages' suites, which may be meant, are missing.
    if module in _OWN_MODULES:
        raise UserError(f"--level_name: {module} is a module of this program; rename yours")
    if module:
        if os.getcwd() not in sys.path:  # Child processes get `sys.path`, too.
            sys.path.append(os.getcwd())
        suite = _load(lambda: importlib.import_module(module).SUITE, f"the SUITE of {module}")
        suites = (replace(suite, module=module),)
    elif not all(map(_is_of_the_package, names)):
        entries = importlib.metadata.entry_points(group="scalable_agent_popart.suites")
        # If no suite has a given name, any of them may have the tasks.
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
    return any(name in (own.name, *own.tasks) or (name and own.other_tasks(name)) for own in ALL)


def is_outside(suite: Suite) -> bool:
    """Returns whether playing would load a module, or a level that the package does not know."""
    known = {own.name: {*own.reference_scores, *own.more_tasks} for own in ALL}
    return not known.get(suite.name, set()) >= {*suite.tasks}


def _find(name: str, suites: Sequence[Suite], broken: Sequence[str]) -> tuple[Suite, str]:
    """Returns a task's suite and own name; raises UserError, also about what is `broken`."""
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
    module = name.removesuffix(".py")
    if module.isidentifier() and os.path.exists(f"{module}.py"):
        hint = f"for the suite of {module}.py give {module}:NAME, with the suite's name"
    elif near:
        hint = f"did you mean {' or '.join([meant] if meant in near else near)}?"
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
            problem = fault_of_names(suite) or fault_of_contents(suite)
    except (Exception, SystemExit) as error:
        why = checked.describe(error)
        raise UserError(f"--level_name: {source} cannot be loaded ({why})") from error
    if problem:
        raise UserError(f"--level_name: {source} {problem}")
    return suite


def fault_of_names(suite: Suite) -> str:
    """Returns what is wrong with the names of a suite; empty if they are fine."""
    names = (suite.name, *suite.tasks, *suite.test_versions.values())
    if not all(isinstance(name, str) and name.isprintable() for name in names):
        return "must have names of printable text"
    if not _SUITE_NAME.fullmatch(suite.name):
        return f"must have a name of letters, digits, '.', '_' and '-', not {suite.name!r}"
    if any(set(",: ") & set(name) or not name for name in suite.tasks):
        return "must have tasks with names, without commas, colons and spaces"
    if len(set(suite.tasks)) < len(suite.tasks) or not suite.tasks:
        return "must have tasks, each of them once"
    return ""


def fault_of_contents(suite: Suite) -> str:
    """Returns what is wrong with the scores and other fields of a suite; empty if they are fine."""
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


__all__ = ["ALL", "MINIMAL", "EnvironmentOptions", "Suite", "is_outside", "resolve"]

"""Benchmarks: their tasks, how they are played and scored, and what `--level_name` calls them.

A suite knows its own benchmark and the environment contract, nothing of agents, flags or runs.
`resolve` turns a `--level_name` into a `Suite`, which makes the environments. Suites from outside
of the package are described in `docs/own_suite.md`.
"""

import difflib
import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import catch, cluttered_catch
from scalable_agent_popart.suites.atari import atari57
from scalable_agent_popart.suites.dmlab import dmlab30
from scalable_agent_popart.suites.suite import MINIMAL, EnvironmentOptions, Suite
from scalable_agent_popart.system import outside

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
    if module:
        loaded = outside.load("level_name", module, "SUITE")
        suites = (replace(_check(loaded, f"the SUITE of {module}"), module=module),)
    elif not all(any(name == s.name or _task(s, name) for s in ALL) for name in names):
        entries = importlib.metadata.entry_points(group="scalable_agent_popart.suites")
        # If no suite has a given name, any of them may have the tasks.
        for entry in [entry for entry in entries if entry.name in names] or entries:
            source = f"the suite {entry.name}, registered as {entry.value},"
            try:
                loaded = outside.call(entry.load, f"--level_name: {source} cannot be loaded")
                suites += (_check(loaded, source, entry.name),)
            except UserError as error:
                if entry.name in names:
                    raise
                broken.append(str(error).removeprefix("--level_name: "))
    for suite in suites:
        if names == [suite.name]:
            return suite
    suite_of: dict[str, Suite] = {}
    for name in names:
        for suite in suites:
            if task := _task(suite, name):
                break
        else:
            raise UserError("; ".join([f"--level_name: {_explain(name, suites)}", *broken]))
        if task in suite_of:
            raise UserError(f"--level_name names {task} more than once")
        suite_of[task] = suite
    if len({suite.name for suite in suite_of.values()}) > 1:
        listing = ", ".join(f"{task} ({suite.name})" for task, suite in suite_of.items())
        raise UserError(f"--level_name mixes tasks of different suites: {listing}")
    return suite.select(suite_of)


def is_outside(suite: Suite) -> bool:
    """Returns whether playing would load a module, or a level that the package does not know."""
    known = {each.name: {*each.reference_scores, *each.more_tasks} for each in ALL}
    return not known.get(suite.name, set()) >= {*suite.tasks}


def _task(suite: Suite, name: str) -> str | None:
    """Returns the task of a suite that a name or alias stands for, if any."""
    if name in suite.reference_scores:
        return name
    return suite.other_tasks(name) if name else None


def _explain(name: str, suites: Sequence[Suite]) -> str:
    """Returns what is wrong with a name that is no task of these suites, and what may be meant."""
    suite_names = [suite.name for suite in suites]
    if name in suite_names:
        return f"{name} is a whole suite and cannot stand in a list"
    candidates = {*suite_names, *(task for suite in suites for task in suite.tasks)}
    # Gymnasium's PongNoFrameskip-v4, Pong-ram-v4 and ALE/Pong-v5 are pong here.
    other = re.fullmatch(r"(?:\w+/)?(\w+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+", name)
    meant = re.sub("(?<!^)(?=[A-Z])", "_", other[1]).lower() if other else name
    near = difflib.get_close_matches(meant, sorted(candidates), n=3)
    if near:
        hint = f"did you mean {' or '.join([meant] if meant in near else near)}?"
    else:
        reasons = [suite.why_unknown(name) for suite in suites if name]
        hint = "; ".join([f"suites: {', '.join(suite_names)}", *filter(None, reasons)])
    return f"there is no level {name!r}; {hint}"


def _check(suite: Any, source: str, name: str = "") -> Suite:
    """Returns a suite from outside of the package; `source` names the suite in messages."""
    if not isinstance(suite, Suite):
        problem = f"be a scalable_agent_popart.suites.Suite, not {type(suite).__name__}"
    elif suite.name in (each.name for each in ALL):
        problem = f"not be named {suite.name}, as a suite of the package is"
    elif name and suite.name != name:
        problem = f"have that name, not {suite.name}"
    elif set(suite.tasks) != set(suite.reference_scores):
        problem = "have reference scores of all its tasks, or of none"
    elif suite.stacks_frames and suite.num_channels != 1:
        problem = f"have images of one channel to stack them, not of {suite.num_channels}"
    else:
        return suite
    raise UserError(f"--level_name: {source} must {problem}")


__all__ = ["ALL", "MINIMAL", "EnvironmentOptions", "Suite", "is_outside", "resolve"]

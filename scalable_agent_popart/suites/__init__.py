"""The benchmarks an agent can be trained on, and how `--level_name` names them."""

import difflib

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import catch, cluttered_catch
from scalable_agent_popart.suites.atari import atari57
from scalable_agent_popart.suites.dmlab import dmlab30
from scalable_agent_popart.suites.suite import EnvironmentOptions, Suite

ALL = (atari57.SUITE, catch.SUITE, cluttered_catch.SUITE, dmlab30.SUITE)


def resolve(level_name: str) -> Suite:
    """The suite that `--level_name` asks for, with the named tasks in play.

    Args:
      level_name: a suite (`atari57`), a task (`pong`), or tasks of one suite, separated by
        commas (`pong,boxing`). Every level of DeepMind Lab counts as a task of dmlab30.

    Raises:
      UserError: if a name is unknown, named twice, or not of the same suite as the others.
    """
    for suite in ALL:
        if level_name == suite.name:
            return suite
    found = [_find(name.strip()) for name in level_name.split(",")]
    owners, tasks = [suite for suite, _ in found], [task for _, task in found]
    repeated = sorted({task for task in tasks if tasks.count(task) > 1})
    if repeated:
        raise UserError(f"--level_name names {', '.join(repeated)} more than once")
    if len({suite.name for suite in owners}) > 1:
        listing = ", ".join(
            f"{task} ({suite.name})" for task, suite in zip(tasks, owners, strict=True)
        )
        raise UserError(f"--level_name mixes tasks of different suites: {listing}")
    return owners[0].select(tasks)


def _find(name: str) -> tuple[Suite, str]:
    """The suite that a task belongs to, and the task's own name."""
    suite_names = [suite.name for suite in ALL]
    if name in suite_names:
        raise UserError(f"--level_name: {name} is a whole suite and cannot stand in a list")
    for suite in ALL if name else ():
        task = suite.find(name)
        if task is not None:
            return suite, task
    candidates = {*suite_names, *(task for suite in ALL for task in suite.tasks)}
    near = difflib.get_close_matches(name, sorted(candidates), n=3)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        reasons = [suite.why_unknown(name) for suite in ALL if name]
        hint = "; ".join([f"suites: {', '.join(suite_names)}", *filter(None, reasons)])
    raise UserError(f"--level_name: there is no level {name!r}; {hint}")


__all__ = ["ALL", "EnvironmentOptions", "Suite", "resolve"]

"""Which returns count in the end: of whole tests, or else those at the end of training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalable_agent_popart.report.comparison import Agent, Comparison
from scalable_agent_popart.report.records import RECENT_EPISODES
from scalable_agent_popart.report.runs import Run
from scalable_agent_popart.suites import Suite

# A run counts beside another of its agent that has come so much farther at most.
_COMPARABLE = 0.9


@dataclass(frozen=True)
class Column:
    """A column of Table 1: how final policies are tested.

    Attributes:
      name: `noop` or `human` (starts), `train` or `test` (levels).
      title: the paper's words for it.
      starts: how episodes begin.
      held_out: whether held-out versions are played of the levels that have one.
      trained_on: whether it is what agents train on, so that returns of training may stand in.
    """

    name: str
    title: str
    starts: str = "noop"
    held_out: bool = False
    trained_on: bool = False

    def level(self, suite: Suite, task: str) -> str:
        """The level that tests a task."""
        return suite.test_version(task) if self.held_out else task


def columns(suite: Suite) -> list[Column]:
    """The columns that Table 1 has, or would have, of a benchmark."""
    if suite.test_versions:
        train = Column("train", "train levels", trained_on=True)
        return [train, Column("test", "test levels", held_out=True)]
    if not suite.human_starts_scores:
        return [Column("noop", "test", trained_on=True)]
    random = Column("noop", "random starts", trained_on=True)
    return [random, Column("human", "human starts", starts="human")]


@dataclass(frozen=True)
class Final:
    """How a run's policy scored in a test, or else at last in training.

    Attributes:
      frames: environment frames it was trained for.
      returns: raw, of every task in play.
      tested: whether in a test.
    """

    frames: int
    returns: dict[str, np.ndarray]
    tested: bool

    @property
    def num_episodes(self) -> int:
        """Of all tasks together."""
        return sum(len(own) for own in self.returns.values())


@dataclass(frozen=True)
class Finals:
    """What counts under one column's protocol.

    Attributes:
      of_agents: each agent that has any, with those of its runs; all tested or none.
      left_out: a line for each run whose returns do not count, with the reason.
    """

    of_agents: list[tuple[Agent, list[Final]]]
    left_out: list[str]


def final_returns(comparison: Comparison, column: Column) -> Finals:
    """Chooses, of each run of each agent, the returns that are compared.

    Every agent is compared on all tasks in play: a test of some of them does not count. Where a
    run of an agent was tested, untested ones do not count, nor do runs that lag far behind.
    """
    of_agents, left_out = [], []
    for agent in comparison.agents:
        chosen: list[tuple[Run, Final]] = []
        for run in agent.runs:
            final = _test(run, comparison.suite, column)
            if final is None and column.trained_on:
                final = _end_of_training(run, comparison.suite)
            if final is not None:
                chosen.append((run, final))
            reason = _missing(run, comparison.suite, column, final)
            left_out += [f"{run.path}: {reason}"] if reason else []
        own, reasons = _comparable(agent, chosen)
        left_out += reasons
        if own:
            of_agents.append((agent, own))
    return Finals(of_agents, left_out)


def _test(run: Run, suite: Suite, column: Column) -> Final | None:
    """The newest test of all tasks, the longest if there are several."""
    found = []
    for test in run.evaluations:
        levels = {task: column.level(suite, task) for task in suite.tasks}
        if test.starts == column.starts and set(levels.values()) <= set(test.returns):
            returns = {task: test.returns[level] for task, level in levels.items()}
            found.append(Final(test.frames, returns, tested=True))
    newest_then_longest = sorted(found, key=lambda own: (own.frames, own.num_episodes))
    return newest_then_longest[-1] if found else None


def _end_of_training(run: Run, suite: Suite) -> Final | None:
    by_task = run.episodes.groupby("task", observed=True)["episode_return"]
    latest = {str(task): values.to_numpy()[-RECENT_EPISODES:] for task, values in by_task}
    if not set(suite.tasks) <= set(latest):
        return None
    return Final(run.frames, {task: latest[task] for task in suite.tasks}, tested=False)


def _missing(run: Run, suite: Suite, column: Column, final: Final | None) -> str | None:
    """What to say of a run's tests that do not count, and of a run that has no final returns."""
    levels = {column.level(suite, task) for task in suite.tasks}
    covered = [
        len(levels & set(test.returns)) for test in run.evaluations if test.starts == column.starts
    ]
    if any(covered) and (final is None or not final.tested):
        return (
            f"tested on {max(covered)} of {len(levels)} tasks only, which does not count here "
            "(--level_name compares some tasks)"
        )
    if final is None and column.trained_on:
        played = set(run.episodes["task"].unique())
        return f"no episode yet of {len(set(suite.tasks) - played)} of {len(suite.tasks)} tasks"
    return None


def _comparable(agent: Agent, chosen: Sequence[tuple[Run, Final]]) -> tuple[list[Final], list[str]]:
    """Those of an agent's runs that can be averaged, and why the others cannot."""
    tested = any(final.tested for _, final in chosen)
    farthest = max((final.frames for _, final in chosen if final.tested == tested), default=0)
    kept, reasons = [], []
    for run, final in chosen:
        if final.tested != tested:
            reasons.append(f"{run.path}: not tested yet, as other runs of {agent.label} are")
        elif final.frames < _COMPARABLE * farthest:
            reasons.append(
                f"{run.path}: at {final.frames:,} frames, and another run of {agent.label} is at "
                f"{farthest:,}"
            )
        else:
            kept.append(final)
    return kept, reasons

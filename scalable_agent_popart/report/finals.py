"""Scores at the end: the tables behind the paper's Table 1 and its Figures 7 and 8."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scalable_agent_popart import intervals, scores
from scalable_agent_popart.report import published
from scalable_agent_popart.report.comparison import Agent, Comparison
from scalable_agent_popart.report.curves import RECENT_EPISODES
from scalable_agent_popart.report.runs import Run
from scalable_agent_popart.suites import Suite


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
    random = Column("noop", "random starts", trained_on=True)
    human = Column("human", "human starts", starts="human")
    return [random, human] if suite.human_starts_scores else [random]


@dataclass(frozen=True)
class Final:
    """How a run's policy scored in a test, or else at last in training.

    Attributes:
      frames: environment frames it was trained for.
      returns: raw, by task.
      tested: whether in a test.
    """

    frames: int
    returns: dict[str, np.ndarray]
    tested: bool


class Finals:
    """The final scores of all agents of a comparison under one column's protocol.

    Attributes:
      tasks: those in play that all runs have final scores of.
    """

    def __init__(self, comparison: Comparison, column: Column):
        self._suite = comparison.suite
        self._column = column
        self._references = self._suite.references(column.starts)
        found = [
            (agent, [_final(run, self._suite, column) for run in agent.runs])
            for agent in comparison.agents
        ]
        # Runs that were not tested say nothing of their agent.
        self._found = [
            (agent, [final for final in own if final is not None])
            for agent, own in found
            if any(final is not None for final in own)
        ]
        every = [final.returns for _, own in self._found for final in own]
        self.tasks = [
            task for task in self._suite.tasks if every and all(task in own for own in every)
        ]

    @property
    def complete(self) -> bool:
        """Whether all tasks of the benchmark are compared, as far as there are final scores."""
        return set(self.tasks or self._suite.tasks) == set(self._suite.reference_scores)

    def table_1(self) -> pd.DataFrame:
        """Aggregate scores in percent, ours beside the published ones; a row an agent.

        `score` is the benchmark's usual aggregate over `tasks`, as a mean over runs; `low` and
        `high` its 95% interval, over seeds or over the episodes of a single run; `lowest` and
        `highest` those of single runs. `published` is the paper's if all tasks of the benchmark
        are in, or computed from the published scores of the same tasks.
        """
        scored = [task for task in self.tasks if task in self._suite.reference_scores]
        rows = [self._aggregate_row(agent, own, scored) for agent, own in self._found if scored]
        raw = published.impala_by_level(self._suite.name, self._column.name)
        if raw and scored:
            own = {level: [raw[level]] for level in map(self._level, scored)}
            aggregate = scores.aggregate_returns(own, self._references)
            values = aggregate._asdict() if aggregate else {}
            rows.append(
                {"agent": published.IMPALA, **values, "published": values[self._suite.headline]}
            )
        names = ["agent", "column", "tasks", "source", "runs", "frames", "episodes", "score"]
        names += ["low", "high", "lowest", "highest", *scores.Aggregate._fields, "published"]
        table = pd.DataFrame(rows, columns=names)
        return _with_counts(table.assign(column=self._column.name, tasks=len(scored)))

    def breakdown(self) -> pd.DataFrame:
        """Scores by level, a row a level and agent, published agents too.

        `low` and `high` of a normalised score are its 95% interval over the episodes of a single
        run, or the lowest and highest of several runs.
        """
        raw = published.impala_by_level(self._suite.name, self._column.name)
        rows: list[dict[str, Any]] = []
        for task in self.tasks:
            level = self._level(task)
            rows += [self._level_row(agent, own, task) for agent, own in self._found]
            if level in raw:
                row = {"agent": published.IMPALA, "level": level, "source": "published"}
                rows.append(
                    {
                        **row,
                        "mean_return": raw[level],
                        "normalised": self._percent(level, raw[level]),
                    }
                )
        names = ["agent", "level", "source", "runs", "episodes", "mean_return", "normalised"]
        return _with_counts(pd.DataFrame(rows, columns=[*names, "low", "high"]))

    def _aggregate_row(
        self, agent: Agent, own: Sequence[Final], tasks: Sequence[str]
    ) -> dict[str, Any]:
        headline = self._suite.headline
        returns = [{self._level(task): final.returns[task] for task in tasks} for final in own]
        aggregates = [scores.aggregate_returns(of_run, self._references) for of_run in returns]
        by_run = [getattr(aggregate, headline) for aggregate in aggregates]
        if len(own) > 1:
            interval = intervals.over_seeds(by_run)
        else:
            of_episodes = intervals.of_aggregates(returns[0], self._references)
            interval = of_episodes[headline] if of_episodes else None
        means = np.mean(np.array(aggregates), axis=0)
        return {
            **self._source(agent, own),
            "frames": min(final.frames for final in own),
            "episodes": min(len(final.returns[task]) for final in own for task in tasks),
            "score": np.mean(by_run),
            **dict(zip(("low", "high"), interval or (None, None), strict=True)),
            "lowest": min(by_run),
            "highest": max(by_run),
            **dict(zip(scores.Aggregate._fields, means, strict=True)),
            "published": self._published(agent),
        }

    def _level_row(self, agent: Agent, own: Sequence[Final], task: str) -> dict[str, Any]:
        level = self._level(task)
        means = [float(np.mean(final.returns[task])) for final in own]
        spread = (min(means), max(means))
        if len(own) == 1:
            spread = intervals.of_mean(own[0].returns[task]) or spread
        return {
            **self._source(agent, own),
            "level": level,
            "episodes": min(len(final.returns[task]) for final in own),
            "mean_return": np.mean(means),
            "normalised": self._percent(level, float(np.mean(means))),
            "low": self._percent(level, spread[0]),
            "high": self._percent(level, spread[1]),
        }

    def _source(self, agent: Agent, own: Sequence[Final]) -> dict[str, Any]:
        source = "test" if all(final.tested for final in own) else "training"
        return {"agent": agent.label, "source": source, "runs": len(own)}

    def _published(self, agent: Agent) -> float | None:
        """The paper's score of the same agent on the same tasks."""
        config, usual = agent.config, self._suite.defaults
        if not self.complete or config.action_set != usual["action_set"]:
            return None
        cell = (self._suite.name, config.reward_clipping, self._column.name, agent.name)
        return published.aggregate(*cell)

    def _level(self, task: str) -> str:
        return self._column.level(self._suite, task)

    def _percent(self, level: str, score: float) -> float | None:
        reference = self._references.get(level)
        return None if reference is None else scores.normalise(score, reference)


def _with_counts(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its counts as whole numbers, which published agents have none of."""
    counts = [name for name in ("runs", "frames", "episodes") if name in table]
    return table.astype(dict.fromkeys(counts, "Int64"))


def _final(run: Run, suite: Suite, column: Column) -> Final | None:
    """A run's final returns under a column's protocol, of as many tasks as there are.

    Of several tests that with the most tasks counts, then the newest, then the longest.
    """
    tests = []
    for evaluation in run.evaluations:
        of_task = {task: evaluation.returns.get(column.level(suite, task)) for task in suite.tasks}
        returns = {task: values for task, values in of_task.items() if values is not None}
        if evaluation.starts == column.starts and returns:
            size = sum(len(values) for values in returns.values())
            rank = (len(returns), evaluation.frames, size)
            tests.append((rank, Final(evaluation.frames, returns, tested=True)))
    if tests:
        return max(tests, key=lambda test: test[0])[1]
    if not column.trained_on:
        return None
    by_task = run.episodes.groupby("task", observed=True)["episode_return"]
    latest = {str(task): values.to_numpy()[-RECENT_EPISODES:] for task, values in by_task}
    returns = {task: latest[task] for task in suite.tasks if task in latest}
    return Final(run.frames, returns, tested=False) if returns else None

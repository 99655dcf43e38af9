"""The tables behind the paper's Table 1 and its Figures 8 and 9."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalable_agent_popart import intervals, scores
from scalable_agent_popart.report import published
from scalable_agent_popart.report.comparison import Agent, Comparison
from scalable_agent_popart.report.finals import Column, Final, Finals

_AGGREGATES = scores.Aggregate._fields


class FinalScores:
    """Scores of the final returns that count under one column's protocol.

    Attributes:
      complete: whether all tasks of the benchmark are compared.
      inverted: levels whose published human does worse than random play.
    """

    def __init__(self, comparison: Comparison, column: Column, finals: Finals):
        self._suite = suite = comparison.suite
        self._column = column
        self._of_agents = finals.of_agents
        self._references = suite.references(column.starts)
        # Levels outside of the benchmark have no reference scores.
        self._scored = [task for task in suite.tasks if task in suite.reference_scores]
        self.complete = set(self._scored) == set(suite.reference_scores)
        self.inverted = [
            level
            for level in map(self._level, self._scored)
            if self._references[level].human < self._references[level].random
        ]

    def table_1(self) -> pd.DataFrame:
        """Aggregate scores in percent, ours beside the published ones; a row an agent.

        `score` is the benchmark's usual aggregate as a mean over runs; `low` and `high` its 95%
        interval, over seeds or over the episodes of a single run; `lowest` and `highest` those
        of single runs; `rerun_low` and `rerun_high` the interval for the mean of as many new
        runs. `published` is the paper's if all tasks of the benchmark are in, or
        computed from published scores of the same tasks.
        """
        rows = [self._aggregate_row(*found) for found in self._of_agents if self._scored]
        theirs = self._impala()
        if theirs is not None:
            headline = getattr(theirs, self._suite.headline)
            rows.append({"agent": published.IMPALA, **theirs._asdict(), "published": headline})
        names = ["agent", "column", "tasks", "source", "runs", "fewest_frames", "most_frames"]
        names += ["episodes", "score", "low", "high", "lowest", "highest"]
        names += ["rerun_low", "rerun_high"]
        table = pd.DataFrame(rows, columns=[*names, *_AGGREGATES, "published"])
        return _with_counts(table.assign(column=self._column.name, tasks=len(self._scored)))

    def breakdown(self) -> pd.DataFrame:
        """Scores by level, a row a level and agent, published agents too.

        `low` and `high` of a normalised score are its 95% interval, over seeds or over the
        episodes of a single run; `lowest` and `highest` those of single runs.
        """
        raw = published.impala_by_level(self._suite.name, self._column.name)
        rows: list[dict[str, Any]] = []
        for task in self._suite.tasks if self._of_agents else ():
            level = self._level(task)
            rows += [self._level_row(agent, own, task) for agent, own in self._of_agents]
            if level in raw:
                theirs = {"mean_return": raw[level], "normalised": self._percent(level, raw[level])}
                rows.append(
                    {"agent": published.IMPALA, "level": level, "source": "published", **theirs}
                )
        names = ["agent", "level", "source", "runs", "episodes", "mean_return", "normalised"]
        names += ["low", "high", "lowest", "highest"]
        return _with_counts(pd.DataFrame(rows, columns=names))

    def published(self, clipping: str, names: Sequence[str]) -> dict[str, float]:
        """Published scores, by agent, to compare agents of one reward clipping with.

        Args:
          clipping: of the rewards they were trained with.
          names: the paper's names of the agents that play.
        """
        found = {name: self._papers(name, clipping) for name in names}
        theirs = self._impala()
        if theirs is not None and clipping == self._suite.defaults["reward_clipping"]:
            found[published.IMPALA] = getattr(theirs, self._suite.headline)
        return {name: score for name, score in found.items() if score is not None}

    def _papers(self, name: str, clipping: str) -> float | None:
        if not self.complete:
            return None
        return published.aggregate(self._suite.name, clipping, self._column.name, name)

    def _impala(self) -> scores.Aggregate | None:
        """IMPALA's aggregates, from its published scores on the same tasks."""
        raw = published.impala_by_level(self._suite.name, self._column.name)
        own = {level: [raw[level]] for level in map(self._level, self._scored) if level in raw}
        return scores.aggregate_returns(own, self._references)

    def _aggregate_row(self, agent: Agent, own: Sequence[Final]) -> dict[str, Any]:
        headline = self._suite.headline
        returns = [{self._level(t): final.returns[t] for t in self._scored} for final in own]
        aggregates = [scores.aggregate_returns(of_run, self._references) for of_run in returns]
        by_run = [getattr(aggregate, headline) for aggregate in aggregates]
        if len(own) > 1:
            interval = intervals.over_seeds(by_run)
        else:
            of_episodes = intervals.of_aggregates(returns[0], self._references)
            interval = of_episodes[headline] if of_episodes else None
        rerun = intervals.of_rerun(by_run) or (None, None)
        config, usual = agent.config, self._suite.defaults
        papers = config.action_set == usual["action_set"]  # Its agents have the larger set.
        return {
            **_source(agent, own),
            "fewest_frames": min(final.frames for final in own),
            "most_frames": max(final.frames for final in own),
            "episodes": min(len(final.returns[task]) for final in own for task in self._scored),
            "score": np.mean(by_run),
            **dict(zip(("low", "high"), interval or (None, None), strict=True)),
            "lowest": min(by_run),
            "highest": max(by_run),
            **dict(zip(("rerun_low", "rerun_high"), rerun, strict=True)),
            **dict(zip(_AGGREGATES, np.mean(np.array(aggregates), axis=0), strict=True)),
            "published": self._papers(agent.name, config.reward_clipping) if papers else None,
        }

    def _level_row(self, agent: Agent, own: Sequence[Final], task: str) -> dict[str, Any]:
        level = self._level(task)
        means = [float(np.mean(final.returns[task])) for final in own]
        if len(own) > 1:
            interval = intervals.over_seeds(means)
        else:
            interval = intervals.of_mean(own[0].returns[task])
        low, high = interval or (means[0], means[0])
        return {
            **_source(agent, own),
            "level": level,
            "episodes": min(len(final.returns[task]) for final in own),
            "mean_return": np.mean(means),
            "normalised": self._percent(level, float(np.mean(means))),
            "low": self._percent(level, low),
            "high": self._percent(level, high),
            "lowest": self._percent(level, min(means)),
            "highest": self._percent(level, max(means)),
        }

    def _level(self, task: str) -> str:
        return self._column.level(self._suite, task)

    def _percent(self, level: str, score: float) -> float | None:
        reference = self._references.get(level)
        return None if reference is None else scores.normalise(score, reference)


def _source(agent: Agent, own: Sequence[Final]) -> dict[str, Any]:
    source = "test" if own[0].tested else "training"
    return {"agent": agent.label, "source": source, "runs": len(own)}


def _with_counts(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its counts as whole numbers, which published agents have none of."""
    counts = ("runs", "fewest_frames", "most_frames", "episodes")
    return table.astype({name: "Int64" for name in counts if name in table})

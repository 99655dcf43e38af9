"""Chooses the returns that count in the end, and scores them next to the published ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report.compare import MIN_PART_OF_FRAMES, Agent, Comparison, in_words
from scalable_agent_popart.report.read import Run, recent_returns
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites import Suite

_DATA = resources.files(__package__) / "data"
IMPALA = "IMPALA (Espeholt et al., 2018)"
_PAPER = "(Hessel et al., 2019)"
RANDOM = "random play, measured"
PAPERS_MEAN = "mean_by_papers_scores"
# With these, the scores of IMPALA's Table C.1 have the means over 57 games of its Table 4.
_PAPERS_SCORES = {
    "video_pinball": ReferenceScore(0.0, 17667.9),
    "double_dunk": ReferenceScore(-18.6, -16.45),
}
# IMPALA's scores by level, for a suite and the column of Table 1 whose protocol they were played
# by: file, and columns of the level and of the multi-task agent's raw score.
_BY_LEVEL = {
    ("atari57", "noop"): ("impala_atari57_table_c1.csv", "game", "impala_deep_multitask"),
    ("dmlab30", "test"): ("impala_dmlab30_table_b1.csv", "test_level", "impala_deep_pbt"),
}


def papers_table_1(suite: str, column: str) -> dict[tuple[str, str], float]:
    """Returns a column of the paper's Table 1: percent by agent and reward clipping."""
    table = _published("table1.csv").query("suite == @suite and column == @column")
    return table.set_index(["agent", "reward_clipping"])["score"].to_dict()


def impala_by_level(suite: str, column: str) -> dict[str, float]:
    """Returns IMPALA's raw scores (Tables C.1 and B.1 there) by level; empty if there are none."""
    if (suite, column) not in _BY_LEVEL:
        return {}
    file, level, agent = _BY_LEVEL[suite, column]
    return _published(file).set_index(level)[agent].to_dict()


def random_play(suite: str) -> pd.DataFrame:
    """Returns the returns of measured random play by level; empty if they were not measured."""
    file = f"{suite}_random.csv"
    if not (_DATA / file).is_file():
        return pd.DataFrame(columns=["mean"])
    return _published(file).set_index("game")


def with_measured_zero(comparison: Comparison) -> Comparison:
    """Puts measured random play in place of the published random scores, as 0%.

    Random play from human starts was not measured, so that their scores are left out. Raises
    UserError if random play was not measured in a task.
    """
    suite = comparison.suite
    means = random_play(suite.name)["mean"].to_dict()
    if unmeasured := [task for task in suite.tasks if task not in means]:
        message = f"--zero=measured: random play was not measured in {unmeasured[0]}"
        raise UserError(f"{message} of {suite.title}; leave it out")
    known = suite.reference_scores
    measured = {task: known[task]._replace(random=means[task]) for task in known.keys() & means}
    title = f"{suite.title}, 0% at measured random play"
    references = {**known, **measured}
    suite = replace(suite, title=title, reference_scores=references, human_starts_scores={})
    return replace(comparison, suite=suite, measured_zero=True)


def _published(file: str) -> pd.DataFrame:
    with (_DATA / file).open() as text:
        return pd.read_csv(text, comment="#", float_precision="round_trip")


class Column(NamedTuple):
    """A column of Table 1: a way to test final policies."""

    name: str  # `noop` or `human` (starts), `train` or `test` (levels).
    title: str  # The paper's words for it.
    levels: Sequence[str]  # The level that tests each task; tasks may share one.
    starts: str = "noop"
    trained_on: bool = False  # Whether agents train on it, so that returns of training may do.


def columns(suite: Suite) -> list[Column]:
    """Returns the columns that Table 1 has, or would have, of a benchmark."""
    if suite.test_versions:
        train = Column("train", "train levels", suite.tasks, trained_on=True)
        return [train, Column("test", "test levels", [*map(suite.test_version, suite.tasks)])]
    title = "random starts" if suite.human_starts_scores else "test"
    noop = Column("noop", title, suite.tasks, trained_on=True)
    human = Column("human", "human starts", suite.tasks, starts="human")
    return [noop, human] if suite.human_starts_scores else [noop]


class _Final(NamedTuple):
    """Raw returns by level of a run's policy, in a test or else at last in training."""

    agent: Agent
    run: Run
    frames: int  # Environment frames of its budget that were used.
    returns: dict[str, np.ndarray]  # In the order of the column's levels.
    tested: bool


class FinalScores:
    """The scores that count in the end, under one column's protocol.

    A test of some tasks in play does not count; where a run of an agent was tested, untested ones
    do not, nor do runs that lag far behind: `left_out` names them. `papers` has the paper's scores
    if all tasks are compared, with zero at the published random scores.
    """

    def __init__(self, comparison: Comparison, column: Column):
        self.column = column
        self._suite = suite = comparison.suite
        self._levels = list(dict.fromkeys(column.levels))
        self._references = suite.references(column.starts)
        complete = set(suite.tasks) >= suite.reference_scores.keys()
        self._as_in_papers = complete and not comparison.measured_zero
        self.papers = papers_table_1(suite.name, column.name) if self._as_in_papers else {}
        impala = impala_by_level(suite.name, column.name)
        self._impala = {level: {"value": score} for level, score in impala.items()}
        self.left_out: list[str] = []
        finals = [final for agent in comparison.agents for final in self._choose(agent)]
        # A file of scores does not say what they are of, so they count as those of runs do.
        tested = any(final.tested for final in finals if not final.run.from_file)
        self._finals = [
            final._replace(tested=tested) if final.run.from_file else final for final in finals
        ]

    def by_run(self) -> pd.DataFrame:
        """Makes the rows of the summary of each run's scores, with intervals over episodes."""
        rows = []
        for final in self._finals:
            run, raw = final.run, {}
            remarks = {} if run.from_file else run.config.remarks()
            for level, returns in final.returns.items():
                low, high = scores.interval_of_mean(returns) or (np.nan, np.nan)
                episodes = np.nan if run.from_file else len(returns)
                raw[level] = {"value": np.mean(returns), "low": low, "high": high}
                raw[level] |= {"episodes": episodes, "remark": remarks.get(level)}
            intervals = scores.intervals_of_aggregates(
                final.returns, self._references, scores.reported_aggregates
            )
            about = {"agent": final.agent.label, "run": str(run.path), "seed": run.seed}
            about |= {"source": "test" if final.tested else "training"}
            about |= {"fewest_frames": final.frames, "most_frames": final.frames}
            rows += [about | row for row in self._rows(raw, intervals or {})]
        return pd.DataFrame(rows)

    def published(self) -> pd.DataFrame:
        """Makes the rows of the summary of IMPALA's scores and the paper's Table 1."""
        about = {"protocol": self.column.name, "measure": "aggregate", "task": self._suite.headline}
        rows = [row | {"agent": IMPALA} for row in self._rows(self._impala)]
        for (name, clipping), score in self.papers.items():
            agent = f"{name}, {in_words('reward_clipping', clipping)} {_PAPER}"
            rows.append(about | {"agent": agent, "value": score})
        return pd.DataFrame(rows)

    def measured(self) -> pd.DataFrame:
        """Makes the rows of random play, if it was measured in all levels, as those of a run."""
        raw = random_play(self._suite.name).rename(columns={"mean": "value"})
        if self.column.starts != "noop" or not set(self._levels) <= set(raw.index):
            return pd.DataFrame()
        deviations = raw["standard_error"] * raw["episodes"] ** 0.5
        low, high = scores.students_t(raw["value"], deviations, raw["episodes"])
        raw = raw.assign(low=low, high=high).loc[self._levels]
        about = {"agent": RANDOM, "episodes": raw["episodes"].min()}
        return pd.DataFrame([row | about for row in self._rows(raw.to_dict("index"))])

    def targets(self, clipping: str, names: Sequence[str]) -> dict[str, float]:
        """Returns published scores, by agent, to compare with these agents of a reward clipping."""
        targets = {n: self.papers[n, clipping] for n in names if (n, clipping) in self.papers}
        if clipping == self._suite.defaults["reward_clipping"] and self._impala:
            by_name = {row["task"]: row["value"] for row in self._rows(self._impala)}
            targets[IMPALA] = by_name[self._suite.headline]
        return targets

    def _choose(self, agent: Agent) -> list[_Final]:
        """Chooses those returns of an agent's runs that can be averaged, and names the others."""
        chosen: list[_Final] = []
        levels, total = set(self._levels), len(self._levels)
        for run in agent.runs:
            tests = [test for test in run.evaluations if test.starts == self.column.starts]
            whole = [test for test in tests if levels <= test.returns.keys()]
            frames, returns = run.frames, dict[str, np.ndarray]()
            if whole:  # The newest counts, and of several the longest.
                whole.sort(key=lambda t: (t.frames, sum(len(t.returns[level]) for level in levels)))
                frames, returns = whole[-1].frames, whole[-1].returns
            elif self.column.trained_on:
                returns = recent_returns(run.logs["episodes"])
            missing = len(levels - returns.keys())
            if not missing:
                returns = {level: returns[level] for level in self._levels}
                chosen.append(_Final(agent, run, run.budgeted(frames), returns, bool(whole)))
            covered = max((len(levels & test.returns.keys()) for test in tests), default=0)
            if covered and not whole:
                self.left_out.append(
                    f"{run.path}: tested on {covered} of {total} tasks only, which does not count "
                    "here (--level_name compares some tasks)"
                )
            elif missing and self.column.trained_on:
                self.left_out.append(f"{run.path}: no episode yet of {missing} of {total} tasks")
        tested = any(final.tested for final in chosen)
        farthest = max((final.frames for final in chosen if final.tested == tested), default=0)
        kept = []
        for final in chosen:
            reason = f"{final.run.path}: at {final.frames:,} "
            if final.tested != tested:
                planned = final.run.config.total_environment_frames
                others = f"as other runs of {agent.label} are"
                self.left_out.append(f"{reason}of {planned:,} frames and not tested, {others}")
            elif final.frames < MIN_PART_OF_FRAMES * farthest:
                other = f"another run of {agent.label} is at {farthest:,}"
                self.left_out.append(f"{reason}frames, and {other}")
            else:
                kept.append(final)
        return kept

    def _rows(
        self, raw: Mapping[str, Mapping[str, Any]], intervals: Mapping[str, scores.Interval] = {}
    ) -> list[dict[str, Any]]:
        """Makes the rows of raw scores by level, of their known percent, and of aggregates."""
        rows: list[dict[str, Any]] = []
        normalised = {}
        for level in filter(raw.__contains__, self._levels):
            about = {"measure": "return", "protocol": self.column.name, "task": level}
            rows.append({**raw[level], **about})
            if level in self._references:
                percent = {
                    name: scores.normalise(raw[level][name], self._references[level])
                    for name in ("value", "low", "high")
                    if name in raw[level]
                }
                rows.append(rows[-1] | percent | {"measure": "normalised"})
                normalised[level] = percent["value"]
        if not normalised:
            return rows
        aggregates = scores.reported_aggregates(list(normalised.values()))
        if not self._suite.normalised:
            del aggregates["optimality_gap"]
        as_in_papers = self._as_in_papers and self.column.starts == "noop"
        if as_in_papers and _PAPERS_SCORES.keys() <= normalised.keys():
            papers = {**self._references, **_PAPERS_SCORES}
            aggregates[PAPERS_MEAN] = np.mean(
                [scores.normalise(raw[level]["value"], papers[level]) for level in normalised]
            )
        about = {"measure": "aggregate", "protocol": self.column.name}
        episodes = min(row.get("episodes", np.nan) for row in rows)
        for name, value in aggregates.items():
            low, high = intervals.get(name, (np.nan, np.nan))
            numbers = {"value": value, "low": low, "high": high, "episodes": episodes}
            rows.append({**about, **numbers, "task": name})
        return rows

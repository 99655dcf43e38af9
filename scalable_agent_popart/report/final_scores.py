"""Chooses the returns that count in the end, and scores them next to the published ones."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.report.compare import MIN_PART_OF_FRAMES, Agent, Comparison, in_words
from scalable_agent_popart.report.read import RECENT_EPISODES, Run
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
# IMPALA's scores by level, for each suite: file, columns of the level and of the multi-task
# agent's raw score, and the column of Table 1 whose protocol the scores were played by.
_BY_LEVEL = {
    "atari57": ("impala_atari57_table_c1.csv", "game", "impala_deep_multitask", "noop"),
    "dmlab30": ("impala_dmlab30_table_b1.csv", "test_level", "impala_deep_pbt", "test"),
}


def papers_table_1(suite: str, column: str) -> dict[tuple[str, str], float]:
    """Returns a column of the paper's Table 1: percent by agent and reward clipping."""
    table = _published("table1.csv").query("suite == @suite and column == @column")
    return table.set_index(["agent", "reward_clipping"])["score"].to_dict()


def impala_by_level(suite: str, column: str) -> dict[str, float]:
    """Returns IMPALA's raw scores (Tables C.1 and B.1 there) by level; empty if there are none."""
    file, level, agent, of_column = _BY_LEVEL.get(suite, ("", "", "", ""))
    return _published(file).set_index(level)[agent].to_dict() if column == of_column else {}


def random_play(suite: str) -> dict[str, dict[str, float]]:
    """Returns episodes, mean and standard error of random play by game; empty if not measured."""
    file = f"{suite}_random.csv"
    if not (_DATA / file).is_file():
        return {}
    return _published(file).set_index("game").to_dict("index")


def _published(file: str) -> pd.DataFrame:
    with (_DATA / file).open() as text:
        return pd.read_csv(text, comment="#", float_precision="round_trip")


class Column(NamedTuple):
    """A column of Table 1: a way to test final policies."""

    name: str  # `noop` or `human` (starts), `train` or `test` (levels).
    title: str  # The paper's words for it.
    levels: Mapping[str, str]  # Task to the level that tests it.
    starts: str = "noop"
    trained_on: bool = False  # Whether agents train on it, so that returns of training may do.


def columns(suite: Suite) -> list[Column]:
    """Returns the columns that Table 1 has, or would have, of a benchmark."""
    levels = {task: task for task in suite.tasks}
    if suite.test_versions:
        tested = {task: suite.test_version(task) for task in suite.tasks}
        train = Column("train", "train levels", levels, trained_on=True)
        return [train, Column("test", "test levels", tested)]
    if not suite.human_starts_scores:
        return [Column("noop", "test", levels, trained_on=True)]
    random = Column("noop", "random starts", levels, trained_on=True)
    return [random, Column("human", "human starts", levels, starts="human")]


class _Final(NamedTuple):
    """Raw returns by level of a run's policy, in a test or else at last in training."""

    run: Run
    frames: int  # Environment frames it was trained for.
    returns: dict[str, np.ndarray]
    tested: bool


class FinalScores:
    """The scores that count in the end, under one column's protocol.

    A test of some tasks in play does not count; where a run of an agent was tested, untested ones
    do not, nor do runs that lag far behind: `left_out` names them. `papers` has the paper's scores
    if all tasks are compared.
    """

    def __init__(self, comparison: Comparison, column: Column):
        self.column = column
        self._suite = suite = comparison.suite
        self._levels = list(column.levels.values())
        self._references = suite.references(column.starts)
        # Levels outside of the benchmark have no reference scores.
        self._scored = [column.levels[t] for t in suite.tasks if t in suite.reference_scores]
        complete = len(self._scored) == len(suite.reference_scores)
        self.papers = papers_table_1(suite.name, column.name) if complete else {}
        self._impala = impala_by_level(suite.name, column.name)
        self.left_out: list[str] = []
        self._finals = [(a, final) for a in comparison.agents for final in self._choose(a)]

    def by_run(self) -> pd.DataFrame:
        """Makes the rows of `summary.COLUMNS` of each run's scores, with intervals over episodes.

        The measures are `return` and `normalised` (percent) of each level, and `aggregate` of all.
        """
        rows = []
        for agent, final in self._finals:
            remarks = final.run.config.remarks()
            about = {
                "protocol": self.column.name,
                "agent": agent.label,
                "run": str(final.run.path),
                "seed": final.run.seed,
                "source": "test" if final.tested else "training",
                "fewest_frames": final.frames,
                "most_frames": final.frames,
            }
            for level in self._levels:
                returns = final.returns[level]
                ends = scores.interval_of_mean(returns) or (np.nan, np.nan)
                raw = dict(zip(("value", "low", "high"), (np.mean(returns), *ends), strict=True))
                own = {**about, "episodes": len(returns), "remark": remarks.get(level)}
                rows += [own | row for row in self._of_level(level, raw)]
            if not self._scored:
                continue
            scored = {level: final.returns[level] for level in self._scored}
            compute, references = scores.reported_aggregates, self._references
            intervals = scores.intervals_of_aggregates(scored, references, compute) or {}
            own = {**about, "episodes": min(map(len, scored.values()))}
            for row in self._aggregates(scored):
                low, high = intervals.get(row["task"], (np.nan, np.nan))
                rows.append({**own, **row, "low": low, "high": high})
        return pd.DataFrame(rows)

    def published(self) -> pd.DataFrame:
        """Makes the rows of `summary.COLUMNS` of IMPALA's scores and the paper's Table 1."""
        paper = pd.DataFrame(
            {"agent": f"{name}, {in_words('reward_clipping', clipping)} {_PAPER}", "value": score}
            for (name, clipping), score in self.papers.items()
        )
        about = {"protocol": self.column.name, "measure": "aggregate", "task": self._suite.headline}
        return pd.concat([self._impalas(), paper.assign(**about)])

    def measured(self) -> pd.DataFrame:
        """Makes the rows of random play, if it was measured in all levels, as those of a run."""
        table = random_play(self._suite.name) if self.column.starts == "noop" else {}
        if not table.keys() >= set(self._levels):
            return pd.DataFrame()
        raw = {}
        for level, own in table.items():
            deviation = own["standard_error"] * own["episodes"] ** 0.5
            low, high = scores.students_t(own["mean"], deviation, own["episodes"])
            raw[level] = {"value": own["mean"], "low": low, "high": high}
        fewest = min(table[level]["episodes"] for level in self._levels)
        return self._fixed(RANDOM, raw).assign(episodes=fewest)

    def targets(self, clipping: str, names: Sequence[str]) -> dict[str, float]:
        """Returns published scores, by agent, to compare with these agents of a reward clipping."""
        found = {agent: s for (agent, own), s in self.papers.items() if own == clipping}
        found = {name: found[name] for name in names if name in found}
        if clipping == self._suite.defaults["reward_clipping"] and self._impala:
            theirs = self._impalas().query("measure == 'aggregate'").set_index("task")["value"]
            found[IMPALA] = theirs[self._suite.headline]
        return found

    def _choose(self, agent: Agent) -> list[_Final]:
        """Chooses those returns of an agent's runs that can be averaged, and names the others."""
        chosen: list[_Final] = []
        levels, total = set(self._levels), len(self._levels)
        for run in agent.runs:
            tests = [test for test in run.evaluations if test.starts == self.column.starts]
            whole = [
                _Final(run, test.frames, {level: test.returns[level] for level in levels}, True)
                for test in tests
                if levels <= test.returns.keys()
            ]
            if whole:  # The newest, and of several the longest.
                whole.sort(key=lambda own: (own.frames, sum(map(len, own.returns.values()))))
                chosen.append(whole[-1])
                continue
            by_task = run.logs["episodes"].groupby("task", observed=True)["episode_return"]
            latest = {str(task): own.to_numpy()[-RECENT_EPISODES:] for task, own in by_task}
            missing = len(levels - latest.keys())
            if self.column.trained_on and not missing:
                returns = {level: latest[level] for level in self._levels}
                chosen.append(_Final(run, run.frames, returns, False))
            if covered := max((len(levels & test.returns.keys()) for test in tests), default=0):
                self.left_out.append(
                    f"{run.path}: tested on {covered} of {total} tasks only, which does not count "
                    "here (--level_name compares some tasks)"
                )
            elif self.column.trained_on and missing:
                self.left_out.append(f"{run.path}: no episode yet of {missing} of {total} tasks")
        tested = any(final.tested for final in chosen)
        farthest = max((final.frames for final in chosen if final.tested == tested), default=0)
        kept = []
        for final in chosen:
            if final.tested != tested:
                planned = final.run.config.total_environment_frames
                where = f"at {final.frames:,} of {planned:,} frames"
                reason = f"{where} and not tested, as other runs of {agent.label} are"
            elif final.frames < MIN_PART_OF_FRAMES * farthest:
                another = f"another run of {agent.label} is at {farthest:,}"
                reason = f"at {final.frames:,} frames, and {another}"
            else:
                kept.append(final)
                continue
            self.left_out.append(f"{final.run.path}: {reason}")
        return kept

    def _impalas(self) -> pd.DataFrame:
        return self._fixed(IMPALA, {t: {"value": s} for t, s in self._impala.items()})

    def _fixed(self, agent: str, raw: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
        """Makes the rows of scores that no run of the comparison has."""
        raw = {level: raw[level] for level in self._levels if level in raw}
        rows = [row for level, own in raw.items() for row in self._of_level(level, own)]
        rows += self._aggregates({t: [s["value"]] for t, s in raw.items() if t in self._scored})
        about = {"protocol": self.column.name, "agent": agent}
        return pd.DataFrame([row | about for row in rows])

    def _aggregates(self, returns: Mapping[str, scores.Scores]) -> list[dict[str, Any]]:
        """Makes a row of each aggregate of raw returns by level; none if there are no levels."""
        if not returns:
            return []
        own = [scores.normalise(float(np.mean(r)), self._references[t]) for t, r in returns.items()]
        found = scores.reported_aggregates(own)
        if not self._suite.normalised:
            del found["optimality_gap"]
        if self.column.starts == "noop" and _PAPERS_SCORES.keys() <= set(returns) == set(
            self._references
        ):
            references = self._references | _PAPERS_SCORES
            own = [scores.normalise(float(np.mean(r)), references[t]) for t, r in returns.items()]
            found[PAPERS_MEAN] = np.mean(own)
        rows = [{"task": name, "value": value} for name, value in found.items()]
        return [{"measure": "aggregate", **row} for row in rows]

    def _of_level(self, level: str, raw: Mapping[str, float]) -> list[dict[str, Any]]:
        """Makes the rows of a level's raw score and, where that is known, of its percent."""
        rows: list[dict[str, Any]] = [{"task": level, "measure": "return", **raw}]
        if level in self._references:
            reference = self._references[level]
            percent = {name: scores.normalise(score, reference) for name, score in raw.items()}
            rows.append({"task": level, "measure": "normalised", **percent})
        return rows

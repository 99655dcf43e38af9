"""Makes the tables of a report: what the CSV files hold, and what pages and figures show."""

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.typing import DataFrameGroupBy

from scalable_agent_popart import scores
from scalable_agent_popart.population.directory import Event
from scalable_agent_popart.report.compare import Agent, Comparison
from scalable_agent_popart.report.read import METRICS, RECENT_EPISODES, Population, Run
from scalable_agent_popart.scores import Scores
from scalable_agent_popart.suites import Suite

IMPALA = "IMPALA (Espeholt et al., 2018)"
# Of IMPALA's scores by level, for each suite: file, columns of the level and of the multi-task
# agent's raw score, and the column of Table 1 whose protocol the scores were played by.
_BY_LEVEL = {
    "atari57": ("impala_atari57_table_c1.csv", "game", "impala_deep_multitask", "noop"),
    "dmlab30": ("impala_dmlab30_table_b1.csv", "test_level", "impala_deep_pbt", "test"),
}
_RUN = ("agent", "reward_clipping", "run", "seed")
_AGGREGATES = scores.Aggregate._fields
_ENDS = ("low", "high", "lowest", "highest")
_RERUN = ("rerun_low", "rerun_high")
# A run counts beside another of its agent that has come so much farther at most.
_COMPARABLE = 0.9
_POINTS = 200  # Of a learning curve, from the start to the end of the longest run.
_STRETCHES = 40  # Of training, in the figure of gradients.
_MAX_PANELS = 8  # For each seed one, in that figure.


def papers_table_1(suite: str, column: str) -> dict[tuple[str, str], float]:
    """Gives a column of the paper's Table 1: percent by agent and reward clipping."""
    table = _published("table1.csv").query("suite == @suite and column == @column")
    return table.set_index(["agent", "reward_clipping"])["score"].to_dict()


def impala_by_level(suite: str, column: str) -> dict[str, float]:
    """Gives IMPALA's raw scores (Tables C.1 and B.1 there) by level; empty if there are none."""
    file, level, agent, of_column = _BY_LEVEL.get(suite, ("", "", "", ""))
    return _published(file).set_index(level)[agent].to_dict() if column == of_column else {}


def _published(file: str) -> pd.DataFrame:
    with (resources.files(__package__) / "data" / file).open() as text:
        return pd.read_csv(text, comment="#", float_precision="round_trip")


class Column(NamedTuple):
    """A column of Table 1: a way to test final policies."""

    name: str  # `noop` or `human` (starts), `train` or `test` (levels).
    title: str  # The paper's words for it.
    levels: Mapping[str, str]  # Task to the level that tests it.
    starts: str = "noop"
    trained_on: bool = False  # Whether agents train on it, so that returns of training may do.


def columns(suite: Suite) -> list[Column]:
    """Gives the columns that Table 1 has, or would have, of a benchmark."""
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

    frames: int  # Environment frames it was trained for.
    returns: dict[str, np.ndarray]
    tested: bool


class FinalScores:
    """The scores that count in the end, under one column's protocol.

    A test of some tasks in play does not count; where a run of an agent was tested, untested ones
    do not, nor do runs that lag far behind.

    Attributes:
      column: the protocol.
      left_out: a line for each run whose returns do not count, with the reason.
      papers: the paper's scores by agent and reward clipping, if all tasks are compared.
      inverted: levels whose published human does worse than random play.
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
        references = [(level, self._references[level]) for level in self._scored]
        self.inverted = [level for level, (random, human) in references if human < random]
        self.left_out: list[str] = []
        self._finals = [(a, own) for a in comparison.agents if (own := self._choose(a))]

    def table_1(self) -> pd.DataFrame:
        """Makes a row an agent: aggregate scores in percent, ours and the published ones.

        `score` is the benchmark's usual aggregate as a mean over runs, `low` to `high` its 95%
        interval over seeds, or over the episodes of a single run, `lowest` to `highest` its range,
        and `rerun_low` to `rerun_high` the interval for the mean of as many new runs.
        """
        rows = [self._aggregate_row(*found) for found in self._finals if self._scored]
        theirs = self._impalas_aggregate()
        if theirs is not None:
            headline = getattr(theirs, self._suite.headline)
            rows.append({"agent": IMPALA, **theirs._asdict(), "published": headline})
        names = ["agent", "column", "tasks", "source", "runs", "fewest_frames", "most_frames"]
        names += ["episodes", "score", *_ENDS, *_RERUN, *_AGGREGATES, "published"]
        table = pd.DataFrame(rows, columns=names)
        return _with_counts(table.assign(column=self.column.name, tasks=len(self._scored)))

    def breakdown(self) -> pd.DataFrame:
        """Makes a row a level and agent: raw and normalised scores, with ends as in `table_1`."""
        rows: list[dict[str, Any]] = []
        for level in self._levels if self._finals else ():
            rows += [self._level_row(agent, own, level) for agent, own in self._finals]
            if level in self._impala:
                raw = self._impala[level]
                theirs = {"mean_return": raw, "normalised": self._percent(level, raw)}
                rows.append({"agent": IMPALA, "level": level, "source": "published", **theirs})
        names = ["agent", "level", "source", "runs", "episodes", "mean_return", "normalised"]
        return _with_counts(pd.DataFrame(rows, columns=[*names, *_ENDS]))

    def published(self, clipping: str, names: Sequence[str]) -> dict[str, float]:
        """Gives published scores, by agent, to compare with these agents of a reward clipping."""
        found = {agent: s for (agent, own), s in self.papers.items() if own == clipping}
        found = {name: found[name] for name in names if name in found}
        theirs = self._impalas_aggregate()
        if theirs is not None and clipping == self._suite.defaults["reward_clipping"]:
            found[IMPALA] = getattr(theirs, self._suite.headline)
        return found

    def _choose(self, agent: Agent) -> list[_Final]:
        """Chooses those returns of an agent's runs that can be averaged, and names the others."""
        chosen: list[tuple[Run, _Final]] = []
        levels, total = set(self._levels), len(self._levels)
        for run in agent.runs:
            tests = [test for test in run.evaluations if test.starts == self.column.starts]
            whole = [
                _Final(test.frames, {level: test.returns[level] for level in self._levels}, True)
                for test in tests
                if levels <= test.returns.keys()
            ]
            if whole:  # The newest, and of several the longest.
                whole.sort(key=lambda own: (own.frames, sum(map(len, own.returns.values()))))
                chosen.append((run, whole[-1]))
                continue
            by_task = run.logs["episodes"].groupby("task", observed=True)["episode_return"]
            latest = {str(task): own.to_numpy()[-RECENT_EPISODES:] for task, own in by_task}
            missing = len(levels - latest.keys())
            if self.column.trained_on and not missing:
                returns = {level: latest[level] for level in self._levels}
                chosen.append((run, _Final(run.frames, returns, False)))
            if covered := max((len(levels & test.returns.keys()) for test in tests), default=0):
                self.left_out.append(
                    f"{run.path}: tested on {covered} of {total} tasks only, which does not count "
                    "here (--level_name compares some tasks)"
                )
            elif self.column.trained_on and missing:
                self.left_out.append(f"{run.path}: no episode yet of {missing} of {total} tasks")
        tested = any(final.tested for _, final in chosen)
        farthest = max((final.frames for _, final in chosen if final.tested == tested), default=0)
        kept = []
        for run, final in chosen:
            if final.tested != tested:
                reason = f"not tested yet, as other runs of {agent.label} are"
            elif final.frames < _COMPARABLE * farthest:
                another = f"another run of {agent.label} is at {farthest:,}"
                reason = f"at {final.frames:,} frames, and {another}"
            else:
                kept.append(final)
                continue
            self.left_out.append(f"{run.path}: {reason}")
        return kept

    def _impalas_aggregate(self) -> scores.Aggregate | None:
        """Aggregates IMPALA's published scores on the same tasks."""
        own = {level: [self._impala[level]] for level in self._scored if level in self._impala}
        return scores.aggregate_returns(own, self._references)

    def _aggregate_row(self, agent: Agent, own: Sequence[_Final]) -> dict[str, Any]:
        suite, config = self._suite, agent.runs[0].config
        returns = [{level: final.returns[level] for level in self._scored} for final in own]
        aggregates = pd.DataFrame([scores.aggregate_returns(r, self._references) for r in returns])
        by_run = aggregates[suite.headline].to_numpy()
        interval = scores.interval_over_seeds(by_run)
        rerun = scores.interval_over_seeds(by_run, of_rerun=True) or (None, None)
        if interval is None:
            by_name = scores.intervals_of_aggregates(returns[0], self._references) or {}
            interval = by_name.get(suite.headline)
        papers = config.action_set == suite.defaults["action_set"]  # Its agents have the larger.
        return {
            **_over_runs(agent, own, self._scored, by_run, interval),
            "fewest_frames": min(final.frames for final in own),
            "most_frames": max(final.frames for final in own),
            "score": np.mean(by_run),
            **dict(zip(_RERUN, rerun, strict=True)),
            **aggregates.mean(),
            "published": self.papers.get((agent.name, config.reward_clipping)) if papers else None,
        }

    def _level_row(self, agent: Agent, own: Sequence[_Final], level: str) -> dict[str, Any]:
        means = [float(np.mean(final.returns[level])) for final in own]
        interval = scores.interval_over_seeds(means)
        interval = interval or scores.interval_of_mean(own[0].returns[level]) or (means[0],) * 2
        row = {**_over_runs(agent, own, [level], means, interval), "level": level}
        row["mean_return"] = row["normalised"] = float(np.mean(means))
        return row | {name: self._percent(level, row[name]) for name in ("normalised", *_ENDS)}

    def _percent(self, level: str, score: float) -> float | None:
        known = level in self._references
        return scores.normalise(score, self._references[level]) if known else None


def _over_runs(
    agent: Agent,
    own: Sequence[_Final],
    levels: Sequence[str],
    by_run: Scores,
    interval: scores.Interval | None,
) -> dict[str, Any]:
    """Gives a row's columns on an agent's runs, and the _ENDS of their score."""
    ends = (*(interval or (None, None)), min(by_run), max(by_run))
    return {
        "agent": agent.label,
        "source": "test" if own[0].tested else "training",
        "runs": len(own),
        "episodes": min(len(final.returns[level]) for final in own for level in levels),
        **dict(zip(_ENDS, ends, strict=True)),
    }


def _with_counts(table: pd.DataFrame) -> pd.DataFrame:
    """Makes counts whole numbers, which published agents have none of."""
    counts = ("runs", "fewest_frames", "most_frames", "episodes")
    return table.astype({name: "Int64" for name in counts if name in table})


def learning_curves(comparison: Comparison) -> pd.DataFrame:
    """Makes a row a run and point, from where every task with reference scores has an episode."""
    references = comparison.suite.reference_scores
    tasks = [task for task in comparison.suite.tasks if task in references]
    longest = max(run.frames for _, run in comparison.runs)
    grid = np.linspace(0, longest, _POINTS + 1)[1:].astype(np.int64)

    def read(run: Run) -> pd.DataFrame:
        if not tasks:
            return pd.DataFrame()
        frames = grid[grid <= run.frames]
        recent = [scores.normalise(_recent_returns(run, t, frames), references[t]) for t in tasks]
        normalised = np.array(recent)  # [tasks, points]
        known = np.isfinite(normalised).all(axis=0)
        aggregates = scores.aggregate(normalised[:, known])._asdict()
        return pd.DataFrame({"frames": frames[known], **aggregates})

    return _of_runs(comparison, ["frames", *_AGGREGATES], read)


def statistics(comparison: Comparison) -> pd.DataFrame:
    """Makes a row a run, task and record: PopArt's statistics and the returns beside them."""

    def read(run: Run) -> pd.DataFrame:
        parts = [
            own.assign(episode_return=_recent_returns(run, str(task), own["frames"].to_numpy()))
            for task, own in run.logs["statistics"].groupby("task", sort=False)
            if task in comparison.suite.tasks
        ]
        return pd.concat(parts) if parts else pd.DataFrame()

    return _of_runs(comparison, ["task", "frames", "shift", "scale", "episode_return"], read)


def progress(comparison: Comparison) -> pd.DataFrame:
    """Makes a row a run and record: speed, memory and entropy, see `read.Run.logs`."""
    return _of_runs(comparison, ["frames", *METRICS["progress"]], lambda run: run.logs["progress"])


def batches(comparison: Comparison) -> pd.DataFrame:
    """Makes a row a run and task: mean, `least` and `most` of its `share` of records' rollouts."""

    def read(run: Run) -> pd.DataFrame:
        groups = run.logs["batches"].groupby("task", sort=False)["share"]
        return groups.agg(share="mean", least="min", most="max").reset_index()

    return _of_runs(comparison, ["task", "share", "least", "most"], read)


def progress_by_run(progress: pd.DataFrame, batches: pd.DataFrame) -> pd.DataFrame:
    """Makes a row a run of both tables: medians, the largest memory, the `tasks` with a share.

    `least` and `most` are the smallest and the largest share; NaN stands for what is not known.
    """
    keys = ["run", "agent", "seed"]
    reduced = {"frames_per_second": "median", "memory_mib": "max", "entropy": "median"}
    table = progress.groupby(keys, sort=False).agg(reduced)
    shares = batches[batches["share"] > 0].groupby(keys, sort=False)["share"].count()
    own = batches.groupby(keys, sort=False)["share"].agg(least="min", most="max")
    return table.join(shares.rename("tasks")).join(own).reset_index()


def gradients(comparison: Comparison) -> pd.DataFrame:
    """Makes a row a run, loss, task and record: each task's gradient over training.

    `norm` is the length of the gradient of the task's rollouts in a batch, see
    `Learner.gradient_norms`; NaN without any. `part` is that over the sum of all tasks' norms.
    """

    def read(run: Run) -> pd.DataFrame:
        table = run.logs["gradients"]
        own = table[table["task"].isin(comparison.suite.tasks)]
        sums = own.groupby(["frames", "loss"])["norm"].transform("sum")
        return own.assign(part=(own["norm"] / sums.where(sums > 0)).fillna(0.0))

    return _of_runs(comparison, ["loss", "task", "frames", "norm", "part"], read)


def gradients_by_agent(table: pd.DataFrame) -> pd.DataFrame:
    """Makes a row an agent, loss and task: `norm` and `part`.

    They are medians of runs' median norms, with the least and the most, and means of runs' mean
    parts with the 95% interval, up to the frames that all runs have reached.
    """
    common = table.groupby("run")["frames"].max().min()
    keys = ["agent", "loss", "task"]
    groups = table[table["frames"] <= common].groupby([*keys, "run"], sort=False)
    runs = groups.agg(norm=("norm", "median"), part=("part", "mean"))
    both = runs.groupby(keys, sort=False)
    norms = both.agg(norm=("norm", "median"), least_norm=("norm", "min"), most_norm=("norm", "max"))
    return pd.concat([norms, _parts(both)], axis=1).reset_index()


def gradients_over_frames(table: pd.DataFrame) -> pd.DataFrame:
    """Averages the records of one loss over equal stretches of training: median norm, mean part.

    `frames` are those of the stretches' middles. `panel` is the agent and seed, since runs may go
    different ways; or, where these are many, the agent, with the part's 95% interval over its runs.
    """
    seeds = table["agent"] + "\nseed " + table["seed"].astype(str)
    one_each = seeds.nunique() == table["agent"].nunique()
    panels = table["agent"] if one_each or seeds.nunique() > _MAX_PANELS else seeds
    width = table["frames"].max() / _STRETCHES
    stretch = ((table["frames"] - 1) // width).clip(0, _STRETCHES - 1)
    binned = table.assign(panel=panels, frames=(stretch + 0.5) * width)
    keys = ["panel", "task", "frames"]
    norms = binned.groupby(keys, sort=False)[["norm"]].median()
    runs = binned.groupby([*keys, "run"], sort=False)[["part"]].mean()
    means = pd.concat([norms, _parts(runs.groupby(keys, sort=False))], axis=1).reset_index()
    return means.sort_values("frames", kind="stable", ignore_index=True)


def _parts(runs: DataFrameGroupBy) -> pd.DataFrame:
    """Averages each group's parts, a row a run, with the interval of the mean."""
    parts = runs["part"].agg(["mean", "std", "count"])
    low, high = scores.students_t(parts["mean"], parts["std"], parts["count"])
    return pd.DataFrame({"part": parts["mean"], "low_part": low, "high_part": high})


def _recent_returns(run: Run, task: str, frames: np.ndarray) -> np.ndarray:
    """Averages a task's latest episodes up to each of `frames`; NaN before the first."""
    episodes = run.logs["episodes"]
    episodes = episodes[episodes["task"] == task]
    ends = np.searchsorted(episodes["frames"].to_numpy(), frames, side="right")
    begins = np.maximum(ends - RECENT_EPISODES, 0)
    total = np.concatenate([[0.0], np.cumsum(episodes["episode_return"].to_numpy())])
    with np.errstate(invalid="ignore"):
        return (total[ends] - total[begins]) / (ends - begins)


def populations(comparison: Comparison) -> list[tuple[Agent, Run, Population]]:
    """Gives each population with a run of it; where only members were asked for, with one."""
    found: dict[Path, tuple[Agent, Run, Population]] = {}
    for agent, run in comparison.runs:
        if run.population is not None:
            path = run.population.path.resolve()
            if path not in found or run.population.whole:
                found[path] = agent, run, run.population
    return list(found.values())


def events(comparison: Comparison) -> pd.DataFrame:
    """Makes a row a start or comparison, with the member's own frames: populations' lineages."""
    found = populations(comparison)
    rows = [
        {**_about(agent, run), "member": number, **event._asdict(), **event.hyperparameters}
        for agent, run, population in found
        for number, member in population.members.items()
        for event in member.lineage
    ]
    names = [name for name in Event._fields if name not in ("hyperparameters", "started_over")]
    tuned = dict.fromkeys(name for *_, own in found for name in own.shown.config.tuned)
    table = pd.DataFrame(rows, columns=[*_RUN, "member", *names, *tuned, "started_over"])
    return table.astype(dict.fromkeys(("partner", "source_frames"), "Int64"))


def ancestries(comparison: Comparison) -> pd.DataFrame:
    """Makes a row a segment of each population's ancestry, oldest first.

    `first` and `last` are the member's own frames; the weights have `learned` from the others.
    """
    rows = [
        {
            **_about(agent, run),
            "member": segment.member,
            "first": segment.first,
            "last": population.end(segment),
            "learned_first": segment.first + segment.offset,
            "learned_last": population.end(segment) + segment.offset,
        }
        for agent, run, population in populations(comparison)
        for segment in population.segments
    ]
    return pd.DataFrame(rows)


def _of_runs(
    comparison: Comparison, columns: Sequence[str], read: Callable[[Run], pd.DataFrame]
) -> pd.DataFrame:
    """Makes one table of what `read` finds of each run; an empty one if it finds nothing."""
    parts = [read(run).assign(**_about(agent, run)) for agent, run in comparison.runs]
    whole, columns = [part for part in parts if len(part)], [*_RUN, *columns]
    return pd.concat(whole)[columns] if whole else pd.DataFrame(columns=columns)


def _about(agent: Agent, run: Run) -> dict[str, Any]:
    """Gives the first columns of a table whose rows are of runs."""
    values = (agent.label, run.config.reward_clipping, str(run.path), run.seed)
    return dict(zip(_RUN, values, strict=True))

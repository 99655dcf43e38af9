"""Sums a comparison up in one table of all its numbers: of agents, between agents, and of runs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.report.compare import MIN_PART_OF_FRAMES
from scalable_agent_popart.report.final_scores import FinalScores

COLUMNS = (
    "kind",  # `agent` (of all runs), `measured` (of random play), `published`, `difference`, `run`.
    "measure",  # What the value is, see `docs/formats.md`.
    "protocol",  # The column of Table 1.
    "task",  # Also the name of an aggregate over tasks, or nothing.
    "agent",
    "versus",  # The agent whose value a difference takes away.
    "run",
    "seed",
    "runs",
    "source",  # `test` or `training`, where a score is from.
    "remark",  # What the level lacked, if anything.
    "episodes",  # The fewest of a level.
    "fewest_frames",
    "most_frames",
    "value",  # Over runs: their mean.
    "low",  # To `high`: the 95% interval. Of a single run's scores it is over episodes.
    "high",
    "lowest",  # To `highest`: the range of runs, or of a run's records.
    "highest",
    "median",
    "rerun_low",  # To `rerun_high`: where the mean of as many new runs should lie, with 95%.
    "rerun_high",
    "effect",  # Hedges' g of a difference.
    "p",  # The p of a difference by a permutation test.
)
_LARGE = 30  # A target of more sigmas is large.
_MIN_PART_OF_RECORD = 0.5  # A record with fewer of the median record's frames is not whole.
_COUNTS = ("seed", "runs", "episodes", "fewest_frames", "most_frames")
# Measures of a population's members, and how each is made of their scores.
_OF_MEMBERS = {"best_member": "max", "median_member": "median", "worst_member": "min"}
_KEYS = ["measure", "protocol", "task", "agent"]
_RUN = ["agent", "run", "seed"]


def summarise(finals: Sequence[FinalScores], recorded: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Makes a row for each number: agents' over their runs, differences, and each run's.

    The first of `finals` is of the tasks as they are trained on.
    What runs recorded over training are the tables of `tables.recorded`, which leave out runs that
    lag far behind.
    """
    parts = [final.by_run() for final in finals]
    parts += [
        _over_training(recorded["learning_curves"], parts[0]),
        _progress(recorded["progress"]),
        _batches(recorded["batches"]),
        _statistics(recorded["statistics"]),
        _gradients(recorded["gradients"]),
        _members(recorded["members"]),
    ]
    by_run = _table(parts)
    kinds = {
        "agent": [_over_runs(by_run)],
        "measured": [final.measured() for final in finals],
        "published": [final.published() for final in finals],
        "difference": [_differences(by_run)],
        "run": [by_run],
    }
    return _table([part.assign(kind=kind) for kind, own in kinds.items() for part in own])


def agents_numbers(summary: pd.DataFrame, measure: str, **where: str) -> pd.DataFrame:
    """Selects agents' numbers of a measure, over all their runs or published, and random play's."""
    rows = ~summary["kind"].isin(["difference", "run"]) & (summary["measure"] == measure)
    for name, value in where.items():
        rows &= summary[name] == value
    return summary[rows]


def scores_by_task(summary: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Selects agents' scores of each task: normalised, or the returns of those that have none."""
    own = summary[(summary["protocol"] == protocol) & summary["kind"].isin(["agent", "published"])]
    return own[(own["measure"] == "normalised") | _unscored(own)]


def _unscored(table: pd.DataFrame) -> pd.Series:
    """Marks the returns of tasks without normalised scores."""
    scored = table.loc[table["measure"] == "normalised", "task"]
    return (table["measure"] == "return") & ~table["task"].isin(scored)


def _table(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Puts parts with any of the columns below each other."""
    own = [part.reindex(columns=COLUMNS).astype(object) for part in parts if len(part)]
    table = pd.concat(own, ignore_index=True) if own else pd.DataFrame(columns=COLUMNS)
    numbers = COLUMNS[COLUMNS.index("value") :]
    return table.astype(dict.fromkeys(numbers, float) | dict.fromkeys(_COUNTS, "Int64"))


def _over_runs(by_run: pd.DataFrame) -> pd.DataFrame:
    """Averages each agent's runs, with Student's t intervals; a single run keeps its own."""
    by_run = by_run.assign(
        lowest=by_run["lowest"].fillna(by_run["value"]),
        highest=by_run["highest"].fillna(by_run["value"]),
    )
    reduced = {
        **dict.fromkeys(("source", "remark", "low", "high"), "first"),
        **dict.fromkeys(("episodes", "fewest_frames", "lowest"), "min"),
        **dict.fromkeys(("most_frames", "highest"), "max"),
    }
    groups = by_run.groupby(_KEYS, sort=False, dropna=False)
    values = groups["value"].agg(runs="size", value="mean", median="median", deviation="std")
    table = pd.concat([groups.agg(reduced), values], axis=1).reset_index()
    means, runs = table["value"], table["runs"]
    low, high = scores.students_t(means, table["deviation"], runs)
    rerun_low, rerun_high = scores.students_t(means, table["deviation"] * 2**0.5, runs)
    table = table.assign(rerun_low=rerun_low, rerun_high=rerun_high)
    return table.assign(low=low.fillna(table["low"]), high=high.fillna(table["high"]))


def _differences(by_run: pd.DataFrame) -> pd.DataFrame:
    """Compares the scores of every two agents that have several runs and are about equally far.

    Both agents' scores are of tests, or both of training. Returns are compared of tasks without
    normalised scores. An optimality gap says no more than the mean capped, and is left out.
    """
    keys = ["measure", "protocol", "task", "source"]
    scored = ("aggregate", "normalised", "mean_over_training", *_OF_MEMBERS)
    compared = by_run[by_run["measure"].isin(scored) | _unscored(by_run)]
    compared = compared[compared["task"] != "optimality_gap"]
    rows = []
    for key, of_task in compared.groupby(keys, sort=False, dropna=False):
        for first, second, about in _pairs(of_task):
            difference = scores.difference_over_seeds(
                first["value"].to_numpy(), second["value"].to_numpy()
            )
            rows.append(dict(zip(keys, key, strict=True)) | about | difference._asdict())
    every_task = by_run[by_run["measure"] == "normalised"]
    for (protocol, source), own in every_task.groupby(["protocol", "source"], sort=False):
        for *agents, about in _pairs(own):
            both = (agent.pivot(index="run", columns="task", values="value") for agent in agents)
            chance = scores.probability_of_improvement(*(table.to_numpy() for table in both))
            about |= {"protocol": protocol, "source": source, "measure": "aggregate"}
            rows.append(about | {"task": "probability_of_improvement", "mean": chance})
    return pd.DataFrame(rows).rename(columns={"mean": "value"})


def _pairs(table: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]]:
    """Yields the rows of every two agents to be compared, and what a row says of both."""
    by_agent = dict(list(table.groupby("agent", sort=False)))
    for second, first in itertools.combinations(by_agent, 2):
        both = pd.concat([by_agent[first], by_agent[second]])
        fewest, most = both["fewest_frames"].min(), both["most_frames"].max()
        runs = both.groupby("agent")["run"].nunique().min()
        if fewest >= MIN_PART_OF_FRAMES * most and runs > 1:
            about = {"agent": first, "versus": second, "runs": runs, "fewest_frames": fewest}
            about |= {"most_frames": most, "episodes": both["episodes"].min()}
            yield by_agent[first], by_agent[second], about


def _over_training(curves: pd.DataFrame, scored: pd.DataFrame) -> pd.DataFrame:
    """Returns the means of the learning curves' points, of the runs whose final scores count."""
    if not len(scored):
        return scored
    groups = curves[curves["run"].isin(scored["run"])].groupby(_RUN, sort=False)
    frames = groups["frames"].agg(fewest_frames="max", most_frames="max")
    rows = _long(groups[list(scores.Aggregate._fields)].mean(), "task").join(frames, on=_RUN)
    about = {"measure": "mean_over_training", "source": "training"}
    return rows.assign(**about, protocol=scored["protocol"].iloc[0])


def _progress(table: pd.DataFrame) -> pd.DataFrame:
    """Returns each run's median frame rate and entropy (nats), and its largest memory (MiB)."""
    reduced = {"frames_per_second": "median", "memory_mib": "max", "entropy": "median"}
    return _long(table.groupby(_RUN, sort=False).agg(reduced), "measure")


def _batches(table: pd.DataFrame) -> pd.DataFrame:
    """Returns each task's share of a run's rollouts, and the least and the most of a record's.

    A record counts by the frames since the one before. That of a first or last batch has no share
    worth comparing, and is not looked for the least and the most.
    """
    of_task = table.groupby(["run", "task"], sort=False)["frames"]
    frames = of_task.diff().fillna(table["frames"])
    sums = frames.groupby([table["run"], table["task"]]).transform("sum")
    whole = frames >= _MIN_PART_OF_RECORD * frames.groupby(table["run"]).transform("median")
    own = table.assign(value=table["share"] * frames / sums, whole=table["share"].where(whole))
    found = own.groupby([*_RUN, "task"], sort=False).agg(
        value=("value", "sum"), lowest=("whole", "min"), highest=("whole", "max")
    )
    return found.reset_index().assign(measure="batch_share")


def _statistics(table: pd.DataFrame) -> pd.DataFrame:
    """Returns each run's statistics of each task, and the size of its normalised targets.

    Shift and scale are those of the last record. Of targets, in sigmas, it is the largest of all
    records, and the share of records whose largest is above 30.
    """
    largest = table["largest_target"]
    table = table.assign(large_targets=largest.gt(_LARGE).where(largest >= 0))
    reduced = {"shift": "last", "scale": "last", "largest_target": "max", "large_targets": "mean"}
    return _long(table.groupby([*_RUN, "task"], sort=False).agg(reduced), "measure")


def _gradients(table: pd.DataFrame) -> pd.DataFrame:
    """Returns each run's median size of each task's gradient, and mean part of all sizes.

    Both are of the frames that all runs have reached, by `policy` and by `total` loss.
    """
    common = table.groupby("run")["frames"].max().min()
    groups = table[table["frames"] <= common].groupby([*_RUN, "loss", "task"], sort=False)
    rows = _long(groups.agg(size=("norm", "median"), part=("part", "mean")), "what")
    return rows.assign(measure=rows["loss"] + "_gradient_" + rows["what"], most_frames=common)


def _members(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the scores in training of each population's best, median and worst member."""
    groups = table.groupby(_RUN, sort=False)
    frames = groups["frames"].agg(fewest_frames="min", most_frames="max")
    rows = _long(groups["score"].agg(**_OF_MEMBERS), "measure").join(frames, on=_RUN)
    return rows.assign(source="training")


def _long(found: pd.DataFrame, name: str) -> pd.DataFrame:
    """Makes a row of each value that is known, with its column's name in the column `name`."""
    rows = found.melt(var_name=name, ignore_index=False)
    return rows.dropna(subset="value").reset_index()

"""Makes a report's tables of what runs recorded over training, one for each figure."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scalable_agent_popart import scores
from scalable_agent_popart.population.directory import Event
from scalable_agent_popart.report.compare import Agent, Comparison
from scalable_agent_popart.report.read import METRICS, Population, Run

_RUN = ("agent", "reward_clipping", "run", "seed")
_POINTS = 200  # Points of a learning curve, from the start to the end of the longest run.
_MAX_STRETCHES = 40  # Stretches of training in the figure of gradients.


def returns(comparison: Comparison, tasks: Sequence[str]) -> pd.DataFrame:
    """Makes a row per run, task and point from its first episode on: the mean of recent returns."""

    def read(run: Run) -> pd.DataFrame:
        recent = _curves(comparison, run, tasks)
        # The values' name must be no task's, so it is a number at first.
        table = recent.melt(var_name="task", value_name=0, ignore_index=False)
        return table.dropna().reset_index().rename(columns={0: "return"})

    return _of_runs(comparison.runs, ["task", "frames", "return"], read)


def learning_curves(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per run and point, from where every task with reference scores has an episode."""
    references = comparison.suite.reference_scores
    tasks = [task for task in comparison.suite.tasks if task in references]

    def read(run: Run) -> pd.DataFrame:
        recent = _curves(comparison, run, tasks).dropna()
        normalised = [scores.normalise(recent[t].to_numpy(), references[t]) for t in tasks]
        aggregates = scores.aggregate(np.array(normalised))._asdict()  # From [tasks, points].
        return pd.DataFrame({"frames": recent.index, **aggregates})

    names = ["frames", *scores.Aggregate._fields]
    return _of_runs(comparison.runs if tasks else [], names, read)


def statistics(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per run, task and record: PopArt's statistics and the returns next to them."""

    def read(run: Run) -> pd.DataFrame:
        parts = [
            own.assign(episode_return=_recent_returns(run, str(task), own["frames"].to_numpy()))
            for task, own in run.logs["statistics"].groupby("task", sort=False)
            if task in comparison.suite.tasks
        ]
        return pd.concat(parts) if parts else pd.DataFrame()

    names = ["frames", *METRICS["statistics"], "episode_return"]
    return _of_runs(comparison.even_runs, names, read)


def gradients(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per run, loss, task and record: each task's gradient over training.

    `norm` is of `Learner.gradient_norms`, and `part` that over the sum of all tasks' norms.
    """
    table = _logged(comparison, "gradients")[[*_RUN, "loss", "task", "frames", "norm"]]
    table = table[table["task"].isin(comparison.suite.tasks)]
    sums = table.groupby(["run", "frames", "loss"])["norm"].transform("sum")
    return table.assign(part=(table["norm"] / sums.where(sums > 0)).fillna(0.0))


def recorded(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Makes the tables of learning curves, of populations' members and of each kind of metrics.

    Runs that lag far behind are left out of the metrics.
    """
    makers = (learning_curves, statistics, gradients, members)
    logs = {name: _logged(comparison, name) for name in ("progress", "batches")}
    return {make.__name__: make(comparison) for make in makers} | logs


def gradients_over_frames(table: pd.DataFrame) -> pd.DataFrame:
    """Averages the records of one loss over equal stretches of training: median norm, mean part.

    There are at most as many stretches as the run with the fewest records has, so that each holds
    about one of every run. `frames` are the stretches' middles.
    """
    stretches = min(_MAX_STRETCHES, table.groupby("run")["frames"].nunique().min())
    width = table["frames"].max() / stretches
    stretch = ((table["frames"] - 1) // width).clip(0, stretches - 1)
    binned = table.assign(frames=(stretch + 0.5) * width)
    keys = ["agent", "task", "frames"]
    norms = binned.groupby(keys, sort=False)[["norm"]].median()
    runs = binned.groupby([*keys, "run"], sort=False)["part"].mean()
    parts = runs.groupby(keys, sort=False).agg(["mean", "std", "count"])
    low, high = scores.students_t(parts["mean"], parts["std"], parts["count"])
    means = norms.assign(part=parts["mean"], low_part=low, high_part=high).reset_index()
    return means.sort_values("frames", kind="stable", ignore_index=True)


def _curves(comparison: Comparison, run: Run, tasks: Sequence[str]) -> pd.DataFrame:
    """Makes a row per point of a run's learning curves, by frames: each task's recent returns."""
    longest = max(own.frames for _, own in comparison.runs)
    grid = np.linspace(0, longest, _POINTS + 1)[1:].astype(np.int64)
    frames = grid[grid <= run.frames]
    returns = {task: _recent_returns(run, task, frames) for task in tasks}
    return pd.DataFrame(returns, index=pd.Index(frames, name="frames"))


def _recent_returns(run: Run, task: str, frames: np.ndarray) -> np.ndarray:
    """Averages a task's latest episodes up to each of `frames`; NaN before the first."""
    episodes = run.logs["episodes"]
    episodes = episodes[episodes["task"] == task]
    ends = np.searchsorted(episodes["frames"].to_numpy(), frames, side="right")
    begins = np.maximum(ends - scores.RECENT_EPISODES, 0)
    # Each window is summed by itself: differences of a running sum of large returns lose digits.
    padded = np.append(episodes["episode_return"].to_numpy(), 0.0)
    sums = np.add.reduceat(padded, np.stack([begins, ends], axis=1).ravel())[::2]
    return np.where(ends > 0, sums / np.maximum(ends - begins, 1), np.nan)


def populations(comparison: Comparison) -> list[tuple[Agent, Run, Population]]:
    """Returns each population with a run of it; where only members were asked for, with one."""
    found: dict[Path, tuple[Agent, Run, Population]] = {}
    for agent, run in comparison.runs:
        if run.population is not None:
            path = run.population.directory.path.resolve()
            if path not in found or run.population.whole:
                found[path] = agent, run, run.population
    return list(found.values())


def events(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per start or comparison, with the member's own frames: populations' lineages."""
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


def members(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per member, see `read.Member`, of populations whose members all have a score."""
    rows = []
    for agent, run, population in populations(comparison):
        own = [member for member in population.members.values() if member.complete]
        if population.whole and len(own) == run.config.population_size:
            about = _about(agent, run)
            rows += [
                {**about, "member": member.number, "frames": member.frames, "score": member.score}
                for member in own
            ]
    return pd.DataFrame(rows, columns=[*_RUN, "member", "frames", "score"])


def ancestries(comparison: Comparison) -> pd.DataFrame:
    """Makes a row per segment of each population's ancestry, oldest first, in both frame counts."""
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


def _logged(comparison: Comparison, name: str) -> pd.DataFrame:
    """Makes one table of a kind of metrics, as `read.Run.logs` has them of each run."""
    names = ["frames", *METRICS[name]]
    return _of_runs(comparison.even_runs, names, lambda run: run.logs[name])


def _of_runs(
    runs: Sequence[tuple[Agent, Run]],
    columns: Sequence[str],
    read: Callable[[Run], pd.DataFrame],
) -> pd.DataFrame:
    """Makes one table of what `read` finds of each run; an empty one if it finds nothing."""
    parts = [read(run).assign(**_about(agent, run)) for agent, run in runs]
    whole, columns = [part for part in parts if len(part)], [*_RUN, *columns]
    return pd.concat(whole, ignore_index=True)[columns] if whole else pd.DataFrame(columns=columns)


def _about(agent: Agent, run: Run) -> dict[str, Any]:
    values = (agent.label, run.config.reward_clipping, str(run.path), run.seed)
    return dict(zip(_RUN, values, strict=True))

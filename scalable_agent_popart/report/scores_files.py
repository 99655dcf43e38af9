"""Reads returns of other programs' agents, `--scores`, as runs that reports show next to others."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.report.compare import Agent, Comparison
from scalable_agent_popart.report.final_scores import IMPALA, RANDOM
from scalable_agent_popart.report.read import Evaluation, Run
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import Record

_COLUMNS = {"agent": str, "seed": int, "task": str, "frames": int, "return": float}


def add_agents(comparisons: Sequence[Comparison], path: str) -> tuple[list[Comparison], list[str]]:
    """Adds the agents of a CSV file to each comparison whose tasks they have.

    A row of the file is the mean raw return of a task after some frames of a run. Also returns a
    line for each run that lacks tasks. Raises UserError if the file cannot be read, or has a task
    that is in none of the benchmarks.
    """
    table = _read(path)
    suites = [comparison.suite for comparison in comparisons]
    tasks = {task for suite in suites for task in (*suite.tasks, *suite.references("noop"))}
    if unknown := [task for task in table["task"].unique() if task not in tasks]:
        titles = " or ".join(dict.fromkeys(suite.title for suite in suites))
        raise UserError(f"--scores={path}: there is no task {unknown[0]!r} in {titles}; correct it")
    added, left_out = [], []
    for comparison in comparisons:
        agents, config = list(comparison.agents), comparison.runs[0][1].config
        config = replace(config, suite=comparison.suite, population_size=0, reward_clipping="")
        levels = {task: {task, config.suite.test_version(task)} for task in config.suite.tasks}
        of_suite = table[table["task"].isin(set().union(*levels.values()))]
        for name, of_agent in of_suite.groupby("agent", sort=False):
            runs = []
            for seed, rows in of_agent.groupby("seed"):
                run = _run(f"{path}: {name}, seed {seed}", replace(config, seed=seed), rows)
                missing = [task for task in levels if not levels[task] & {*rows["task"]}]
                if missing:
                    left_out.append(f"{run.path} skipped: it has no return of {missing[0]}")
                else:
                    runs.append(run)
            if runs:
                taken = name in [IMPALA, RANDOM, *(agent.label for agent in comparison.agents)]
                label = f"{name} ({path})" if taken else str(name)
                agents.append(Agent(f"{path}: {name}", label, tuple(runs)))
        added.append(replace(comparison, agents=tuple(agents)))
    return added, left_out


def _run(place: str, config: Config, rows: pd.DataFrame) -> Run:
    """Makes a run whose training has the returns of all rows, and its test those of the last."""
    rows = rows.sort_values("frames", kind="stable", ignore_index=True)
    frames = int(rows["frames"].iloc[-1])
    returns = rows.set_index("task")["return"]
    last = {str(task): np.array([value]) for task, value in returns.items()}  # Later rows win.
    nothing = pd.DataFrame(columns=["frames", "task"])
    logs = {"metrics": nothing, "task_metrics": nothing}
    logs["episodes"] = rows.rename(columns={"return": "episode_return"})
    record = Record(replace(config, total_environment_frames=frames))
    return Run(Path(place), record, logs, [Evaluation("noop", frames, last)], from_file=True)


def _read(path: str) -> pd.DataFrame:
    """Reads a file's rows; raises UserError if it lacks a column, has none, or repeats some."""
    try:
        file = os.path.expanduser(path)
        table = pd.read_csv(file, usecols=list(_COLUMNS), dtype=_COLUMNS, keep_default_na=False)
    except (OSError, ValueError) as error:
        advice = f"give a CSV file whose first line is {','.join(_COLUMNS)}"
        raise UserError(f"--scores={path} cannot be read ({error}); {advice}") from error
    if table.empty or not np.isfinite(table["return"]).all():
        raise UserError(f"--scores={path} has no rows, or a return that is not finite; correct it")
    twice = table[table.duplicated(["agent", "seed", "task", "frames"])]
    for row in twice.to_dict("records"):
        what = f"{row['agent']}, seed {row['seed']}, has several returns of {row['task']}"
        advice = "give each run another seed"
        raise UserError(f"--scores={path}: {what} at {row['frames']:,} frames; {advice}")
    return table

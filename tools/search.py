"""Searches hyperparameters by successive halving, for `run_experiment.py --search_frames`.

All agents have the same settings, sampled from the suite's own search space: the ranges of the
paper's populations. In each round the settings that are left train further, each from its own
checkpoint, and the better half goes on. Settings are ranked by the paper's fitness, the mean capped
human-normalised score. A round that has been ranked is kept in a table, and never ranked again.
"""

import collections
import csv
import math
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import run_records

from scalable_agent_popart import scores, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.json_lines import read_lines, to_count, to_number
from scalable_agent_popart.suites.search_space import Distribution
from scalable_agent_popart.system import tensorflow_import

# Seeds from here on are a search's, and smaller ones those of comparisons.
FIRST_SEED = 1_000_000
EPISODES = 10  # The newest of each task that count.
_COLUMNS = ("agent", "frames", "rank", "fitness", "tasks", "setting", "seed")


class Setting(NamedTuple):
    """A sampled setting: its number, and the values of the flags that are searched."""

    number: int
    values: Mapping[str, float]

    @property
    def seed(self) -> str:
        """The seed of its runs, the same for all agents."""
        return str(FIRST_SEED + self.number)

    def write(self, agent: Path, file: Path, remark: str = "") -> None:
        """Writes the agent's flag file with this setting's values after its own."""
        lines = agent.read_text().splitlines()
        lines[:0] = [f"# {remark}"] if remark else []
        lines += (f"--{name}={value:.6g}" for name, value in self.values.items())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")


def sample(level_name: str, number: int) -> list[Setting]:
    """Samples settings from the suite's search space; always the same ones."""
    space = suites.resolve(level_name).search_space
    # In a process of its own: here TensorFlow would hold the GPU that the runs need.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_sample, space, number).result()


def _sample(space: Mapping[str, Distribution], number: int) -> list[Setting]:
    tensorflow_import.import_quietly()
    from scalable_agent_popart.population import rules  # noqa: PLC0415

    return [Setting(i, rules.sample(space, [FIRST_SEED, i])) for i in range(number)]


def rank(
    agent: str, level_name: str, frames: int, runs: Sequence[tuple[Setting, Path]]
) -> list[dict[str, Any]]:
    """Ranks an agent's runs as they were after so many frames; returns rows, the fittest first.

    A task's score is the mean of its newest ten episodes, and that of random play if a run has
    finished none. Tasks that half of the runs or more have not finished do not count. The fitness
    of a run that did not get so far is -inf.

    Raises:
      UserError: if none of the runs got so far, or no task counts.
    """
    suite = suites.resolve(level_name)
    returns = {s.number: _returns(p, frames) for s, p in runs if run_records.frames(p) >= frames}
    if not returns:
        raise UserError(f"no run of {agent} came to {frames} frames; see {runs[0][1]}.log")
    references = suite.reference_scores
    tasks = [
        task
        for task in suite.tasks
        if task in references and 2 * sum(task in own for own in returns.values()) > len(returns)
    ]
    if not tasks:
        raise UserError(
            f"most runs of {agent} have finished no task with a score after {frames} frames: give "
            "more --search_frames"
        )
    rows: list[dict[str, Any]] = []
    for setting, _ in runs:
        fitness = -math.inf
        if setting.number in returns:
            own = returns[setting.number]
            played = {task: own.get(task, [references[task].random]) for task in tasks}
            aggregate = scores.aggregate_returns(played, references)
            fitness = aggregate.mean_capped if aggregate else 0.0
        row: dict[str, Any] = {
            "agent": agent,
            "frames": frames,
            "fitness": f"{fitness:.3f}",
            "tasks": len(tasks),
        }
        row |= {"setting": setting.number, "seed": setting.seed}
        rows.append(row | {name: f"{value:.6g}" for name, value in setting.values.items()})
    rows.sort(key=lambda row: -float(row["fitness"]))
    return [row | {"rank": place} for place, row in enumerate(rows, start=1)]


def _returns(path: Path, frames: int) -> dict[str, list[float]]:
    """Reads the newest returns of each task of a run that ended within so many frames."""

    def convert(line: Any) -> tuple[str, float, int]:
        return str(line["task"]), to_number(line["episode_return"]), to_count(line["frames"])

    log, returns = path / "episodes.jsonl", collections.defaultdict(list)
    for task, value, ended in read_lines(log, convert, []) if log.is_file() else ():
        if ended <= frames:
            returns[task].append(value)
    return {task: values[-EPISODES:] for task, values in returns.items()}


def read_table(file: Path) -> list[dict[str, Any]]:
    """Reads the rounds that have been ranked; none if there is no table."""
    if not file.is_file():
        return []
    with open(file, encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


def write_table(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Writes a row for each agent, round and setting."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", encoding="utf-8", newline="") as table:
        names = [*_COLUMNS, *(name for name in rows[0] if name not in _COLUMNS)]
        writer = csv.DictWriter(table, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

"""Searches hyperparameters by successive halving, for `run_experiment.py --search_frames`.

All agents have the same settings, sampled from the suite's own search space: the ranges of the
paper's populations. In each round the settings that are left train further, each from its own
checkpoint, and the better half goes on. Settings are ranked by the paper's fitness, the mean capped
human-normalised score.
"""

import collections
import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import run_records

from scalable_agent_popart import suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.json_lines import read_lines, to_count, to_number

# Seeds from here on are a search's, and smaller ones those of comparisons.
FIRST_SEED = 1_000_000
EPISODES = 10  # The newest of each task that count.


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


class Result(NamedTuple):
    """What a setting came to in a round; its fitness is -inf if it did not get that far."""

    agent: str
    setting: Setting
    frames: int
    tasks: int
    fitness: float


def sample(level_name: str, number: int) -> list[Setting]:
    """Samples settings from the suite's search space; always the same ones."""
    from scalable_agent_popart.population import pbt  # noqa: PLC0415 - loads TensorFlow.

    space = suites.resolve(level_name).search_space
    return [Setting(i, pbt.sample(space, [FIRST_SEED, i])) for i in range(number)]


def rank(
    agent: str, level_name: str, frames: int, runs: Sequence[tuple[Setting, Path]]
) -> list[Result]:
    """Ranks an agent's runs as they were after so many frames, the fittest first.

    A task's score is the mean of its newest ten episodes. Tasks of which one of the runs had
    finished no episode count for none of them.

    Raises:
      UserError: if none of the runs got that far, or they have finished no task in common.
    """
    from scalable_agent_popart.population import pbt  # noqa: PLC0415 - loads TensorFlow.

    suite = suites.resolve(level_name)
    finished = {setting.number: run_records.frames(path) >= frames for setting, path in runs}
    returns = {setting.number: _returns(path, frames) for setting, path in runs}
    whole = [returns[number] for number, is_finished in finished.items() if is_finished]
    if not whole:
        raise UserError(f"no run of {agent} came to {frames} frames; see {runs[0][1]}.log")
    scored = suite.reference_scores
    tasks = [t for t in scored if t in suite.tasks and all(own.get(t) for own in whole)]
    if not tasks:
        raise UserError(
            f"the runs of {agent} have finished no scored task in common after {frames} frames: "
            "give more --search_frames"
        )
    results = []
    for setting, _ in runs:
        fitness = None
        if finished[setting.number]:
            fitness = pbt.fitness({t: returns[setting.number][t] for t in tasks}, scored)
        value = -math.inf if fitness is None else fitness
        results.append(Result(agent, setting, frames, len(tasks), value))
    return sorted(results, key=lambda result: -result.fitness)


def _returns(path: Path, frames: int) -> dict[str, list[float]]:
    """Reads the newest returns of each task of a run that ended within so many frames."""

    def convert(line: Any) -> tuple[str, float, int]:
        return str(line["task"]), to_number(line["episode_return"]), to_count(line["frames"])

    log, returns = path / "episodes.jsonl", collections.defaultdict(list)
    for task, value, ended in read_lines(log, convert, []) if log.is_file() else ():
        if ended <= frames:
            returns[task].append(value)
    return {task: values[-EPISODES:] for task, values in returns.items()}


def write_table(results: Sequence[Result], file: Path) -> None:
    """Writes a row for each setting, agent and round, with its rank in the round."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", encoding="utf-8", newline="") as out:
        names = list(results[0].setting.values)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("agent", "frames", "rank", "fitness", "tasks", "setting", "seed", *names))
        ranks: dict[tuple[str, int], int] = {}
        for agent, setting, frames, tasks, fitness in results:
            ranks[agent, frames] = place = ranks.get((agent, frames), 0) + 1
            values = (f"{setting.values[name]:.6g}" for name in names)
            row = (agent, frames, place, f"{fitness:.3f}", tasks, setting.number, setting.seed)
            writer.writerow((*row, *values))

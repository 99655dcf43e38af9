"""Searches hyperparameters by successive halving, for `run_experiment.py --search_frames`.

All agents have the same settings, sampled from the suite's own search space, which has the ranges
of the paper's populations. In each round the remaining settings train further, each from its own
checkpoint, and the better half stays. Settings are ranked by the paper's fitness, the mean capped
human-normalised score, or the mean return in a suite without scores to normalise by.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import run_records

from scalable_agent_popart import scores, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.json_lines import read_lines
from scalable_agent_popart.system import tensorflow_import

# A run's seed is this plus its setting's number; comparisons have smaller ones.
FIRST_SEED = 1_000_000
EPISODES = 10  # So many of each task count, the newest.


def write(agent: Path, values: Mapping[str, float], file: Path, remark: str = "") -> None:
    """Writes an agent's flag file with the values of a setting after its own."""
    lines = [f"# {remark}"] if remark else []
    lines += agent.read_text().splitlines()
    lines += (f"--{name}={value:.6g}" for name, value in values.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def sample(level_name: str, number: int) -> list[dict[str, float]]:
    """Samples settings from the suite's search space, the same ones for all agents."""
    tensorflow_import.import_quietly()
    import tensorflow as tf  # noqa: PLC0415

    from scalable_agent_popart.population import rules  # noqa: PLC0415

    tf.config.set_visible_devices([], "GPU")  # The runs need its memory.
    space = suites.resolve(level_name).search_space
    return [rules.sample(space, [FIRST_SEED, i]) for i in range(number)]


def rank(
    agent: str,
    level_name: str,
    frames: int,
    settings: Sequence[Mapping[str, float]],
    paths: Mapping[int, Path],
) -> list[dict[str, Any]]:
    """Ranks an agent's runs as they were after so many frames; returns rows, the fittest first.

    `paths` has a run for some of the settings, by number. A task's score is the mean of its newest
    ten episodes, and that of random play if a run has finished none. Tasks that half of the runs or
    more have not finished do not count. The fitness of a run that did not get so far is -inf.
    Raises UserError if no run did, or no task counts.
    """
    suite = suites.resolve(level_name)
    references = suite.reference_scores
    reached = [number for number, path in paths.items() if run_records.frames(path) >= frames]
    if not reached:
        log = f"{next(iter(paths.values()))}.log"
        raise UserError(f"no run of {agent} came to {frames} frames; see {log}")
    means = pd.DataFrame({number: _means(paths[number], frames) for number in reached})
    finished = means.count(axis="columns")  # By task.
    tasks = [t for t in suite.tasks if t in references and 2 * finished.get(t, 0) > len(reached)]
    if not tasks:
        message = f"most runs of {agent} have finished no task with a score after {frames} frames"
        raise UserError(f"{message}: give more --search_frames")
    means = means.apply(lambda run: run.fillna({task: references[task].random for task in tasks}))
    rows: list[dict[str, Any]] = []
    for number in paths:
        fitness = -math.inf
        if number in reached:
            played = [scores.normalise(means[number][task], references[task]) for task in tasks]
            total = scores.aggregate(played)
            # Raw returns are not in percent, so nothing caps them.
            fitness = total.mean_capped if suite.normalised else total.mean
        row = {"agent": agent, "frames": frames, "rank": 0, "fitness": f"{fitness:.9g}"}
        row |= {"tasks": len(tasks), "setting": number, "seed": FIRST_SEED + number}
        rows.append(row | {name: f"{value:.6g}" for name, value in settings[number].items()})
    rows.sort(key=lambda row: -float(row["fitness"]))
    return [row | {"rank": place} for place, row in enumerate(rows, start=1)]


def _means(path: Path, frames: int) -> pd.Series:
    """Returns the mean of each task's newest returns of a run that ended within so many frames."""
    log, columns = path / "episodes.jsonl", ["task", "frames", "episode_return"]
    table = pd.DataFrame(read_lines(log) if log.is_file() else [], columns=columns)
    newest = table[table["frames"] <= frames].groupby("task").tail(EPISODES)
    return newest.groupby("task")["episode_return"].mean()

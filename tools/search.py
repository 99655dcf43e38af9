"""Searches hyperparameters by successive halving, for `run_experiment.py --search_frames`.

All agents have the same settings, sampled from the suite's own search space, which has the ranges
of the paper's populations. In each round the remaining settings train further, each from its own
checkpoint, and the better half stays. Settings are ranked by the paper's fitness, the mean capped
human-normalised score, or the mean return in a suite without scores to normalise by.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import run_records

from scalable_agent_popart import scores, suites
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import tensorflow_import

# A run's seed is this plus its setting's number; comparisons have smaller ones.
FIRST_SEED = 1_000_000
EPISODES = 10  # So many of each task count, the newest.


def write(agent: Path, values: Mapping[str, float], file: Path, remark: str) -> None:
    """Writes an agent's flag file with the values of a setting after its own."""
    lines = [f"# {remark}", *agent.read_text().splitlines()]
    lines += [f"--{name}={value:.6g}" for name, value in values.items()]
    file.write_text("\n".join(lines) + "\n")


def sample(level_name: str, number: int) -> list[dict[str, float]]:
    """Samples settings from the suite's search space, the same ones for all agents."""
    tensorflow_import.import_quietly()
    import tensorflow as tf  # noqa: PLC0415

    from scalable_agent_popart.population import rules  # noqa: PLC0415

    tf.config.set_visible_devices([], "GPU")  # The runs need its memory.
    space = suites.resolve(level_name).search_space
    return [rules.sample(space, [FIRST_SEED, i]) for i in range(number)]


def rank(level_name: str, frames: int, paths: Mapping[int, Path]) -> list[dict[str, Any]]:
    """Ranks an agent's runs as they were after so many frames; returns rows, the fittest first.

    `paths` has a run for some of the settings, by number. A task's score is the mean of its newest
    ten episodes, and that of random play if a run has finished none. Tasks that half of the runs or
    more have not finished do not count. The fitness of a run that did not get so far is -inf.
    Raises UserError if no run did, or no task counts.
    """
    suite = suites.resolve(level_name)
    reached = [number for number, path in paths.items() if run_records.frames(path) >= frames]
    if not reached:
        log = f"{next(iter(paths.values()))}.log"
        raise UserError(f"no run came to {frames} frames; see {log}")
    means = pd.DataFrame({number: _means(paths[number], frames) for number in reached})
    means = means[2 * means.count(axis="columns") > len(reached)]
    references = {t: suite.reference_scores[t] for t in means.index if t in suite.reference_scores}
    if not references:
        message = f"most runs have finished no task with a score after {frames} frames"
        raise UserError(f"{message}: give more --search_frames")
    played = {t: scores.normalise(means.loc[t], reference) for t, reference in references.items()}
    # Raw returns are not in percent, so nothing caps them.
    capped = pd.DataFrame(played).fillna(0.0).clip(upper=100.0 if suite.normalised else math.inf)
    fitness = capped.mean(axis="columns").reindex(list(paths), fill_value=-math.inf)
    fitness = fitness.sort_values(ascending=False, kind="stable")
    return [
        {
            "frames": frames,
            "rank": place,
            "fitness": f"{fitness[number]:.9g}",
            "tasks": len(references),
            "setting": number,
            "seed": FIRST_SEED + number,
        }
        for place, number in enumerate(fitness.index, start=1)
    ]


def _means(path: Path, frames: int) -> pd.Series:
    """Returns the mean of each task's newest returns of a run that ended within so many frames."""
    columns = ["task", "frames", "episode_return"]
    table = pd.DataFrame(run_records.read_log(path / "episodes.jsonl"), columns=columns)
    newest = table[table["frames"] <= frames].groupby("task").tail(EPISODES)
    return newest.groupby("task")["episode_return"].mean()

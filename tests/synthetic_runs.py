"""Run directories as training and testing leave them, made up in an instant."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalable_agent_popart import evaluation_summary
from scalable_agent_popart.config import Config
from scalable_agent_popart.run_directory import RunDirectory

FRAMES_PER_EPISODE = 1000


def make_run(
    path: Path,
    final_percent: float = 50.0,
    episodes: int = 40,
    tests: Mapping[str, int] = {"noop": 5},
    **flags: Any,
) -> RunDirectory:
    """Writes a run whose returns grow evenly from random play.

    Args:
      path: of the run directory.
      final_percent: the human-normalised score of every task at the end, up to noise.
      episodes: finished in training, of each task.
      tests: starts to the number of test episodes a level.
      **flags: of the run.
    """
    config = Config.from_flags({"logdir": str(path), **flags})
    tasks, references = config.suite.tasks, config.suite.reference_scores
    random = np.random.default_rng(config.seed)
    path.mkdir(parents=True)
    directory = RunDirectory(str(path))
    directory.record(config)
    total = episodes * len(tasks) * FRAMES_PER_EPISODE
    with open(directory.episodes, "w") as file:
        for i in range(episodes * len(tasks)):
            task, done = tasks[i % len(tasks)], (i + 1) / (episodes * len(tasks))
            low, high = references[task]
            percent = final_percent * done * random.uniform(0.9, 1.1)
            record = {
                "task": task,
                "episode_return": low + (high - low) * percent / 100,
                "episode_frames": FRAMES_PER_EPISODE,
                "frames": (i + 1) * FRAMES_PER_EPISODE,
            }
            file.write(json.dumps(record) + "\n")
    with open(directory.metrics, "w") as file:
        for i in range(1, 51):
            record = {"frames": total * i // 50, "frames_per_second": 1000.0, "total_loss": 1.0}
            if config.use_popart:
                spans = {task: references[task].human - references[task].random for task in tasks}
                record["shift"] = {t: s * i / 100 for t, s in spans.items()}
                record["scale"] = {t: abs(s) * (0.1 + i / 300) for t, s in spans.items()}
            file.write(json.dumps(record) + "\n")
    for starts, count in tests.items():
        given = {"mode": "test", "starts": starts}
        if starts == "human":
            given["human_starts_dir"] = "starts"
        write_test(directory, config.for_test(given), total, final_percent, count)
    return directory


def write_test(
    directory: RunDirectory, config: Config, frames: int, percent: float, episodes: int
) -> None:
    """Writes the evaluation of a policy with about this score on every level."""
    suite = config.suite
    random = np.random.default_rng(config.seed)
    returns = {}
    for level in dict.fromkeys([*map(suite.test_version, suite.tasks), *suite.tasks]):
        low, high = suite.references(config.starts)[level]
        noise = random.uniform(0.8, 1.2, size=episodes)
        returns[level] = (low + (high - low) * percent * noise / 100).tolist()
    directory.write_evaluation(evaluation_summary.summarise(config, frames, returns))

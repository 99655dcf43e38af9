"""DmLab-30's levels in their processes beside the module's own speed, on the same cores.

  python benchmarks/engine.py --level_cache_dir=cache --json=engine.json

Needs `deepmind_lab`. All levels act at random, and each plays episodes of one seed, so that once
they have begun their maps come from the cache. In turn, so that what else the machine does slows
all alike:

* raw: each level's process only steps the module and reads its observations, at its own pace;
* yielding: the same, but after each step the process lets another have the core;
* pool: the program's environments, which wait for the next action after each step.

Prints agent steps/s of each, and their work: levels share the cores differently in each, so a step
counts as the processor time that its level's steps took in `raw`.
"""

import functools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from engine_levels import OwnPace, SameEpisodes

from environments import ArraySpec
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites.dmlab.dmlab30 import SUITE
from scalable_agent_popart.suites.process_pool import ProcessPool

FLAGS = flags.FLAGS
flags.DEFINE_string("level_cache_dir", None, "Directory of compiled maps.", required=True)
flags.DEFINE_integer("seconds", 15, "Seconds each measurement lasts.", lower_bound=1)
flags.DEFINE_integer("repeats", 7, "Times that each is measured.", lower_bound=1)
flags.DEFINE_string("json", None, "File to write the results to.")


class Player:
    """Plays a pool of all levels, all of which wait for their turn in between."""

    def __init__(self, level: type[SameEpisodes], options: Any, observation: Any):
        self._size = len(SUITE.tasks)
        self._num_actions = SUITE.action_sets[options.action_set]
        self._random = np.random.default_rng(0)
        make = [functools.partial(level, task, 0, options) for task in SUITE.tasks]
        self.pool = ProcessPool(SUITE.tasks, make, np.arange(self._size), observation)
        self.pool.start()
        self._receive_all(self._size)

    def play(self, seconds: int) -> np.ndarray:
        """Acts at random for so long; returns the steps of each level."""
        steps, ids, end = np.zeros(self._size), np.arange(self._size), time.monotonic() + seconds
        while time.monotonic() < end:
            self.pool.send(ids, self._random.integers(self._num_actions, size=len(ids)))
            ids = self.pool.receive(1.0).ids
            steps[ids] += 1
        self._receive_all(self._size - len(ids))
        return steps

    def play_at_own_pace(self, seconds: int) -> tuple[np.ndarray, np.ndarray]:
        """Lets `OwnPace` levels play; returns the steps of each and their processor time."""
        self.pool.send(np.arange(self._size), np.full(self._size, seconds))
        return self._receive_all(self._size)

    def _receive_all(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Receives so many levels; returns reward and observation of each, if it is a number."""
        rewards, numbers = np.zeros((2, self._size))
        while count:
            ids, output, _ = self.pool.receive(1.0)
            rewards[ids] = output.reward
            if isinstance(output.observation, np.ndarray):
                numbers[ids] = output.observation
            count -= len(ids)
        return rewards, numbers


def main(argv: list[str]) -> None:
    """Measures, prints a table and writes the JSON file."""
    del argv
    given = {"level_name": SUITE.name, "level_cache_dir": FLAGS.level_cache_dir}
    config = Config.from_flags(given)
    try:
        config.check_playable()
    except UserError as error:
        sys.exit(f"error: {error}")
    options = config.environment_options(training=True)
    free = Player(OwnPace, options, ArraySpec((), np.float64))
    pool = Player(SameEpisodes, options, SUITE.observation_spec(options))
    rows: dict[str, list[np.ndarray]] = {"raw": [], "yielding": [], "pool": []}
    took = np.zeros(len(SUITE.tasks))
    try:
        for repeat in range(FLAGS.repeats):
            for name in rows if repeat % 2 else reversed(rows):
                if name == "pool":
                    steps = pool.play(FLAGS.seconds)
                elif name == "yielding":
                    steps, _ = free.play_at_own_pace(-FLAGS.seconds)
                else:
                    steps, seconds = free.play_at_own_pace(FLAGS.seconds)
                    took += seconds
                rows[name].append(steps / FLAGS.seconds)
                print(name, round(rows[name][-1].sum()), flush=True)
    finally:
        free.pool.close()
        pool.pool.close()
    cost = took / FLAGS.seconds / sum(rows["raw"])  # Seconds a step of each level.
    results: dict[str, dict[str, float]] = {}
    print(f"\n{'':<10}{'agent steps/s':>14}{'of raw':>10}{'work, of raw':>14}")
    for name, own in rows.items():
        pairs = list(zip(own, rows["raw"], strict=True))
        result = results[name] = {
            "agent_steps_per_second": statistics.median(rate.sum() for rate in own),
            "of_raw": statistics.median(rate.sum() / raw.sum() for rate, raw in pairs),
            "work_of_raw": statistics.median(rate @ cost / (raw @ cost) for rate, raw in pairs),
        }
        print(f"{name:<10}{result['agent_steps_per_second']:>14,.0f}", end="")
        print(f"{result['of_raw']:>10.3f}{result['work_of_raw']:>14.3f}")
    if FLAGS.json:
        costs = dict(zip(SUITE.tasks, np.round(cost, 6).tolist(), strict=True))
        record = {**results, "seconds_a_step": costs}
        Path(FLAGS.json).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)

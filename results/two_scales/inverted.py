"""The suite `inverted`: games of Atari-57 whose large rewards are small, and the other way round.

Rewards of a game are multiplied by (s / scale)^2, where `scale` is the game's in `games.csv` and s
is the geometric mean over the chosen games. Returns stay those of raw rewards, and so do scores.
"""

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from environments import EnvironmentPool, Lockstep, Ready
from scalable_agent_popart.suites import EnvironmentOptions
from scalable_agent_popart.suites.atari import atari57

with (Path(__file__).parent / "games.csv").open() as _file:
    SCALES = {
        row["game"]: float(row["scale"]) for row in csv.DictReader(_file) if row["chosen"] == "True"
    }
_MEAN = math.prod(SCALES.values()) ** (1 / len(SCALES))
FACTORS = {game: (_MEAN / scale) ** 2 for game, scale in SCALES.items()}


class Inverted(Lockstep):
    """A pool whose rewards are multiplied by a factor of each environment's game."""

    def __init__(self, pool: Lockstep, factors: Sequence[float]):
        super().__init__(*pool.members)
        self._factors = np.array(factors, np.float32)

    def receive(self, seconds: float) -> Ready:
        ready = super().receive(seconds)
        reward = ready.output.reward * self._factors[ready.ids]
        return ready._replace(output=ready.output._replace(reward=reward))


def _make_environments(
    games: Sequence[str], task_ids: np.ndarray, seeds: Sequence[int], options: EnvironmentOptions
) -> EnvironmentPool:
    pool = atari57.SUITE.environment_factory(games, task_ids, seeds, options)
    return Inverted(pool, [FACTORS[game] for game in games])


SUITE = dataclasses.replace(
    atari57.SUITE,
    name="inverted",
    title="Atari with inverted rewards",
    tasks=tuple(SCALES),
    reference_scores={game: atari57.SUITE.reference_scores[game] for game in SCALES},
    human_starts_scores={},
    environment_factory=_make_environments,
)

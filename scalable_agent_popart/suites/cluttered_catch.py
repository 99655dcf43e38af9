"""Cluttered Catch: a small visual task in which only what moves matters.

It is the game of `catch` on a board of 12x12 tiles, with the paddle starting in a random column.
When the ball arrives, the reward is +1 if the paddle is under it and 0 if not, as in eleven of
twelve random games. Ball and paddle are white, and every other tile has a random colour. This
clutter changes only between episodes.
"""

from collections.abc import Sequence

import numpy as np

from environments import Lockstep
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites import suite
from scalable_agent_popart.suites.catch import Boards

_SIZE = 12  # Tiles per side.
_TILE = 4  # Pixels per side: a tile is a cell of pixel control.
_WHITE, _BRIGHTEST_CLUTTER = 255, 127
_TASK = "cluttered_catch"


class ClutteredCatchEnvironments(Boards):
    """N boards of Catch amid clutter, all of the only task."""

    def __init__(self, task_ids: np.ndarray, seeds: Sequence[int]):
        moves = np.tile(np.array([-1, 0, 1], np.int32), (len(task_ids), 1))
        rewards = np.tile(np.array([0, 1], np.float32), (len(task_ids), 1))
        super().__init__(task_ids, seeds, (_SIZE, _SIZE), moves, rewards)
        self._clutter = np.zeros((len(task_ids), _SIZE, _SIZE, 3), np.uint8)

    def place(self, board: int) -> None:
        random = self._random[board]
        self._clutter[board] = random.integers(_BRIGHTEST_CLUTTER + 1, size=(_SIZE, _SIZE, 3))
        self._ball_column[board], self._paddle[board] = random.integers(_SIZE, size=2)

    def draw(self) -> np.ndarray:
        tiles = self._clutter.copy()
        tiles[self._boards, self._ball_row, self._ball_column] = _WHITE
        tiles[self._boards, _SIZE - 1, self._paddle] = _WHITE
        return tiles.repeat(_TILE, axis=1).repeat(_TILE, axis=2)


SUITE = suite.Suite(
    name=_TASK,
    title="Cluttered Catch",
    tasks=(_TASK,),
    action_sets={"moves": 3},
    total_frames=600_000,
    # A blind paddle meets one ball in twelve. Perfect play catches all, since none is too far away.
    reference_scores={_TASK: ReferenceScore(random=1 / _SIZE, human=1.0)},
    full_score="that of catching every ball",
    defaults={"height": _SIZE * _TILE, "width": _SIZE * _TILE, "learning_rate": 3e-3},
    environment_factory=lambda _, task_ids, seeds, __: Lockstep(
        ClutteredCatchEnvironments(task_ids, seeds)
    ),
)

"""Cluttered Catch: a small visual task in which only what moves matters.

The game of `catch` on a board of 12x12 tiles, with the paddle starting in a random column. When the
ball arrives, the reward is +1 if the paddle is under it and 0 if not. Ball and paddle are white,
and every other tile has a colour at random, new in each episode.

In random play the reward is 0 eleven times out of twelve. But the clutter stands still within an
episode: the only tiles that change are those that the ball and the paddle leave or enter.
"""

from collections.abc import Sequence

import numpy as np

from environments import Lockstep
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites import suite
from scalable_agent_popart.suites.catch import Boards

_SIZE = 12  # Tiles a side.
_TILE = 4  # Pixels a side: a tile is a cell of pixel control.
_WHITE = 255
_BRIGHTEST_CLUTTER = 127
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
        self._clutter[board] = random.integers(
            _BRIGHTEST_CLUTTER, size=self._clutter.shape[1:], endpoint=True
        )
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
    # Unseen, a ball is met once in twelve times. Perfect play catches all: none is too far away.
    reference_scores={_TASK: ReferenceScore(random=1 / _SIZE, human=1.0)},
    full_score="that of catching every ball",
    defaults={"height": _SIZE * _TILE, "width": _SIZE * _TILE, "learning_rate": 3e-3},
    environment_factory=lambda _, task_ids, seeds, __: Lockstep(
        ClutteredCatchEnvironments(task_ids, seeds)
    ),
)

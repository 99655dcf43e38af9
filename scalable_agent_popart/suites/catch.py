"""Catch-5: five games of Catch that differ in reward scale, in colour and in controls.

A ball falls from the top of a 10x5 board, one row per step; a paddle in the bottom row moves one
column left, one right, or stays. When the ball reaches the bottom, the episode ends with a reward
of +scale if the paddle is under it, and of -scale if not.

Each task has its own colour, which shows the policy what it plays, and its own order of the actions
left, stay and right. Otherwise the largest rewards alone would teach all five tasks.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from environments import EpisodeCounter, Lockstep, StepOutput
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites import suite

_ROWS, _COLUMNS = 10, 5
_SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)
_COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0], [0, 255, 255]], np.uint8)
# MOVES[task, action] is the paddle's move: five of the six orders of left, stay and right.
_MOVES = np.array(list(itertools.permutations((-1, 0, 1)))[: len(_SCALES)], np.int32)
_NAMES = tuple(f"catch_{scale:g}" for scale in _SCALES)


class Boards:
    """N boards of Catch; subclasses place the pieces and draw them."""

    def __init__(
        self,
        task_ids: np.ndarray,
        seeds: Sequence[int],
        size: tuple[int, int],
        moves: np.ndarray,
        rewards: np.ndarray,
    ):
        """Creates a board of `size` rows and columns for each task id and seed.

        `moves` `[N, 3]` is the paddle's move for each action, and `rewards` float32 `[N, 2]` is for
        a missed ball and for a caught one.
        """
        self.task_ids = task_ids
        self._random = [np.random.default_rng(seed) for seed in seeds]
        self._boards = np.arange(len(task_ids))
        self._rows, self._columns = size
        self._moves, self._rewards = moves, rewards
        self._counter = EpisodeCounter(len(task_ids))
        self._ball_row, self._ball_column, self._paddle = np.zeros((3, len(task_ids)), np.int32)

    def place(self, board: int) -> None:
        """Chooses the columns of a board's ball and paddle for a new episode."""
        raise NotImplementedError

    def draw(self) -> np.ndarray:
        """Returns images of the boards, uint8 `[N, height, width, 3]`."""
        raise NotImplementedError

    def reset(self) -> StepOutput:
        self._begin(self._boards)
        return self._counter.start(self.draw())

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions

    def receive(self) -> StepOutput:
        move = self._moves[self._boards, self._actions]
        self._paddle = np.clip(self._paddle + move, 0, self._columns - 1)
        self._ball_row += 1
        done = self._ball_row == self._rows - 1
        caught = (self._ball_column == self._paddle).astype(int)
        reward = np.where(done, self._rewards[self._boards, caught], np.float32(0))
        info = self._counter.step(reward, done)
        self._begin(self._boards[done])
        return StepOutput(reward, info, done, self.draw())

    def close(self) -> None:
        """Holds nothing to release."""

    def _begin(self, boards: np.ndarray) -> None:
        self._ball_row[boards] = 0
        for board in boards:
            self.place(board)


class CatchEnvironments(Boards):
    """N boards of Catch-5, each with its task's scale, colour and controls."""

    def __init__(self, tasks: Sequence[str], task_ids: np.ndarray, seeds: Sequence[int]):
        game = np.array([_NAMES.index(task) for task in tasks])
        rewards = np.array([[-scale, scale] for scale in _SCALES], np.float32)
        super().__init__(task_ids, seeds, (_ROWS, _COLUMNS), _MOVES[game], rewards[game])
        self._colour = _COLOURS[game]

    def place(self, board: int) -> None:
        self._paddle[board] = _COLUMNS // 2
        self._ball_column[board] = self._random[board].integers(_COLUMNS)

    def draw(self) -> np.ndarray:
        image = np.zeros((len(self._boards), _ROWS, _COLUMNS, 3), np.uint8)
        image[self._boards, self._ball_row, self._ball_column] = self._colour
        image[self._boards, _ROWS - 1, self._paddle] = self._colour
        return image


SUITE = suite.Suite(
    name="catch5",
    title="Catch-5",
    tasks=_NAMES,
    action_sets={"moves": 3},
    total_frames=500_000,
    # A blind paddle meets one ball in five: 1/5 - 4/5 = -0.6. Perfect play catches every ball.
    reference_scores={
        name: ReferenceScore(random=-0.6 * scale, human=scale)
        for name, scale in zip(_NAMES, _SCALES, strict=True)
    },
    full_score="that of catching every ball",
    defaults={
        "height": _ROWS,
        "width": _COLUMNS,
        "unroll_length": 18,
        "learning_rate": 5e-3,
        "entropy_cost": 0.03,
        "pbt_burn_in_frames": 25_000,
    },
    environment_factory=lambda tasks, task_ids, seeds, _: Lockstep(
        CatchEnvironments(tasks, task_ids, seeds)
    ),
)

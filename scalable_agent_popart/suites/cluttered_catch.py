"""Cluttered Catch: a small visual task in which what moves is what matters.

The game of Catch on a board of 12x12 tiles. A ball falls from a random column, one row a step; a
paddle in the bottom row starts in a random column and moves one to the left, stays, or moves one to
the right. When the ball arrives, the episode ends, with +1 if the paddle is under it and 0 if not.
Ball and paddle are white, and every other tile has a colour at random, new in each episode.

To play, only the columns of ball and paddle need to be seen, among 142 tiles that mean nothing. The
reward depends on them only at the end of an episode, after eleven steps, and in random play it is
0 eleven times out of twelve. But the clutter stands still within an episode: the only tiles that
change are those that the ball and the paddle leave or enter.
"""

from collections.abc import Sequence

import numpy as np

import environments
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites import suite

_SIZE = 12  # Tiles a side.
_TILE = 4  # Pixels a side: a tile is a cell of pixel control.
_WHITE = 255
_BRIGHTEST_CLUTTER = 127
_TASK = "cluttered_catch"


class ClutteredCatchEnvironments:
    """N boards of Catch amid clutter."""

    def __init__(self, task_ids: np.ndarray, seeds: Sequence[int]):
        """Creates the boards.

        Args:
          task_ids: int32 `[N]`, all of them the only task's.
          seeds: one for each board, of its colours and of where ball and paddle start.
        """
        self.task_ids = task_ids
        self._random = [np.random.default_rng(seed) for seed in seeds]
        self._boards = np.arange(len(task_ids))
        self._counter = environments.EpisodeCounter(len(task_ids))
        self._clutter = np.zeros((len(task_ids), _SIZE, _SIZE, 3), np.uint8)
        self._ball_row = np.zeros(len(task_ids), np.int32)
        self._ball_column = np.zeros(len(task_ids), np.int32)
        self._paddle = np.zeros(len(task_ids), np.int32)
        self._actions = np.zeros(len(task_ids), np.int32)

    def reset(self) -> environments.StepOutput:
        self._begin(self._boards)
        return environments.initial_step(self._counter, self._draw())

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions

    def receive(self) -> environments.StepOutput:
        # Actions 0, 1, 2 move by -1, 0, 1.
        self._paddle = np.clip(self._paddle + self._actions - 1, 0, _SIZE - 1)
        self._ball_row += 1
        done = self._ball_row == _SIZE - 1
        reward = (done & (self._ball_column == self._paddle)).astype(np.float32)
        info = self._counter.step(reward, done)
        self._begin(self._boards[done])
        return environments.StepOutput(reward, info, done, self._draw())

    def close(self) -> None:
        """Nothing is held."""

    def _begin(self, boards: np.ndarray) -> None:
        self._ball_row[boards] = 0
        for board in boards:
            random = self._random[board]
            self._clutter[board] = random.integers(
                _BRIGHTEST_CLUTTER, size=self._clutter.shape[1:], endpoint=True
            )
            self._ball_column[board], self._paddle[board] = random.integers(_SIZE, size=2)

    def _draw(self) -> np.ndarray:
        """The boards, `[N, 4 * _SIZE, 4 * _SIZE, 3]` bytes."""
        tiles = self._clutter.copy()
        tiles[self._boards, self._ball_row, self._ball_column] = _WHITE
        tiles[self._boards, _SIZE - 1, self._paddle] = _WHITE
        return tiles.repeat(_TILE, axis=1).repeat(_TILE, axis=2)


def _make_environments(
    tasks: Sequence[str],
    task_ids: np.ndarray,
    seeds: Sequence[int],
    options: suite.EnvironmentOptions,
) -> environments.EnvironmentPool:
    del tasks, options  # There is one task, of one size, and one frame is one agent step.
    return environments.Lockstep(ClutteredCatchEnvironments(task_ids, seeds))


SUITE = suite.Suite(
    name=_TASK,
    title="Cluttered Catch",
    tasks=(_TASK,),
    action_sets={"moves": 3},
    num_channels=3,
    scalable=False,
    headline="mean",
    total_frames=600_000,
    # Wherever the paddle goes without looking, the ball falls there once in twelve times. Perfect
    # play, in place of a human's, catches every ball: the farthest is eleven moves away.
    reference_scores={_TASK: ReferenceScore(random=1 / _SIZE, human=1.0)},
    defaults={
        "test_num_episodes": 200,
        "unroll_length": 20,
        "batch_size": 32,
        "num_action_repeats": 1,
        "height": _SIZE * _TILE,
        "width": _SIZE * _TILE,
        "network": "shallow",
        "use_lstm": False,
        "action_set": "moves",
        "reward_clipping": "none",
        "learning_rate": 3e-3,
        "entropy_cost": 0.01,
        "epsilon": 0.01,
        "max_grad_norm": 0.0,
        "popart_step_size": 0.01,
        "pbt_burn_in_frames": 50_000,
        "pbt_episodes": 1000,
    },
    # As runs were recorded before the suite had its task's name.
    other_tasks={"clutter": _TASK}.get,
    environment_factory=_make_environments,
)

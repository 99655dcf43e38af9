"""Catch-5: five games of Catch that differ in reward scale, in colour and in controls.

A ball falls from the top of a 10x5 board, one row a step; a paddle in the bottom row moves one
column left, one right, or stays. The episode ends when the ball reaches the bottom: the reward
is +scale if the paddle is under it, and -scale if not.

The scales are 0.01, 0.1, 1, 10 and 100. Each task paints its pieces in a colour of its own, and
wires the three actions to left, stay and right in an order of its own. So the policy, which is
not told the task, can see it; and what it learns in one task does not score in another, or the
loudest task alone would teach all five.
"""

import itertools
from collections.abc import Sequence

import numpy as np

import environments
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites import suite

_ROWS, _COLUMNS = 10, 5
_SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)
_COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0], [0, 255, 255]], np.uint8)
# MOVES[task, action] is the paddle's move: five of the six orders of left, stay and right.
_MOVES = np.array(list(itertools.permutations((-1, 0, 1)))[: len(_SCALES)], np.int32)
_NAMES = tuple(f"catch_{scale:g}" for scale in _SCALES)


class CatchEnvironments:
    """N boards of Catch, each with its task's scale, colour and controls."""

    def __init__(self, tasks: Sequence[str], task_ids: np.ndarray, seeds: Sequence[int]):
        """Creates the boards.

        Args:
          tasks: each board's task name.
          task_ids: int32 `[N]`.
          seeds: one for each board; it decides where the balls fall.
        """
        self.task_ids = task_ids
        game = np.array([_NAMES.index(task) for task in tasks])
        self._scale = np.array(_SCALES, np.float32)[game]
        self._colour = _COLOURS[game]
        self._moves = _MOVES[game]
        self._random = [np.random.default_rng(seed) for seed in seeds]
        self._boards = np.arange(len(tasks))
        self._counter = environments.EpisodeCounter(len(tasks))
        self._ball_row = np.zeros(len(tasks), np.int32)
        self._ball_column = np.zeros(len(tasks), np.int32)
        self._paddle = np.zeros(len(tasks), np.int32)
        self._actions = np.zeros(len(tasks), np.int32)

    def reset(self) -> environments.StepOutput:
        self._drop_balls(np.ones(len(self._boards), bool))
        return environments.initial_step(self._counter, self._draw())

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions

    def receive(self) -> environments.StepOutput:
        move = self._moves[self._boards, self._actions]
        self._paddle = np.clip(self._paddle + move, 0, _COLUMNS - 1)
        self._ball_row += 1
        done = self._ball_row == _ROWS - 1
        outcome = np.where(self._ball_column == self._paddle, self._scale, -self._scale)
        reward = np.where(done, outcome, 0).astype(np.float32)
        info = self._counter.step(reward, done)
        self._drop_balls(done)
        return environments.StepOutput(reward, info, done, self._draw())

    def close(self) -> None:
        """Nothing is held."""

    def _drop_balls(self, where: np.ndarray) -> None:
        self._ball_row[where] = 0
        self._paddle[where] = _COLUMNS // 2
        for board in np.flatnonzero(where):
            self._ball_column[board] = self._random[board].integers(_COLUMNS)

    def _draw(self) -> np.ndarray:
        """The boards, `[N, rows, columns, 3]` bytes."""
        image = np.zeros((len(self._boards), _ROWS, _COLUMNS, 3), np.uint8)
        image[self._boards, self._ball_row, self._ball_column] = self._colour
        image[self._boards, _ROWS - 1, self._paddle] = self._colour
        return image


def _make_environments(
    tasks: Sequence[str],
    task_ids: np.ndarray,
    seeds: Sequence[int],
    options: suite.EnvironmentOptions,
) -> environments.EnvironmentPool:
    del options  # A board has one size, and one frame is one agent step.
    return environments.Lockstep(CatchEnvironments(tasks, task_ids, seeds))


SUITE = suite.Suite(
    name="catch5",
    title="Catch-5",
    tasks=_NAMES,
    action_sets={"moves": 3},
    num_channels=3,
    scalable=False,
    headline="mean",
    total_frames=500_000,
    # Whatever the paddle does without looking, it meets a uniformly drawn ball once in five
    # times: 1/5 - 4/5 = -0.6. Perfect play, in place of a human's, catches every ball.
    reference_scores={
        name: ReferenceScore(random=-0.6 * scale, human=scale)
        for name, scale in zip(_NAMES, _SCALES, strict=True)
    },
    defaults={
        "test_num_episodes": 200,
        "unroll_length": 18,
        "batch_size": 32,
        "num_action_repeats": 1,
        "height": _ROWS,
        "width": _COLUMNS,
        "network": "shallow",
        "use_lstm": False,
        "action_set": "moves",
        "reward_clipping": "none",
        "learning_rate": 5e-3,
        "entropy_cost": 0.03,
        "epsilon": 0.01,
        "max_grad_norm": 0.0,
        "popart_step_size": 0.01,
        "pbt_burn_in_frames": 25_000,
        "pbt_episodes": 1000,
    },
    environment_factory=_make_environments,
)

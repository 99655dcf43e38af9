"""Tasks whose rewards are hard to normalise, as a suite for `--level_name`.

Each shows a colour of its own and a light on one side. Episodes last twenty steps, and those of
`once` a single one. Only `dense` and `small` reward choosing the side of the light.
"""

import functools
from typing import Any

import gymnasium
import numpy as np

from scalable_agent_popart.suites.gymnasium_suite import make_suite

_STEPS = 20
_EPISODES = 200  # In `rare` one of so many is rewarded.
_COLOURS = {
    "dense": (255, 0, 0),  # 100 for each right choice
    "small": (0, 255, 0),  # 0.01 for each right choice
    "rare": (0, 0, 255),  # 1 at the end of one episode in 200
    "constant": (255, 255, 0),  # 1 for each step
    "once": (0, 255, 255),  # 1 for the only step, so that every return is the same
    "never": (255, 0, 255),
}


class Task(gymnasium.Env):
    """One of the tasks."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, name: str):
        self._name = name

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step = 0
        self._lucky = self.np_random.integers(_EPISODES) == 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        ended = self._name == "once" or self._step == _STEPS
        rewards = {
            "dense": 100.0 * (action == self._side),
            "small": 0.01 * (action == self._side),
            "rare": float(ended and self._lucky),
            "constant": 1.0,
            "once": 1.0,
            "never": 0.0,
        }
        return self._draw(), rewards[self._name], ended, False, {}

    def _draw(self) -> np.ndarray:
        self._side = int(self.np_random.integers(2))
        image = np.zeros((12, 12, 3), np.uint8)
        image[:6] = _COLOURS[self._name]
        image[6:, 6 * self._side : 6 * (self._side + 1)] = 255
        return image


SUITE = make_suite(
    "rare_rewards",
    {name: functools.partial(Task, name) for name in _COLOURS},
    (12, 12, 3),
    num_actions=2,
    total_frames=1_000_000,
)

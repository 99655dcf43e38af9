"""A task without rewards, as a suite for `--level_name`: action 1 switches a light on or off.

The light is the left half of the image. Episodes last ten steps.
"""

from typing import Any

import gymnasium
import numpy as np

from scalable_agent_popart.suites.gymnasium_suite import make_suite

_SIZE = 32
_STEPS = 10


class Switch(gymnasium.Env):
    """The task."""

    observation_space = gymnasium.spaces.Box(0, 255, (_SIZE, _SIZE, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step, self._image = 0, np.zeros((_SIZE, _SIZE, 3), np.uint8)
        return self._image, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        if action:
            self._image = self._image.copy()
            self._image[:, : _SIZE // 2] ^= 255
        return self._image, 0.0, self._step == _STEPS, False, {}


SUITE = make_suite(
    "switch", {"switch": Switch}, (_SIZE, _SIZE, 3), num_actions=2, total_frames=50_000
)

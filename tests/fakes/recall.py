"""A task of memory, as a suite for `--level_name`: which side was lit some steps ago?

One half of the first image is lit, and the next images are dark. The last action of an episode is
rewarded by 1 if it names the side, and by 0 otherwise.
"""

from typing import Any

import gymnasium
import numpy as np

from scalable_agent_popart.suites.gymnasium_suite import make_suite

_STEPS = 4


class Recall(gymnasium.Env):
    """The task."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step, self._side = 0, int(self.np_random.integers(2))
        image = np.zeros((8, 8, 3), np.uint8)
        image[:, 4 * self._side : 4 * (self._side + 1)] = 255
        return image, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        ended = self._step == _STEPS
        reward = float(ended and action == self._side)
        return np.zeros((8, 8, 3), np.uint8), reward, ended, False, {}


SUITE = make_suite("recall", {"recall": Recall}, (8, 8, 3), num_actions=2, total_frames=100_000)

"""Levels of DeepMind Lab for `engine.py`, in a module that their processes import."""

import os
import time
from typing import Any

import numpy as np

from scalable_agent_popart.suites.dmlab.dmlab30 import DmLabLevel

_SEED = 1


class SameEpisodes(DmLabLevel):
    """A level all of whose episodes have the same seed."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._random: Any = self

    def integers(self, _: int) -> int:
        """Stands in for the generator of the episodes' seeds."""
        return _SEED


class OwnPace(SameEpisodes):
    """A level that plays at its own pace whenever it has the turn.

    The action says for how many seconds, and is negative if the level yields the core after each
    step. The reward counts the steps, and the observation is the processor time they took.
    """

    def reset(self) -> Any:
        super().reset()
        return np.float64(0.0)

    def step(self, action: int) -> tuple[float, bool, Any]:
        steps, lab = 0, self._lab
        began, end = time.process_time(), time.monotonic() + abs(action)
        # In advance, as to draw one alone takes a while.
        drawn = np.random.default_rng(0).integers(len(self._actions), size=10**5).tolist()
        while time.monotonic() < end:
            lab.step(self._actions[drawn[steps % len(drawn)]], num_steps=self._num_action_repeats)
            if not lab.is_running():
                lab.reset(seed=_SEED)
            lab.observations()
            steps += 1
            if action < 0:
                os.sched_yield()
        return steps, False, np.float64(time.process_time() - began)

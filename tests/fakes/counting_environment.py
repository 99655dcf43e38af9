"""An environment that writes into every observation where it came from."""

from typing import NamedTuple

import numpy as np

import environments

EPISODE_STEPS = 7  # Coprime to rollout lengths, so that episodes end anywhere in a rollout.


class Observed(NamedTuple):
    environment: int  # its number, unique over all
    task: int
    step: int  # agent steps since the very first reset
    action: int  # the action that led here


class CountingEnvironments:
    """N environments: observations `[N, 1, 4, 1]` hold `Observed`, rewards the step modulo 5."""

    def __init__(self, task_ids: np.ndarray, first_number: int = 0):
        self.task_ids = np.asarray(task_ids, np.int32)
        self._numbers = first_number + np.arange(len(task_ids))
        self._counter = environments.EpisodeCounter(len(task_ids))
        self._step = 0
        self.closed = False

    def reset(self) -> environments.StepOutput:
        return self._counter.start(self._observe(np.zeros(len(self.task_ids))))

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions

    def receive(self) -> environments.StepOutput:
        self._step += 1
        size = len(self.task_ids)
        done = np.full(size, self._step % EPISODE_STEPS == 0)
        reward = np.full(size, self._step % 5, np.float32)
        info = self._counter.step(reward, done)
        return environments.StepOutput(reward, info, done, self._observe(self._actions))

    def close(self) -> None:
        self.closed = True

    def _observe(self, actions: np.ndarray) -> np.ndarray:
        fields = [self._numbers, self.task_ids, np.full(len(actions), self._step), actions]
        return np.stack(fields, axis=1).astype(np.uint8)[:, np.newaxis, :, np.newaxis]


OBSERVATION = environments.ArraySpec((1, 4, 1), np.uint8)


def observed(observation: np.ndarray) -> Observed:
    """Reads one observation `[1, 4, 1]`."""
    return Observed(*(int(value) for value in np.asarray(observation)[0, :, 0]))

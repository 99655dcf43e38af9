"""A batched environment that logs what is asked of it."""

import numpy as np

import environments


class RecordingEnvironment:
    """Writes every call into a log that it shares; a reward names task and action."""

    def __init__(self, name: str, task_ids: list[int], calls: list[str]):
        self.task_ids = np.array(task_ids, np.int32)
        self._name, self._calls = name, calls
        self._counter = environments.EpisodeCounter(len(task_ids))

    def reset(self) -> environments.StepOutput:
        return self._counter.start(self.task_ids)

    def send(self, actions: np.ndarray) -> None:
        self._calls.append(f"send {self._name}")
        self._actions = actions.copy()

    def receive(self) -> environments.StepOutput:
        self._calls.append(f"receive {self._name}")
        done = self._actions == 0
        reward = (self.task_ids * 10 + self._actions).astype(np.float32)
        info = self._counter.step(reward, done)
        return environments.StepOutput(reward, info, done, self._actions)

    def close(self) -> None:
        self._calls.append(f"close {self._name}")
        if self._name == "b":
            raise OSError("b cannot be closed")

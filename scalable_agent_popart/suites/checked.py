"""What holds environments against what they declare: checks of steps, and errors that name them."""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

from environments import (
    ArraySpec,
    Environment,
    EnvironmentLostError,
    EnvironmentPool,
    EpisodeCounter,
    InvalidStepError,
    Ready,
    StepOutput,
    report,
)
from scalable_agent_popart.errors import describe

_MAX_NAMED = 5  # Tasks in a message.
_MAX_REWARD = float(np.finfo(np.float32).max)
# The compiled policy takes no other types, and its error would name no environment.
_STEP_TYPES = {
    "reward": "float32",
    "done": "bool",
    "episode_return": "float64",
    "episode_step": "int32",
    "episode_end": "bool",
}


def step_fault(declared: Any, reward: Any, observation: Any, *size: int) -> str:
    """Returns what is not as declared in a step of one environment, or of `size`; or nothing.

    Observations are declared by nested `ArraySpec`s, and rewards must be finite as float32. Nothing
    is converted: a float in [0, 1] would make a black image, and a NaN would spread to all tasks.
    """
    specs, arrays = tree.flatten(declared), tree.flatten(observation)
    if len(specs) != len(arrays):
        return f"an observation is declared as {len(specs)} arrays, and has {len(arrays)}"
    for array, spec in zip(arrays, specs, strict=True):
        shape = size + spec.shape
        if getattr(array, "dtype", None) != spec.dtype or array.shape != shape:
            expected, actual = ArraySpec(shape, spec.dtype), np.asarray(array)
            is_now = ArraySpec(actual.shape, actual.dtype)
            return f"an observation is declared as {expected}, and is {is_now}"
    rewards = np.asarray(reward)
    if rewards.dtype.kind not in "fiub" or rewards.shape != size:
        return f"a reward must be a number, and is {reward!r:.100}"
    # Some environments take no longer for a whole step than NumPy for a reduction.
    largest = abs(rewards).max(initial=0.0) if size else abs(float(rewards))
    if not largest <= _MAX_REWARD:
        return f"a reward must be a finite float32, and is {reward!r:.100}"
    return ""


class SerialEnvironments:
    """A batched environment of N single ones, stepped one after the other."""

    def __init__(
        self,
        make: Sequence[Callable[[], Environment]],
        task_ids: np.ndarray,
        names: Sequence[str],
        observation: Any,
    ):
        """Makes N environments of these names; observations must fit nested `ArraySpec`s."""
        self.task_ids = task_ids
        self._names = [f"{name} (environment {i})" for i, name in enumerate(names)]
        self._declared = observation
        self._counter = EpisodeCounter(len(make))
        self._members: list[Environment] = []
        self._resources = contextlib.ExitStack()  # It closes all, even if closing one fails.
        for i, each in enumerate(make):
            self._members.append(self._play(i, each))
            self._resources.callback(self._members[-1].close)
            report(1)

    def reset(self) -> StepOutput:
        observations = [self._play(i, member.reset) for i, member in enumerate(self._members)]
        return self._counter.start(self._stack([0.0] * len(observations), observations))

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions

    def receive(self) -> StepOutput:
        taken = enumerate(zip(self._members, self._actions.tolist(), strict=True))
        steps = [self._play(i, member.step, action) for i, (member, action) in taken]
        rewards, dones, observations = zip(*steps, strict=True)
        observation = self._stack(rewards, observations)
        reward, done = np.array(rewards, np.float64), np.array(dones, bool)
        info = self._counter.step(reward, done)
        return StepOutput(reward.astype(np.float32), info, done, observation)

    def close(self) -> None:
        self._resources.close()

    def _play(self, i: int, method: Callable, *action: int) -> Any:
        """Calls a function of environment i, whose errors name it and where they were raised."""
        try:
            return method(*action)
        except Exception as error:
            *_, last = traceback.extract_tb(error.__traceback__)
            place = f"{last.filename}, line {last.lineno}"
            message = f"{self._names[i]} raised {describe(error)} ({place})"
            raise self._lost(EnvironmentLostError(message)) from error

    def _stack(self, rewards: Sequence[float], observations: Sequence[Any]) -> Any:
        """Stacks observations of steps, which must be as declared."""
        for name, *step in zip(self._names, rewards, observations, strict=True):
            if fault := step_fault(self._declared, *step):
                raise self._lost(InvalidStepError(f"{name}: {fault}"))
        return tree.map_structure(lambda *arrays: np.stack(arrays), *observations)

    def _lost(self, error: EnvironmentLostError) -> EnvironmentLostError:
        """Closes all environments; what that raises must not hide the error, which it returns."""
        with contextlib.suppress(Exception):
            self._resources.close()
        return error


class CheckedPool:
    """A pool that compares what another one returns with what was declared of it.

    It raises InvalidStepError if that does not fit, or if a type is not that of `StepOutput`.
    """

    def __init__(self, pool: EnvironmentPool, names: Sequence[str], observation: Any):
        """Takes a pool, its environments' names and nested `ArraySpec`s of an observation."""
        self.task_ids, self.lockstep, self.groups = pool.task_ids, pool.lockstep, pool.groups
        self.restarts = pool.restarts  # The same array, in which the pool counts.
        self.start, self.send, self.close = pool.start, pool.send, pool.close
        self._pool, self._names, self._declared = pool, names, observation

    def receive(self, seconds: float) -> Ready:
        ready = self._pool.receive(seconds)
        reward, info, done, observation = ready.output
        fault = step_fault(self._declared, reward, observation, len(ready.ids))
        for name, array in {"reward": reward, "done": done, **info._asdict()}.items():
            if not fault and (dtype := getattr(array, "dtype", None)) != _STEP_TYPES[name]:
                fault = f"{name} must be of type {_STEP_TYPES[name]}, and is {dtype}"
        if fault:
            raise InvalidStepError(f"{name_some([self._names[i] for i in ready.ids])}: {fault}")
        return ready


def name_some(names: Sequence[str]) -> str:
    """Lists environments' names for a message, each once, and not too many."""
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:_MAX_NAMED]) + ", ..." * (len(distinct) > _MAX_NAMED)

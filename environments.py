"""The environment contract: what actors and environments say to each other.

NumPy and dm-tree (for nested arrays) only, no TensorFlow, so that a process that only emulates
stays small and starts fast. A *batched environment* steps N environments in lockstep.

Episodes and games. `done` marks the end of a training episode: the return is cut and the
recurrent state reset there. `info.episode_end` marks the end of what scores are counted in,
which in Atari is the whole game: a lost life is `done` without being an `episode_end`.

A step that is `done` carries the reward of the last transition and the *first* observation of
the next episode: environments restart within the step, and no observation is repeated.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tree


class ArraySpec(NamedTuple):
    """Shape and type of one environment's array, without the batch dimension."""

    shape: tuple[int, ...]
    dtype: Any


class StepOutputInfo(NamedTuple):
    """Progress of the scored episode, up to and including the step; each `[N]`.

    Where `episode_end`, these are the totals of the episode that ended.
    """

    episode_return: np.ndarray  # float32, undiscounted sum of raw rewards
    episode_step: np.ndarray  # int32, agent steps
    episode_end: np.ndarray  # bool


class StepOutput(NamedTuple):
    """What an environment returns for one agent step; `[N, ...]`."""

    reward: np.ndarray  # float32 [N], raw
    info: StepOutputInfo
    done: np.ndarray  # bool [N]
    observation: Any  # nested arrays [N, ...]


class BatchedEnvironment(Protocol):
    """N environments stepped in lockstep.

    `send` and `receive` split a step in two, so that several batched environments can work at
    the same time: send to all, then receive from all.
    """

    task_ids: np.ndarray  # int32 [N], the task each environment plays

    def reset(self) -> StepOutput:
        """Starts every environment; reward 0 and `done` True everywhere."""
        ...

    def send(self, actions: np.ndarray) -> None:
        """Hands over one action `[N]` (int32) an environment."""
        ...

    def receive(self) -> StepOutput:
        """Waits for the step begun by `send`."""
        ...

    def close(self) -> None:
        """Releases what the environments hold; may be called twice."""
        ...


class EpisodeCounter:
    """Keeps `StepOutputInfo` for N environments."""

    def __init__(self, num_environments: int):
        self._return = np.zeros(num_environments, np.float32)
        self._step = np.zeros(num_environments, np.int32)

    def start(self) -> StepOutputInfo:
        """The info that goes with a reset."""
        self._return[:] = 0
        self._step[:] = 0
        return StepOutputInfo(
            self._return.copy(), self._step.copy(), np.zeros(self._step.shape, bool)
        )

    def step(self, reward: np.ndarray, episode_end: np.ndarray) -> StepOutputInfo:
        """Adds one step with raw rewards `[N]`; episodes that end start again at zero."""
        self._return += reward
        self._step += 1
        info = StepOutputInfo(self._return.copy(), self._step.copy(), episode_end)
        self._return[episode_end] = 0
        self._step[episode_end] = 0
        return info


def initial_step(counter: EpisodeCounter, observation: Any) -> StepOutput:
    """The `StepOutput` of a reset, for the first observations `[N, ...]`."""
    info = counter.start()
    num_environments = info.episode_step.shape[0]
    return StepOutput(
        reward=np.zeros(num_environments, np.float32),
        info=info,
        done=np.ones(num_environments, bool),
        observation=observation,
    )


class EnvironmentGroup:
    """Several batched environments as one, stepped at the same time.

    Environments keep the order of the members they came from.
    """

    def __init__(self, members: Sequence[BatchedEnvironment]):
        self._members = list(members)
        self.task_ids = np.concatenate([member.task_ids for member in self._members])
        sizes = [len(member.task_ids) for member in self._members]
        self._boundaries = np.cumsum(sizes)[:-1]

    def reset(self) -> StepOutput:
        return _concatenate([member.reset() for member in self._members])

    def send(self, actions: np.ndarray) -> None:
        parts = np.split(actions, self._boundaries)
        for member, part in zip(self._members, parts, strict=True):
            member.send(part)

    def receive(self) -> StepOutput:
        return _concatenate([member.receive() for member in self._members])

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # Closes the others even if one fails.
            for member in self._members:
                stack.callback(member.close)


def _concatenate(outputs: Sequence[StepOutput]) -> StepOutput:
    return tree.map_structure(lambda *arrays: np.concatenate(arrays), *outputs)

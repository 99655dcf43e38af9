"""The environment contract: what actors and environments say to each other.

NumPy and dm-tree (for nested arrays) only, no TensorFlow, so that a process that only emulates
stays small and starts fast. Actors play an *environment pool*, whose N environments need not
wait for one another. A *batched environment* steps N environments in lockstep, and `Lockstep`
makes a pool of one or several; a single `Environment` can be played in a process of its own.

Episodes and games. `done` marks the end of a training episode: the return is cut and the
recurrent state reset there. `info.episode_end` marks the end of what scores are counted in,
which in Atari is the whole game: a lost life is `done` without being an `episode_end`.

A step that is `done` carries the reward of the last transition and the *first* observation of
the next episode: environments restart within the step, and no observation is repeated.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import tree


@dataclass(frozen=True)
class ArraySpec:
    """Shape and type of one environment's array, without the batch dimension."""

    shape: tuple[int, ...]
    dtype: Any


class Observation(NamedTuple):
    """What is seen where an image is not all; otherwise the observation is the image itself."""

    image: Any  # uint8 [N, height, width, channels]
    # int32 [N, MAX_WORDS]: the words in order, each one's bucket in 1 to NUM_WORD_BUCKETS; then 0.
    instruction: Any


def image_of(observation: Any) -> Any:
    """The image of an observation, `[..., height, width, channels]`, whatever else is in it."""
    return observation.image if isinstance(observation, Observation) else observation


MAX_WORDS = 64
NUM_WORD_BUCKETS = 1000


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


class Ready(NamedTuple):
    """M of N environments that have stepped and wait for their next action."""

    ids: np.ndarray  # int64 [M], ascending: which of the N
    output: StepOutput  # [M, ...]
    # bool [M]: nothing leads from the environment's step before to this one, which begins its
    # first episode, or its first since it was lost and started again. Reward 0 and `done`.
    fresh: np.ndarray


class EnvironmentPool(Protocol):
    """N environments that need not wait for one another.

    Each takes turns with its actor: it is received, then sent one action, then received again.
    One that is sent nothing rests. Unless they go `together`, the actor may take its time with
    some and go on with others; if they do, it may only leave out whole groups, for good.
    """

    task_ids: np.ndarray  # int32 [N], the task each environment plays
    restarts: np.ndarray  # int64 [N], how often each was lost and started again
    together: bool  # whether actions go to all that are not to rest at once
    groups: np.ndarray  # int64 [N], a number for each group that can rest without the others

    def start(self) -> None:
        """Begins the first episodes."""
        ...

    def receive(self, seconds: float) -> Ready:
        """Waits about so long, if need be, for environments to be ready; there may be none.

        Raises:
          EnvironmentLostError: if one cannot be kept going.
        """
        ...

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        """Hands over actions `[M]` (int32) to environments that were received, `ids` ascending.

        Raises:
          EnvironmentLostError: as `receive`.
        """
        ...

    def close(self) -> None:
        """Releases what the environments hold; may be called twice."""
        ...


class EnvironmentLostError(RuntimeError):
    """An environment failed and starting it again does not help; says why in one line."""


class Environment(Protocol):
    """A single environment, for a process of its own to play."""

    def reset(self) -> Any:
        """Begins the first episode; returns its first observation, without a batch dimension."""
        ...

    def step(self, action: int) -> tuple[float, bool, Any]:
        """Returns the raw reward, whether the episode ended, and the observation.

        After the end that is the first observation of the next episode.
        """
        ...

    def close(self) -> None:
        """Releases what the environment holds."""
        ...


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

    def step(
        self,
        reward: np.ndarray,
        episode_end: np.ndarray,
        ids: np.ndarray | slice = slice(None),
        begins: np.ndarray | bool = False,
    ) -> StepOutputInfo:
        """Adds one step of each environment; episodes that end start again at zero.

        Args:
          reward: `[M]`, raw.
          episode_end: `[M]`.
          ids: `[M]`, which of the N environments; by default all.
          begins: `[M]`, where no step was taken and an episode begins from nothing.
        """
        played = np.logical_not(begins)
        self._return[ids] = (self._return[ids] + reward) * played
        self._step[ids] = (self._step[ids] + 1) * played
        # Indexing with integers copies; a slice does not.
        info = StepOutputInfo(self._return[ids].copy(), self._step[ids].copy(), episode_end)
        self._return[ids] *= ~episode_end
        self._step[ids] *= ~episode_end
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


class Lockstep:
    """Batched environments as a pool: all that are not at rest are stepped at the same time.

    Each of them is a group; environments keep the order of the members they came from.
    """

    together = True

    def __init__(self, *members: BatchedEnvironment):
        self.members = members
        self.task_ids = np.concatenate([member.task_ids for member in members])
        self.restarts = np.zeros(len(self.task_ids), np.int64)
        self.groups = np.repeat(
            np.arange(len(members)), [len(member.task_ids) for member in members]
        )
        self._first: list[StepOutput] = []
        self._at_work = np.arange(len(self.task_ids))  # Environments.

    def start(self) -> None:
        self._at_work = np.arange(len(self.task_ids))
        self._first = [member.reset() for member in self.members]

    def receive(self, seconds: float) -> Ready:
        first, self._first = self._first, []
        at_work = np.unique(self.groups[self._at_work])
        output = concatenate(first or [self.members[i].receive() for i in at_work])
        return Ready(self._at_work, output, np.full(len(self._at_work), bool(first)))

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        self._at_work = ids
        groups, begins = np.unique(self.groups[ids], return_index=True)
        for i, part in zip(groups, np.split(actions, begins[1:]), strict=True):
            self.members[i].send(part)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # Closes the others even if one fails.
            for member in self.members:
                stack.callback(member.close)


def concatenate(outputs: Sequence[StepOutput]) -> StepOutput:
    """The outputs of several batches of environments as one."""
    if len(outputs) == 1:
        return outputs[0]
    return tree.map_structure(lambda *arrays: np.concatenate(arrays), *outputs)

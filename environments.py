"""The environment contract: what actors and environments exchange.

It needs only NumPy and dm-tree, so that processes that emulate stay small. An actor plays an
*environment pool*, whose N environments need not wait for one another. A *batched environment*
steps N environments in lockstep; `Lockstep` makes a pool of one or several. A single `Environment`
runs in its own process, or with others in one batched environment.

`done` marks the end of a training episode: the return is cut and the recurrent state reset there.
`info.episode_end` marks the end of a scored episode, which in Atari is the whole game: a lost life
is `done` and no `episode_end`. A step that is `done` carries the reward of the last transition and
the *first* observation of the next episode: environments restart within the step, and no
observation is repeated.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import tree


@dataclass(frozen=True)
class ArraySpec:
    """Shape and type of one environment's array, without the batch dimension."""

    shape: tuple[int, ...]
    dtype: Any

    def __str__(self) -> str:
        return f"{np.dtype(self.dtype)} {self.shape}"


class Observation(NamedTuple):
    """An image with an instruction; without instructions an observation is the image itself."""

    image: Any  # uint8 [N, height, width, channels]
    # int32 [N, MAX_WORDS]: each word's hash bucket, from 1 to NUM_WORD_BUCKETS; padded with 0.
    instruction: Any


MAX_WORDS = 64
NUM_WORD_BUCKETS = 1000


def image_of(observation: Any) -> Any:
    """Returns the image of an observation, `[..., height, width, channels]`."""
    return observation.image if isinstance(observation, Observation) else observation


class StepOutputInfo(NamedTuple):
    """Totals of the scored episode `[N]`, with this step; at its end, those of the ended one."""

    episode_return: np.ndarray  # float64, undiscounted sum of raw rewards
    episode_step: np.ndarray  # int32, agent steps
    episode_end: np.ndarray  # bool


class StepOutput(NamedTuple):
    """Result of one agent step; `[N, ...]`."""

    reward: np.ndarray  # float32 [N], raw
    info: StepOutputInfo
    done: np.ndarray  # bool [N]
    observation: Any  # nested arrays [N, ...]


class Ready(NamedTuple):
    """M of N environments that have stepped and wait for their next action."""

    ids: np.ndarray  # int64 [M], ascending indices into the N environments
    output: StepOutput  # [M, ...]
    fresh: np.ndarray  # bool [M], just started or restarted; such a step is `done` with reward 0


class EnvironmentPool(Protocol):
    """N environments; `receive` and `send` raise EnvironmentLostError if one cannot be kept."""

    task_ids: np.ndarray  # int32 [N], the task that each environment plays
    # If true, actions must go to all at once. A test may leave out whole groups once it has enough
    # of their episodes, and then leaves them out to its end.
    lockstep: bool
    groups: np.ndarray  # int64 [N], the group of each, which can rest while others play
    restarts: np.ndarray  # int64 [N], counts in place how often each was lost and began again

    def start(self) -> None:
        """Begins the first episodes."""

    def receive(self, seconds: float) -> Ready:
        """Waits up to about `seconds` for environments to be ready; there may be none."""

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        """Sends actions int32 `[M]` to environments that were received, `ids` ascending."""

    def close(self) -> None:
        """Releases what the environments hold; may be called twice."""


class EnvironmentLostError(RuntimeError):
    """An environment failed and restarting it does not help; the message is one line."""


class InvalidStepError(EnvironmentLostError):
    """An environment returned what it may not return, and would do so again."""


class Environment(Protocol):
    """A single environment; its observations have no batch dimension."""

    def reset(self) -> Any:
        """Begins the first episode and returns its first observation."""

    def step(self, action: int) -> tuple[float, bool, Any]:
        """Returns the raw reward, `done`, and the next observation, of the next episode if done."""

    def close(self) -> None:
        """Releases what the environment holds."""


class BatchedEnvironment(Protocol):
    """N environments in lockstep; several of these can work on a step at the same time."""

    task_ids: np.ndarray  # int32 [N], the task that each environment plays

    def reset(self) -> StepOutput:
        """Starts every environment; reward 0 and `done` True everywhere."""

    def send(self, actions: np.ndarray) -> None:
        """Begins a step with actions int32 `[N]`."""

    def receive(self) -> StepOutput:
        """Waits for the step begun by `send`."""

    def close(self) -> None:
        """Releases what the environments hold; may be called twice."""


_report: ContextVar[Callable[[int], object]] = ContextVar("report", default=lambda number: None)


@contextlib.contextmanager
def reporting(to: Callable[[int], object]) -> Iterator[None]:
    """Calls a function with the number of environments that this thread has made or started."""
    token = _report.set(to)
    try:
        yield
    finally:
        _report.reset(token)


def report(number: int) -> None:
    """Reports that so many more environments are made, or started, to whoever shows progress."""
    _report.get()(number)


class EpisodeCounter:
    """Keeps the episode totals of N environments."""

    def __init__(self, num_environments: int):
        self._return = np.zeros(num_environments)  # A float32 would stand still at 2^24 + 1.
        self._step = np.zeros(num_environments, np.int32)

    def start(self, observation: Any) -> StepOutput:
        """Starts all episodes; returns the output of a reset to these observations `[N, ...]`."""
        reward = np.zeros(len(self._return), np.float32)
        info = self.step(reward, np.zeros(len(reward), bool), begins=True)
        return StepOutput(reward, info, np.ones(len(reward), bool), observation)

    def step(
        self,
        reward: np.ndarray,
        episode_end: np.ndarray,
        ids: np.ndarray | slice = slice(None),
        begins: np.ndarray | bool = False,
    ) -> StepOutputInfo:
        """Adds a step of M environments, except where one `begins`; totals restart after an end."""
        played = np.logical_not(begins)
        episode_return = np.where(played, self._return[ids] + reward, 0.0)
        episode_step = (self._step[ids] + 1) * played
        self._return[ids] = np.where(episode_end, 0.0, episode_return)
        self._step[ids] = episode_step * ~episode_end
        return StepOutputInfo(episode_return, episode_step, episode_end)


class Lockstep:
    """A pool of batched environments, each a group; those that do not rest step together."""

    lockstep = True

    def __init__(self, *members: BatchedEnvironment):
        self.members = members
        self.task_ids = np.concatenate([member.task_ids for member in members])
        self.restarts = np.zeros(len(self.task_ids), np.int64)
        self.groups = np.repeat(np.arange(len(members)), [len(m.task_ids) for m in members])

    def start(self) -> None:
        self._stepping = np.arange(len(self.task_ids))  # Environments that are not at rest.
        self._first = []
        for member in self.members:
            self._first.append(member.reset())
            report(len(member.task_ids))

    def receive(self, seconds: float) -> Ready:
        first, self._first = self._first, []
        groups = np.unique(self.groups[self._stepping])
        outputs = first or [self.members[i].receive() for i in groups]
        output = outputs[0]
        if len(outputs) > 1:
            output = tree.map_structure(lambda *arrays: np.concatenate(arrays), *outputs)
        return Ready(self._stepping, output, np.full(len(self._stepping), bool(first)))

    def send(self, ids: np.ndarray, actions: np.ndarray) -> None:
        self._stepping = ids
        groups, begins = np.unique(self.groups[ids], return_index=True)
        for i, part in zip(groups, np.split(actions, begins[1:]), strict=True):
            self.members[i].send(part)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # It closes all, even if closing one fails.
            for member in self.members:
                stack.callback(member.close)

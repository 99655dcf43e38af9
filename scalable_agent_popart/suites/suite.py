"""What the rest of the system knows about a benchmark."""

import csv
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import numpy as np

import environments
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.scores import ReferenceScore


@dataclass(frozen=True)
class EnvironmentOptions:
    """How a suite's environments are to behave.

    Attributes:
      num_action_repeats: environment frames an agent step lasts.
      height: of the observation, in pixels.
      width: of the observation, in pixels.
      training: whether `done` also marks what ends an episode only while training (in Atari
        the loss of a life).
    """

    num_action_repeats: int
    height: int
    width: int
    training: bool = True


# Makes the batched environment that plays the named tasks, one environment a name. The ids
# are what it reports as `task_ids`, the seeds make each environment's randomness its own.
MakeEnvironment = Callable[
    [Sequence[str], np.ndarray, Sequence[int], EnvironmentOptions],
    environments.BatchedEnvironment,
]


@dataclass(frozen=True)
class Suite:
    """A benchmark, or some of its tasks.

    Attributes:
      name: of the benchmark.
      tasks: names of the tasks in play; a task's id is its place here.
      num_actions: size of the action set that all tasks share.
      num_channels: of the image observation.
      stacks_frames: whether the agent sees the last four observations, each of one channel.
      scalable: whether observations can be rendered at another `--height` and `--width`.
      headline: the aggregate score that the benchmark is reported by, a field of
        `scores.Aggregate`.
      frames_per_task: default length of a run, in environment frames for each task in play.
      reference_scores: task name to scores, for every task of the benchmark.
      defaults: flag name to value, for flags whose default depends on the benchmark.
      environment_factory: makes environments for task names.
      requires: modules that play the tasks, and the command that installs each.
    """

    name: str
    tasks: tuple[str, ...]
    num_actions: int
    num_channels: int
    scalable: bool
    headline: str
    frames_per_task: int
    reference_scores: Mapping[str, ReferenceScore]
    defaults: Mapping[str, Any]
    environment_factory: MakeEnvironment
    stacks_frames: bool = False
    requires: Mapping[str, str] = field(default_factory=dict)

    def check_installed(self) -> None:
        """Raises UserError if a module that plays the tasks is missing."""
        for module, install in self.requires.items():
            if importlib.util.find_spec(module) is None:
                raise UserError(f"{self.name} needs the module {module}: {install}")

    def select(self, tasks: Sequence[str]) -> "Suite":
        """The same benchmark with only these tasks in play."""
        return replace(self, tasks=tuple(tasks))

    @property
    def level_name(self) -> str:
        """The `--level_name` of the tasks in play, however they were written."""
        all_tasks = self.tasks == tuple(self.reference_scores)
        return self.name if all_tasks else ",".join(self.tasks)

    def observation_spec(self, options: EnvironmentOptions) -> environments.ArraySpec:
        """Of one environment: an image `[height, width, channels]` of bytes."""
        return environments.ArraySpec((options.height, options.width, self.num_channels), np.uint8)

    def make_environment(
        self,
        task_ids: Sequence[int] | np.ndarray,
        seeds: Sequence[int],
        options: EnvironmentOptions,
    ) -> environments.BatchedEnvironment:
        """One batched environment, its environments playing these tasks in this order."""
        names = [self.tasks[task_id] for task_id in task_ids]
        return self.environment_factory(names, np.asarray(task_ids, np.int32), seeds, options)


def read_reference_scores(file_name: str) -> dict[str, ReferenceScore]:
    """Reads a score table (columns: task, random, human) that ships with the package."""
    text = resources.files("scalable_agent_popart.suites").joinpath("data", file_name).read_text()
    rows = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
    next(rows)
    return {task: ReferenceScore(float(random), float(human)) for task, random, human in rows}

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
from scalable_agent_popart.suites.search_space import PAPER, Distribution


@dataclass(frozen=True)
class EnvironmentOptions:
    """How a suite's environments are to behave.

    Attributes:
      num_action_repeats: environment frames an agent step lasts.
      height: of the observation, in pixels.
      width: of the observation, in pixels.
      action_set: the set of actions to choose from.
      training: whether `done` also marks what ends an episode only while training (in Atari
        the loss of a life); if not, levels are those of the published evaluation.
      dataset_path: of the images that some levels show; empty if there is none.
      level_cache_dir: where compiled levels are kept; empty for nowhere.
      human_starts_dir: of recorded starts, where episodes are to begin at them; else empty.
    """

    num_action_repeats: int
    height: int
    width: int
    action_set: str
    training: bool = True
    dataset_path: str = ""
    level_cache_dir: str = ""
    human_starts_dir: str = ""


# Makes the environments that play the named tasks, one environment a name. The ids
# are what it reports as `task_ids`, the seeds make each environment's randomness its own.
MakeEnvironments = Callable[
    [Sequence[str], np.ndarray, Sequence[int], EnvironmentOptions],
    environments.EnvironmentPool,
]


@dataclass(frozen=True)
class Suite:
    """A benchmark, or some of its tasks.

    Attributes:
      name: of the benchmark.
      title: its name in print.
      tasks: names of the tasks in play; a task's id is its place here.
      action_sets: name of each set of actions, which all tasks share, to its size.
      num_channels: of the image observation.
      stacks_frames: whether the agent sees the last four observations, each of one channel.
      scalable: whether observations can be rendered at another `--height` and `--width`.
      headline: the aggregate score that the benchmark is reported by, a field of
        `scores.Aggregate`.
      total_frames: default length of a run, in environment frames; with only some of the tasks
        in play, their part of it.
      reference_scores: task name to scores, for every task of the benchmark.
      human_starts_scores: the same for episodes that begin at human starts; empty where a
        benchmark has none.
      defaults: flag name to value, for flags whose default depends on the benchmark.
      environment_factory: makes environments for task names.
      search_space: flag name to distribution, for what population-based training tunes.
      has_instructions: whether observations are `environments.Observation`s.
      usual_num_actors: by default, at least so many actors are dealt over the tasks.
      test_versions: task to its version that is held out for testing, where there is one.
      own_flags: flags that mean nothing to other suites.
      other_tasks: gives the task for another name it can be called by, or that is no part of
        the benchmark; None if there is none.
      why_unknown: what to add where a name is that of no task; may be empty.
      check_tasks: raises UserError if tasks cannot be played with these options.
      requires: modules that play the tasks, and the command that installs each.
    """

    name: str
    title: str
    tasks: tuple[str, ...]
    action_sets: Mapping[str, int]
    num_channels: int
    scalable: bool
    headline: str
    total_frames: int
    reference_scores: Mapping[str, ReferenceScore]
    defaults: Mapping[str, Any]
    environment_factory: MakeEnvironments
    search_space: Mapping[str, Distribution] = field(default_factory=lambda: PAPER)
    human_starts_scores: Mapping[str, ReferenceScore] = field(default_factory=dict)
    stacks_frames: bool = False
    has_instructions: bool = False
    usual_num_actors: int = 32
    test_versions: Mapping[str, str] = field(default_factory=dict)
    own_flags: tuple[str, ...] = ()
    other_tasks: Callable[[str], str | None] = lambda name: None
    why_unknown: Callable[[str], str] = lambda name: ""
    check_tasks: Callable[[Sequence[str], EnvironmentOptions], None] = lambda tasks, options: None
    requires: Mapping[str, str] = field(default_factory=dict)

    def check(self, options: EnvironmentOptions) -> None:
        """Raises UserError if the tasks in play cannot be played."""
        for module, install in self.requires.items():
            if importlib.util.find_spec(module) is None:
                raise UserError(f"{self.name} needs the module {module}: {install}")
        self.check_tasks(self.tasks, options)

    def test_version(self, task: str) -> str:
        """The level that is played when the task is tested."""
        return self.test_versions.get(task, task)

    def references(self, starts: str) -> dict[str, ReferenceScore]:
        """Random and human scores of every level, held-out versions too.

        Args:
          starts: how its episodes begin, `noop` or `human`.
        """
        by_task = self.human_starts_scores if starts == "human" else self.reference_scores
        return {
            level: reference
            for task, reference in by_task.items()
            for level in (task, self.test_version(task))
        }

    def find(self, name: str) -> str | None:
        """The task of this name, or None if there is none."""
        return name if name in self.reference_scores else self.other_tasks(name)

    def select(self, tasks: Sequence[str]) -> "Suite":
        """The same benchmark with only these tasks in play."""
        return replace(self, tasks=tuple(tasks))

    @property
    def level_name(self) -> str:
        """The `--level_name` of the tasks in play, however they were written."""
        all_tasks = self.tasks == tuple(self.reference_scores)
        return self.name if all_tasks else ",".join(self.tasks)

    def observation_spec(self, options: EnvironmentOptions) -> Any:
        """Of one environment: an image `[height, width, channels]` of bytes, and instructions."""
        shape = (options.height, options.width, self.num_channels)
        image = environments.ArraySpec(shape, np.uint8)
        if not self.has_instructions:
            return image
        words = environments.ArraySpec((environments.MAX_WORDS,), np.int32)
        return environments.Observation(image, words)

    def make_environments(
        self,
        task_ids: Sequence[int] | np.ndarray,
        seeds: Sequence[int],
        options: EnvironmentOptions,
    ) -> environments.EnvironmentPool:
        """Environments that play these tasks in this order."""
        names = [self.tasks[task_id] for task_id in task_ids]
        return self.environment_factory(names, np.asarray(task_ids, np.int32), seeds, options)


def read_reference_scores(file_name: str) -> dict[str, ReferenceScore]:
    """Reads a score table (columns: task, random, human) that ships with the package."""
    text = resources.files("scalable_agent_popart.suites").joinpath("data", file_name).read_text()
    rows = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
    next(rows)
    return {task: ReferenceScore(float(random), float(human)) for task, random, human in rows}

"""The description of a benchmark, from which everything else about it is derived."""

import csv
import importlib.util
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from environments import MAX_WORDS, ArraySpec, BatchedEnvironment, EnvironmentPool, Observation
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.scores import Aggregate, ReferenceScore
from scalable_agent_popart.suites.search_space import PAPER, Distribution

_NAME = re.compile(r"[\w.-]+", re.ASCII)  # Files of reports begin with a suite's name.
# With these, a normalised score is the raw return itself. Their identity counts, because a suite's
# returns may really go from 0 to 100.
UNNORMALISED = ReferenceScore(random=0.0, human=100.0)
HUMAN = "a human's"  # The usual `Suite.full_score`.
MINIMAL = "minimal"  # The set of the actions that have an effect.
# These defaults of flags hold unless the suite gives others.
_DEFAULTS = {
    "test_num_episodes": 200,
    "unroll_length": 20,
    "batch_size": 32,
    "num_action_repeats": 1,
    "network": "shallow",
    "use_lstm": False,
    "reward_clipping": "none",
    "learning_rate": 1e-3,
    "entropy_cost": 0.01,
    "epsilon": 0.01,
    "max_grad_norm": 0.0,
    "pbt_burn_in_frames": 50_000,
    "pbt_episodes": 1000,
}


@dataclass(frozen=True)
class EnvironmentOptions:
    """Settings of environments; paths are empty where they are not given."""

    num_action_repeats: int  # environment frames per agent step
    height: int  # of the observation, in pixels
    width: int
    action_set: str
    # If true, `done` also marks the end of mere training episodes, such as the loss of a life in
    # Atari. If false, levels are those of the published evaluation.
    training: bool = True
    # If false, seeds need not decide how episodes begin, where environments start sooner without.
    reproducible: bool = True
    dataset_path: str = ""  # directory of the images that some levels show
    level_cache_dir: str = ""  # directory of compiled levels
    level_cache_gib: float = 10.0  # max size of them all
    human_starts_dir: str = ""  # directory of recorded starts of episodes
    num_threads: int = 1  # that may step them at the same time


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A benchmark, all or some of whose tasks are in play."""

    name: str  # as in `--level_name`
    title: str = ""  # the name in print
    tasks: tuple[str, ...]  # in play; the index of a task is its id
    action_sets: Mapping[str, int]  # name of each set of actions to its size, for all tasks
    num_channels: int = 3  # of the image observation
    stacks_frames: bool = False  # if true, the agent sees four observations of one channel
    has_instructions: bool = False  # if true, observations are `environments.Observation`s
    scalable: bool = False  # if true, size and action repeats of observations may be changed
    headline: str = "mean"  # aggregate for reports, a field of `scores.Aggregate`
    full_score: str = HUMAN  # whose return counts as 100%, in words
    total_frames: int  # default length of a run on all tasks; on some, shorter in proportion
    usual_num_actors: int = 32  # default of `--num_actors`, rounded up to a multiple of the tasks
    usual_num_actors_with_gpu: int = 0  # the same next to a GPU, if that takes more
    defaults: Mapping[str, Any]  # `height`, `width` and others than `_DEFAULTS`, by flag
    own_flags: tuple[str, ...] = ()  # without meaning in other suites
    # Every task of the benchmark has scores; if left out, scores are raw returns.
    reference_scores: Mapping[str, ReferenceScore] = field(default_factory=dict)
    human_starts_scores: Mapping[str, ReferenceScore] = field(default_factory=dict)
    test_versions: Mapping[str, str] = field(default_factory=dict)  # task to its held-out version
    search_space: Mapping[str, Distribution] = field(default_factory=lambda: PAPER)
    # Makes an environment for each task name, task id and seed.
    environment_factory: Callable[
        [Sequence[str], np.ndarray, Sequence[int], EnvironmentOptions], EnvironmentPool
    ]
    # Makes one for a task name and a seed that plays alike, if people see other images in it.
    film_factory: Callable[[str, int, EnvironmentOptions], BatchedEnvironment] | None = None
    # Returns the names of all actions, or nothing if they have numbers only.
    action_names: Callable[[], Sequence[str]] = tuple
    # Names of the actions that have an effect, by task. Tasks that share them have a set `minimal`.
    effective_actions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    more_tasks: tuple[str, ...] = ()  # outside of the benchmark, and known by name
    # Returns the task for an alias or for a name outside of the benchmark, otherwise None.
    other_tasks: Callable[[str], str | None] = lambda name: None
    # Returns an explanation why a name is no task, or an empty string.
    why_unknown: Callable[[str], str] = lambda name: ""
    # Returns, by level, what it lacks with these options, for its scores to say.
    remarks: Callable[[EnvironmentOptions], Mapping[str, str]] = lambda options: {}
    # Raises UserError if tasks cannot be played with these options.
    check_tasks: Callable[[Sequence[str], EnvironmentOptions], None] = lambda tasks, options: None
    requires: Mapping[str, str] = field(default_factory=dict)  # module to command that installs it
    module: str = ""  # the module that `--level_name` names before the suite

    def __post_init__(self) -> None:
        if isinstance(self.tasks, Set | str) or not isinstance(self.tasks, Iterable):
            message = f"the tasks of {self.name} are a {type(self.tasks).__name__}"
            raise ValueError(f"{message}; give a tuple, since their order decides on their ids")
        tasks = tuple(self.tasks)
        sets = dict(self.action_sets)
        if self.effective_actions:
            sets.pop(MINIMAL, None)  # Other tasks were selected before.
            effective = {self.effective_actions.get(task) for task in tasks}
            if len(effective) == 1 and (names := effective.pop()):
                sets[MINIMAL] = len(names)
        self.__dict__.update(  # The class is frozen.
            tasks=tasks,
            action_sets=sets,
            defaults={"action_set": next(iter(sets), ""), **_DEFAULTS, **self.defaults},
            title=self.title or self.name,
            reference_scores=self.reference_scores or dict.fromkeys(tasks, UNNORMALISED),
        )
        if problem := next(self._problems(), None):
            raise ValueError(f"the suite {self.name!r} must have {problem}")

    def num_actors(self, with_gpu: bool = False) -> int:
        """Returns the default of `--num_actors`: a multiple of the tasks, so that all are equal."""
        usual = max(self.usual_num_actors, self.usual_num_actors_with_gpu * with_gpu)
        return len(self.tasks) * math.ceil(usual / len(self.tasks))

    def _problems(self) -> Iterator[str]:
        """Yields what a suite must have that this one lacks."""
        names = (self.name, *self.tasks, *self.test_versions.values())
        if not all(isinstance(name, str) and name.isprintable() for name in names):
            yield "names of printable text"
        if not _NAME.fullmatch(self.name):
            yield "a name of letters, digits, '.', '_' and '-'"
        if any(set(",: ") & set(name) or not name for name in self.tasks):
            yield "tasks with names, without commas, colons and spaces"
        if len(set(self.tasks)) < len(self.tasks) or not self.tasks:
            yield "tasks, each of them once"
        for task, score in (*self.reference_scores.items(), *self.human_starts_scores.items()):
            if not isinstance(score, ReferenceScore):
                yield f"a ReferenceScore of {task}, not {score!r}"
            elif not np.isfinite(score).all() or score.random == score.human:
                numbers = f"{score.random:g} and {score.human:g} for {task}"
                yield f"reference scores of two different finite numbers, not {numbers}"
        if not self.action_sets:
            yield "a set of actions"
        if not {"height", "width"} <= self.defaults.keys():
            yield "defaults of height and width"
        if self.headline not in Aggregate._fields:
            yield f"a headline of {', '.join(Aggregate._fields)}, not {self.headline}"

    @property
    def whole(self) -> bool:
        """Returns whether all tasks of the benchmark are played, and no others, in its order."""
        return self.tasks == tuple(self.reference_scores)

    @property
    def normalised(self) -> bool:
        """Returns whether scores are normalised; raw returns are not."""
        return any(score is not UNNORMALISED for score in self.reference_scores.values())

    @property
    def score_name(self) -> str:
        """The name of the suite's scores in print."""
        if not self.normalised:
            return "return"
        return "human-normalised score" if self.full_score == HUMAN else "normalised score"

    @property
    def unit(self) -> str:
        """The sign that follows a printed score."""
        return "%" if self.normalised else ""

    @property
    def level_name(self) -> str:
        """The `--level_name` that resolves to this suite and the tasks in play."""
        names = self.name if self.whole else ",".join(self.tasks)
        return f"{self.module}:{names}" if self.module else names

    def check(self, options: EnvironmentOptions) -> None:
        """Raises UserError if the tasks cannot be played."""
        for module, install in self.requires.items():
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise UserError(f"{self.name} needs the module {module}: {install}")
        self.check_tasks(self.tasks, options)

    def test_version(self, task: str) -> str:
        """Returns the level that tests the task."""
        return self.test_versions.get(task, task)

    def references(self, starts: str) -> dict[str, ReferenceScore]:
        """Returns the reference scores of all levels from `noop` or `human` starts."""
        by_task = self.human_starts_scores if starts == "human" else self.reference_scores
        return {**by_task, **{self.test_version(task): score for task, score in by_task.items()}}

    def names_of_actions(self, action_set: str) -> Sequence[str]:
        """Returns the names of a set's actions, or nothing if they have numbers only."""
        names = self.effective_actions.get(self.tasks[0], ()) if action_set == MINIMAL else ()
        return names or self.action_names()

    def select(self, tasks: Iterable[str]) -> "Suite":
        return replace(self, tasks=tuple(tasks))

    def observation_spec(self, options: EnvironmentOptions) -> Any:
        """Returns the spec of one observation: uint8 `[height, width, channels]`, and words."""
        image = ArraySpec((options.height, options.width, self.num_channels), np.uint8)
        words = ArraySpec((MAX_WORDS,), np.int32)
        return Observation(image, words) if self.has_instructions else image

    def make_environments(
        self, task_ids: Iterable[int], seeds: Sequence[int], options: EnvironmentOptions
    ) -> EnvironmentPool:
        """Makes an environment for each task id, in this order."""
        ids = np.array(list(task_ids), np.int32)
        return self.environment_factory([self.tasks[i] for i in ids], ids, seeds, options)


def read_table(file_name: str) -> list[list[str]]:
    """Reads the rows of a table that ships with the package."""
    lines = (Path(__file__).parent / "data" / file_name).read_text().splitlines()
    return list(csv.reader(line for line in lines if not line.startswith("#")))[1:]


def read_scores(file_name: str) -> dict[str, ReferenceScore]:
    """Reads a score table, with the columns task, random and human."""
    rows = read_table(file_name)
    return {task: ReferenceScore(float(random), float(human)) for task, random, human in rows}

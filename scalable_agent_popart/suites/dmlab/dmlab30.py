"""DmLab-30, and every other level of DeepMind Lab, as the papers play them.

RGB frames of 72x96 and the instruction, each action repeated for four frames, one of two sets
of actions (Hessel et al., 2019, appendix "DeepMind Lab action discretisation"). Each level
runs in a process of its own: the engine holds Python's lock, takes seconds to compile a map,
and at some errors ends its whole process.

When a test is played, levels are those of the published evaluation: two have versions held out
from training, and a mixer seed of its own makes the random choices of all others.

Random and human scores are those of scalable_agent (`dmlab30.py`).
"""

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import environments
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites import suite
from scalable_agent_popart.suites.dmlab.level_cache import LevelCache
from scalable_agent_popart.suites.process_pool import ProcessPool, child_environment
from scalable_agent_popart.system.supervisor import last_words

_FOLDER = "contributed/dmlab30/"
_OBSERVATIONS = ["RGB_INTERLEAVED", "INSTR"]
_TEST_MIXER_SEED = 0x600D5EED
_BUILD = (
    "it is on no package registry: build and install it as "
    "https://github.com/google-deepmind/lab/blob/master/docs/users/build.md says"
)

# Look right, look down, strafe right, move forward, fire, jump, crouch.
ACTION_SETS = {
    "popart": np.array(
        [
            (0, 0, 0, 1, 0, 0, 0),  # Forward
            (0, 0, 0, -1, 0, 0, 0),  # Backward
            (0, 0, -1, 0, 0, 0, 0),  # Strafe left
            (0, 0, 1, 0, 0, 0, 0),  # Strafe right
            (-10, 0, 0, 0, 0, 0, 0),  # Small look left
            (10, 0, 0, 0, 0, 0, 0),  # Small look right
            (-60, 0, 0, 0, 0, 0, 0),  # Large look left
            (60, 0, 0, 0, 0, 0, 0),  # Large look right
            (0, 10, 0, 0, 0, 0, 0),  # Look down
            (0, -10, 0, 0, 0, 0, 0),  # Look up
            (-10, 0, 0, 1, 0, 0, 0),  # Forward and small look left
            (10, 0, 0, 1, 0, 0, 0),  # Forward and small look right
            (-60, 0, 0, 1, 0, 0, 0),  # Forward and large look left
            (60, 0, 0, 1, 0, 0, 0),  # Forward and large look right
            (0, 0, 0, 0, 1, 0, 0),  # Fire
        ],
        np.intc,
    ),
    "impala": np.array(
        [
            (0, 0, 0, 1, 0, 0, 0),  # Forward
            (0, 0, 0, -1, 0, 0, 0),  # Backward
            (0, 0, -1, 0, 0, 0, 0),  # Strafe left
            (0, 0, 1, 0, 0, 0, 0),  # Strafe right
            (-20, 0, 0, 0, 0, 0, 0),  # Look left
            (20, 0, 0, 0, 0, 0, 0),  # Look right
            (-20, 0, 0, 1, 0, 0, 0),  # Forward and look left
            (20, 0, 0, 1, 0, 0, 0),  # Forward and look right
            (0, 0, 0, 0, 1, 0, 0),  # Fire
        ],
        np.intc,
    ),
}

_SCORES = suite.read_reference_scores("dmlab30_scores.csv")
_TEST_VERSIONS = {
    "rooms_collect_good_objects_train": "rooms_collect_good_objects_test",
    "rooms_exploit_deferred_effects_train": "rooms_exploit_deferred_effects_test",
}
_NEED_DATASET = ("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition")
# The first and the last of what these levels show. One that lacks an image ends its process.
_IMAGES = ("0001.png", "2400.png")
_DATASET_README = "DeepMind Lab's data/brady_konkle_oliva2008/README.md"
_LOAD = """
import sys, deepmind_lab
deepmind_lab.Lab(sys.argv[1], ["RGB_INTERLEAVED"], temp_folder=sys.argv[2]).close()
"""
# Among the module's own words for a level that does not exist, and ours for a missing module.
_UNKNOWN, _MISSING = "Level not found", "not installed"
# What `--dataset_path` may be besides a directory: coloured images that the levels make.
_DUMMY_DATASET = "dummy"


def word_buckets(instruction: str) -> np.ndarray:
    """The first words of an instruction as int32 `[MAX_WORDS]`; see `environments.Observation`."""
    buckets = np.zeros(environments.MAX_WORDS, np.int32)
    words = instruction.split()[: environments.MAX_WORDS]
    buckets[: len(words)] = [
        1 + zlib.crc32(word.encode()) % environments.NUM_WORD_BUCKETS for word in words
    ]
    return buckets


class DmLabLevel:
    """One level: an `environments.Environment` for a process of its own."""

    def __init__(
        self,
        level: str,
        seed: int,
        options: suite.EnvironmentOptions,
        attempt: int,
        directory: Path,
    ):
        """Loads the level.

        Args:
          level: a level of DmLab-30 without its folder, or any other with.
          seed: of the episodes.
          options: size, repeats, action set, dataset, cache, and whether to train or to test.
          attempt: how often the level was loaded before with this seed.
          directory: for the engine's files.
        """
        import deepmind_lab  # noqa: PLC0415 - a C extension that may end the process.

        config = {"width": str(options.width), "height": str(options.height), "logLevel": "warn"}
        if options.dataset_path:
            config["datasetPath"] = options.dataset_path
        if not options.training:
            config |= {"allowHoldOutLevels": "true", "mixerSeed": str(_TEST_MIXER_SEED)}
        load = functools.partial(
            deepmind_lab.Lab,
            level_path(level),
            config=config,
            level_cache=LevelCache(options.level_cache_dir) if options.level_cache_dir else None,
            temp_folder=str(directory),
        )
        self._actions = ACTION_SETS[options.action_set]
        self._num_action_repeats = options.num_action_repeats
        self._random = np.random.default_rng([seed, attempt])
        self._instruction, self._buckets = "", word_buckets("")
        try:
            self._lab: Any = load(_OBSERVATIONS)
        except ValueError:  # Levels outside DmLab-30 need not know instructions.
            self._lab = load(_OBSERVATIONS[:1])

    def reset(self) -> environments.Observation:
        self._lab.reset(seed=int(self._random.integers(2**31)))
        return self._observe()

    def step(self, action: int) -> tuple[float, bool, environments.Observation]:
        reward = self._lab.step(self._actions[action], num_steps=self._num_action_repeats)
        done = not self._lab.is_running()
        # The last frame of an episode cannot be read.
        return reward, done, self.reset() if done else self._observe()

    def close(self) -> None:
        self._lab.close()

    def _observe(self) -> environments.Observation:
        seen = self._lab.observations()
        instruction = seen.get("INSTR", "")
        if instruction != self._instruction:
            self._instruction, self._buckets = instruction, word_buckets(instruction)
        return environments.Observation(seen["RGB_INTERLEAVED"], self._buckets)


def level_path(level: str) -> str:
    """The module's name of a level."""
    return _FOLDER + level if level in _SCORES or level in _TEST_VERSIONS.values() else level


def _make_environments(
    levels: Sequence[str],
    task_ids: np.ndarray,
    seeds: Sequence[int],
    options: suite.EnvironmentOptions,
) -> environments.EnvironmentPool:
    make = [
        functools.partial(DmLabLevel, level, seed, options)
        for level, seed in zip(levels, seeds, strict=True)
    ]
    return ProcessPool(levels, make, task_ids, SUITE.observation_spec(options))


def _task(name: str) -> str | None:
    """The task that plays a level by this name, if there is such a level.

    Raises:
      UserError: if the level is held out for testing.
    """
    level = name.removeprefix(_FOLDER)
    if level in _SCORES:
        return level
    for task, test_version in _TEST_VERSIONS.items():
        if level == test_version:
            raise UserError(
                f"--level_name: {level} is held out for testing; give {task}, of which "
                "--mode=test plays both versions"
            )
    return name if complaint(name) is None else None


def _why_unknown(name: str) -> str:
    """What else there is to say of a name that is no level."""
    against = complaint(name)
    if against == _MISSING:
        return f"for other levels of DeepMind Lab, the module deepmind_lab is missing: {_BUILD}"
    return "" if against is None or _UNKNOWN in against else f"deepmind_lab fails: {against}"


@functools.cache
def complaint(level: str) -> str | None:
    """What the module says against a level; asked in a process that it may end."""
    if importlib.util.find_spec("deepmind_lab") is None:
        return _MISSING
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [sys.executable, "-c", _LOAD, level, folder],
            env=child_environment(Path(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    if result.returncode == 0:
        return None
    return f"exit code {result.returncode}, last words: {last_words(result.stdout)}"


def _check(levels: Sequence[str], options: suite.EnvironmentOptions) -> None:
    """Raises UserError if these levels could not be played."""
    path = options.dataset_path
    needy = [level for level in levels if level in _NEED_DATASET]
    if path and path != _DUMMY_DATASET and not os.path.isdir(path):
        raise UserError(f"--dataset_path={path} is no directory")
    if options.level_cache_dir:
        cache = Path(options.level_cache_dir).absolute()
        nearest = next(p for p in (cache, *cache.parents) if os.path.exists(p))
        if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"--level_cache_dir={cache} cannot be written to; give another one")
    if needy and not path:
        raise UserError(
            f"{' and '.join(needy)} need(s) a dataset: give --dataset_path, the folder of the "
            f"Brady, Konkle, Alvarez and Oliva (2008) images that {_DATASET_README} tells how to "
            f"get, or '{_DUMMY_DATASET}' for coloured squares"
        )
    if needy and path != _DUMMY_DATASET:
        missing = [name for name in _IMAGES if not os.path.isfile(os.path.join(path, name))]
        if missing:
            raise UserError(
                f"--dataset_path={path} has no {' and no '.join(missing)}: {' and '.join(needy)} "
                f"need(s) the images {' to '.join(_IMAGES)} that {_DATASET_README} tells how to "
                f"make, or give '{_DUMMY_DATASET}' for coloured squares"
            )
    against = complaint(level_path(levels[0]))
    if against is not None:
        raise UserError(f"deepmind_lab cannot load {levels[0]}: {against}")


SUITE = suite.Suite(
    name="dmlab30",
    title="DmLab-30",
    tasks=tuple(_SCORES),
    action_sets={name: len(actions) for name, actions in ACTION_SETS.items()},
    num_channels=3,
    has_instructions=True,
    scalable=True,
    headline="mean_capped",
    total_frames=10_000_000_000,
    usual_num_actors=30,
    reference_scores=_SCORES,
    test_versions=_TEST_VERSIONS,
    own_flags=("dataset_path", "level_cache_dir"),
    defaults={
        "test_num_episodes": 500,
        "unroll_length": 100,
        "batch_size": 32,
        "num_action_repeats": 4,
        "height": 72,
        "width": 96,
        "network": "deep",
        "use_lstm": True,
        "action_set": "popart",
        "reward_clipping": "oar",
        "learning_rate": 4.8e-4,
        "entropy_cost": 2.5e-4,
        "epsilon": 0.1,
        "max_grad_norm": 0.0,
        "popart_step_size": 3e-4,
        "pbt_burn_in_frames": 20_000_000,
        "pbt_episodes": 5000,
    },
    environment_factory=_make_environments,
    other_tasks=_task,
    why_unknown=_why_unknown,
    check_tasks=_check,
    requires={"deepmind_lab": _BUILD},
)

"""DmLab-30, and every other level of DeepMind Lab, as the papers play them.

RGB frames of 72x96 and the instruction, each action repeated for four frames, one of two sets
of actions (Hessel et al., 2019, appendix "DeepMind Lab action discretisation"). Each level
runs in a process of its own: the engine never releases Python's lock, takes seconds to compile a
map, and ends its whole process at some errors.

Tests play the levels of the published evaluation: two have versions held out from training, and
all have a mixer seed of their own, which decides their random choices.

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

# Actions: look right, look down, strafe right, move forward, fire, jump, crouch.
_MOVES = [  # Forward, backward, strafe left, strafe right.
    (0, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, -1, 0, 0, 0),
    (0, 0, -1, 0, 0, 0, 0),
    (0, 0, 1, 0, 0, 0, 0),
]
_LOOK_DOWN, _LOOK_UP = (0, 10, 0, 0, 0, 0, 0), (0, -10, 0, 0, 0, 0, 0)
_FIRE = (0, 0, 0, 0, 1, 0, 0)


def _turns(pixels: int, forward: int = 0) -> list[tuple[int, ...]]:
    """Returns the actions that look left and right, standing or moving forward."""
    return [(look, 0, 0, forward, 0, 0, 0) for look in (-pixels, pixels)]


_POPART = [*_MOVES, *_turns(10), *_turns(60), _LOOK_DOWN, _LOOK_UP]
_POPART += [*_turns(10, forward=1), *_turns(60, forward=1), _FIRE]
_IMPALA = [*_MOVES, *_turns(20), *_turns(20, forward=1), _FIRE]
ACTION_SETS = {"popart": np.array(_POPART, np.intc), "impala": np.array(_IMPALA, np.intc)}

_SCORES = suite.read_reference_scores("dmlab30_scores.csv")
_TEST_VERSIONS = {
    "rooms_collect_good_objects_train": "rooms_collect_good_objects_test",
    "rooms_exploit_deferred_effects_train": "rooms_exploit_deferred_effects_test",
}
_NEED_DATASET = ("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition")
# The first and the last image that these levels show. A missing one ends the process.
_IMAGES = ("0001.png", "2400.png")
_DATASET_README = "DeepMind Lab's data/brady_konkle_oliva2008/README.md"
_LOAD = """
import sys, deepmind_lab
deepmind_lab.Lab(sys.argv[1], ["RGB_INTERLEAVED"], temp_folder=sys.argv[2]).close()
"""
# Part of the module's message for a level that does not exist, and ours for a missing module.
_UNKNOWN, _MISSING = "Level not found", "not installed"
# The value of `--dataset_path` for coloured squares that the levels make themselves.
_DUMMY_DATASET = "dummy"


def word_buckets(instruction: str) -> np.ndarray:
    """Returns an instruction as in `environments.Observation`, cut off at `MAX_WORDS` words."""
    buckets = np.zeros(environments.MAX_WORDS, np.int32)
    words = instruction.split()[: environments.MAX_WORDS]
    buckets[: len(words)] = [
        1 + zlib.crc32(word.encode()) % environments.NUM_WORD_BUCKETS for word in words
    ]
    return buckets


class DmLabLevel:
    """One level as an `environments.Environment`, for a process of its own."""

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
          level: a level of DmLab-30 without its folder, or any other with its folder.
          seed: of the episodes.
          options: all but `human_starts_dir`.
          attempt: how often the level was loaded before with this seed; makes other episodes.
          directory: for the engine's files.
        """
        import deepmind_lab  # noqa: PLC0415 - it may end the process.

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
        except ValueError:  # Levels outside of DmLab-30 need not have instructions.
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
    """Returns the module's name of a level."""
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
    """Returns the task that plays the level of this name, or None if there is no such level.

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
    """Returns an explanation why a name is no level, or an empty string."""
    reason = complaint(name)
    if reason == _MISSING:
        return f"for other levels of DeepMind Lab, the module deepmind_lab is missing: {_BUILD}"
    return "" if reason is None or _UNKNOWN in reason else f"deepmind_lab fails: {reason}"


@functools.cache
def complaint(level: str) -> str | None:
    """Loads a level in a process, which it may end; returns why it cannot be loaded, or None."""
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
    if path and path != _DUMMY_DATASET and not os.path.isdir(path):
        raise UserError(f"--dataset_path={path} is no directory")
    if options.level_cache_dir:
        cache = Path(options.level_cache_dir).absolute()
        nearest = next(p for p in (cache, *cache.parents) if os.path.exists(p))
        if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"--level_cache_dir={cache} cannot be written to; give another one")
    needy = " and ".join(level for level in levels if level in _NEED_DATASET)
    if needy and path != _DUMMY_DATASET:
        missing = [name for name in _IMAGES if not os.path.isfile(os.path.join(path, name))]
        if not path or missing:
            given = f"--dataset_path={path} has no {' and no '.join(missing)}" if path else ""
            raise UserError(
                f"{given or '--dataset_path is missing'}: {needy} need(s) the images "
                f"{' to '.join(_IMAGES)} of Brady, Konkle, Alvarez and Oliva (2008), which "
                f"{_DATASET_README} tells how to get; give --dataset_path, the folder that holds "
                f"them, or '{_DUMMY_DATASET}' for coloured squares"
            )
    reason = complaint(level_path(levels[0]))
    if reason is not None:
        raise UserError(f"deepmind_lab cannot load {levels[0]}: {reason}")


SUITE = suite.Suite(
    name="dmlab30",
    title="DmLab-30",
    tasks=tuple(_SCORES),
    action_sets={name: len(actions) for name, actions in ACTION_SETS.items()},
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
        "num_action_repeats": 4,
        "height": 72,
        "width": 96,
        "network": "deep",
        "use_lstm": True,
        "reward_clipping": "oar",
        "learning_rate": 4.8e-4,
        "entropy_cost": 2.5e-4,
        "epsilon": 0.1,
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

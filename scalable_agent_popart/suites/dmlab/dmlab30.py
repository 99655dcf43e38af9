"""DmLab-30, and every other level of DeepMind Lab, as the papers play them.

An agent sees RGB frames of 72x96 and the instruction. It repeats each action for four frames, and
has one of two sets of actions (Hessel et al., 2019, appendix "DeepMind Lab action discretisation").
Each level runs in a process of its own, because the engine never releases Python's lock, takes
seconds to compile a map, and ends its whole process at some errors. Tests play the published
evaluation, with its mixer seed and two levels held out from training. Scores are those of
scalable_agent (`dmlab30.py`).
"""

import functools
import importlib.util
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from environments import MAX_WORDS, NUM_WORD_BUCKETS, EnvironmentPool, Observation
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.suites.dmlab.level_cache import LevelCache
from scalable_agent_popart.suites.process_pool import ProcessPool, run_child
from scalable_agent_popart.suites.suite import EnvironmentOptions, Suite, read_scores, read_table
from scalable_agent_popart.system.supervisor import last_words

_FOLDER = "contributed/dmlab30/"
_OBSERVATIONS = ["RGB_INTERLEAVED", "INSTR"]
_TEST_MIXER_SEED = 0x600D5EED
_BUILD = "build it as docs/dmlab.md describes"
_ACTIONS = read_table("dmlab30_actions.csv")
ACTION_SETS = {
    name: np.array([action for set_name, *action in _ACTIONS if set_name == name]).astype(np.intc)
    for name in ("popart", "impala")
}
_SCORES = read_scores("dmlab30_scores.csv")
_TEST_VERSIONS = {
    "rooms_collect_good_objects_train": "rooms_collect_good_objects_test",
    "rooms_exploit_deferred_effects_train": "rooms_exploit_deferred_effects_test",
}
# Reports on these further levels of the module do not need it, because their names are known.
_OTHER_LEVELS = (
    *("lt_chasm", "lt_hallway_slope", "lt_horseshoe_color", "lt_space_bounce_hard"),
    *(f"nav_maze_random_goal_0{number}" for number in (1, 2, 3)),
    *(f"nav_maze_static_0{number}" for number in (1, 2, 3)),
    *("seekavoid_arena_01", "stairway_to_melon"),
)
_NEED_DATASET = ("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition")
_IMAGES = ("0001.png", "2400.png")  # The first and the last. A missing one ends the process.
_LOAD = """
import os, sys, deepmind_lab
deepmind_lab.Lab(sys.argv[1], ["RGB_INTERLEAVED"], temp_folder=os.environ["TMPDIR"]).close()
"""
_DUMMY_DATASET = "dummy"  # Coloured squares that the levels make themselves.


def word_buckets(instruction: str) -> np.ndarray:
    """Returns an instruction as in `environments.Observation`, cut off at `MAX_WORDS` words."""
    buckets = np.zeros(MAX_WORDS, np.int32)
    words = instruction.split()[:MAX_WORDS]
    buckets[: len(words)] = [1 + zlib.crc32(w.encode()) % NUM_WORD_BUCKETS for w in words]
    return buckets


class DmLabLevel:
    """A level as an `environments.Environment`, for a process of its own."""

    def __init__(
        self, level: str, seed: int, options: EnvironmentOptions, attempt: int, directory: Path
    ):
        """Loads a level after `attempt` earlier ones; the engine's files go to `directory`."""
        import deepmind_lab  # noqa: PLC0415 - it may end the process.

        config = {
            "width": str(options.width),
            "height": str(options.height),
            "logLevel": "warn",
            "datasetPath": options.dataset_path or _DUMMY_DATASET,
        }
        if not options.training:
            config |= {"allowHoldOutLevels": "true", "mixerSeed": str(_TEST_MIXER_SEED)}
        settings: dict[str, Any] = {"config": config, "temp_folder": str(directory)}
        if options.level_cache_dir:
            max_bytes = options.level_cache_gib * 2**30
            settings["level_cache"] = LevelCache(options.level_cache_dir, max_bytes)
        self._actions = ACTION_SETS[options.action_set]
        self._num_action_repeats = options.num_action_repeats
        self._random = np.random.default_rng([seed, attempt])
        try:
            self._lab: Any = deepmind_lab.Lab(_path(level), _OBSERVATIONS, **settings)
        except ValueError:  # Levels outside of DmLab-30 need not have instructions.
            self._lab = deepmind_lab.Lab(_path(level), _OBSERVATIONS[:1], **settings)

    def reset(self) -> Observation:
        self._lab.reset(seed=int(self._random.integers(2**31)))
        return self._observe()

    def step(self, action: int) -> tuple[float, bool, Observation]:
        reward = self._lab.step(self._actions[action], num_steps=self._num_action_repeats)
        done = not self._lab.is_running()
        # The last frame of an episode cannot be read.
        return reward, done, self.reset() if done else self._observe()

    def close(self) -> None:
        self._lab.close()

    def _observe(self) -> Observation:
        seen = self._lab.observations()
        return Observation(seen["RGB_INTERLEAVED"], word_buckets(seen.get("INSTR", "")))


def _path(level: str) -> str:
    return _FOLDER + level if level in _SCORES or level in _TEST_VERSIONS.values() else level


def _make_environments(
    levels: Sequence[str], task_ids: np.ndarray, seeds: Sequence[int], options: EnvironmentOptions
) -> EnvironmentPool:
    pairs = zip(levels, seeds, strict=True)
    make = [functools.partial(DmLabLevel, level, seed, options) for level, seed in pairs]
    return ProcessPool(levels, make, task_ids, SUITE.observation_spec(options))


def _task(name: str) -> str | None:
    """Returns the task that plays a level, or None without such a level; refuses test levels."""
    level = name.removeprefix(_FOLDER)
    if level in _TEST_VERSIONS.values():
        advice = f"give {level.removesuffix('test')}train, of which --mode=test plays both versions"
        raise UserError(f"--level_name: {level} is held out for testing; {advice}")
    if level in _SCORES:
        return level
    return name if name in _OTHER_LEVELS or complaint(name) is None else None


def _why_unknown(name: str) -> str:
    kinds = {level.partition("_")[0] for level in (*_SCORES, *_OTHER_LEVELS)}
    is_alike = ("/" in name and name.islower()) or name.partition("_")[0] in kinds
    if importlib.util.find_spec("deepmind_lab") is None and not is_alike:
        return ""
    reason = complaint(name)
    return "" if reason is None or "Level not found" in reason else f"DeepMind Lab: {reason}"


@functools.cache
def complaint(level: str) -> str | None:
    """Loads a level in a process, which it may end; returns why it cannot be loaded, or None."""
    if importlib.util.find_spec("deepmind_lab") is None:
        return f"the module deepmind_lab is missing; {_BUILD}"
    code, output = run_child(_LOAD, level)
    return f"exit code {code}, last words: {last_words(output)}" if code else None


def _check(levels: Sequence[str], options: EnvironmentOptions) -> None:
    path, has_images = options.dataset_path, _has_images(options)
    if has_images and not os.path.isdir(path):
        raise UserError(f"--dataset_path={path} is no directory")
    if options.level_cache_dir:
        cache = Path(options.level_cache_dir).absolute()
        nearest = next(folder for folder in (cache, *cache.parents) if os.path.lexists(folder))
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            raise UserError(f"--level_cache_dir={cache} cannot be written to; give another one")
    needy = " and ".join(level for level in levels if level in _NEED_DATASET)
    missing = [name for name in _IMAGES if not os.path.isfile(f"{path}/{name}")]
    if needy and has_images and missing:
        raise UserError(
            f"--dataset_path={path} has no {' and no '.join(missing)}: {needy} need(s) the "
            "images that DeepMind Lab's data/brady_konkle_oliva2008/README.md tells how to "
            "get; give the folder that holds them, or leave it out for coloured squares"
        )
    if (reason := complaint(_path(levels[0]))) is not None:
        raise UserError(f"deepmind_lab cannot load {levels[0]}: {reason}")


def _has_images(options: EnvironmentOptions) -> bool:
    return options.dataset_path not in ("", _DUMMY_DATASET)


def _remarks(options: EnvironmentOptions) -> dict[str, str]:
    levels = () if _has_images(options) else _NEED_DATASET
    return dict.fromkeys(levels, "coloured squares in place of images")


SUITE = Suite(
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
        "num_action_repeats": 4,
        "height": 72,
        "width": 96,
        "dataset_path": _DUMMY_DATASET,
        "network": "deep",
        "use_lstm": True,
        "unroll_length": 100,
        "reward_clipping": "oar",
        "learning_rate": 4.8e-4,
        "entropy_cost": 2.5e-4,
        "epsilon": 0.1,
        "test_num_episodes": 500,
        "pbt_burn_in_frames": 20_000_000,
        "pbt_episodes": 5000,
    },
    environment_factory=_make_environments,
    more_tasks=_OTHER_LEVELS,
    other_tasks=_task,
    why_unknown=_why_unknown,
    remarks=_remarks,
    check_tasks=_check,
    requires={"deepmind_lab": _BUILD},
)

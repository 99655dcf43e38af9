"""A stand-in for the `deepmind_lab` C extension that fails as the real one does.

It keeps to facts recorded from the real module built from source: what it accepts, what it raises
and when it ends the whole process. Only the pictures, the rewards and the maps are made up:

- A frame is a pattern drawn from level, `mixerSeed` and seed, with the frame number and a checksum
  of all actions so far in its first two rows.
- A frame's reward is a prize, drawn for each of `PRIZE_FRAMES` frames in turn and mostly zero,
  plus the action's elements, each times its `ACTION_WORTH`: forward earns 0.25, backward loses it.
- Levels with generated maps have `MAPS_PER_LEVEL` of them, chosen by the seed.

`FAKE_DMLAB` in the environment, read by `Lab()`, is a JSON object from level names without folder,
or "*" for all, to the fields of `Behaviour`; a level's own entry overrides "*".
"""

import hashlib
import json
import math
import operator
import os
import random
import shutil
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

_SUITE = "contributed/dmlab30/"
HELD_OUT = ("rooms_collect_good_objects_test", "rooms_exploit_deferred_effects_test")
NEED_DATA = ("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition")
_FAMILIES = {
    "rooms_": "collect_good_objects_train collect_good_objects_test exploit_deferred_effects_train "
    "exploit_deferred_effects_test select_nonmatching_object watermaze keys_doors_puzzle",
    "language_": "select_described_object select_located_object execute_random_task "
    "answer_quantitative_question",
    "lasertag_": "one_opponent_small three_opponents_small one_opponent_large "
    "three_opponents_large",
    "natlab_": "fixed_large_map varying_map_regrowth varying_map_randomized",
    "skymaze_irreversible_path_": "hard varied",
    "psychlab_": "arbitrary_visuomotor_mapping continuous_recognition sequential_comparison "
    "visual_search",
    "explore_": "object_locations_small object_locations_large obstructed_goals_small "
    "obstructed_goals_large goal_locations_small goal_locations_large object_rewards_few "
    "object_rewards_many",
}
SUITE_LEVELS = tuple(family + name for family, names in _FAMILIES.items() for name in names.split())
OTHER_LEVELS = ("seekavoid_arena_01", "lt_chasm", "nav_maze_random_goal_01")
_LEVELS = {_SUITE + level for level in SUITE_LEVELS} | set(OTHER_LEVELS)
_GENERATED = ("explore_", "rooms_", "skymaze_", "natlab_varying", "lasertag_")
MAPS_PER_LEVEL = 50

_SETTINGS = (
    "width height fps logLevel datasetPath allowHoldOutLevels mixerSeed controls botCount "
    "randomSeed gpuDeviceIndex maxAltCameraWidth maxAltCameraHeight hasAltCameras appendCommand "
    "demofiles videos demo record video rulesets vmMode use_pbos"
)
_SIZES = {"width": 320, "height": 240}
# name, least and greatest value of each element of an action
_ACTIONS = (
    ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", -512, 512),
    ("LOOK_DOWN_UP_PIXELS_PER_FRAME", -512, 512),
    ("STRAFE_LEFT_RIGHT", -1, 1),
    ("MOVE_BACK_FORWARD", -1, 1),
    *((button, 0, 1) for button in ("FIRE", "JUMP", "CROUCH")),
)
# Sums of these and of the prizes are exact, in whatever order they are added.
ACTION_WORTH = (2**-12, 2**-13, 2**-4, 2**-2, 2**-5, 2**-6, 2**-7)
PRIZE_FRAMES = 64
_PRIZES = {0.0: 53, -1.0: 4, -0.5: 2, 0.5: 2, 1.0: 1, 2.5: 1, 10.0: 1}  # and how common they are
_SENTENCES = (
    "Pick the {} {}",
    "Go to the {} {} next to the {} {}",
    "Collect every {} {}, then leave through the door behind the {} {}",
    "Are there more {} {} objects than {} {} objects?",
)
_COLOURS = ("red", "green", "blue", "yellow", "purple", "white")
_THINGS = ("balloon", "hat", "tennis racket", "car", "fridge", "toothbrush")
_NO_MAP = "Didn't find map '{}'\n: No such file or directory"
_HIT_SHARE = 0.4 / 3.3  # of a reset's time, where the cache has the map

_runfiles = os.path.dirname(os.path.abspath(__file__))
# As `srand(time(NULL))` at import: processes that start within a second play alike
_rand = random.Random(int(time.time()))


class Behaviour(NamedTuple):
    """How a level behaves, where tests want it to."""

    reset_seconds: float = 0.0  # an eighth of it where the level cache has the map
    step_seconds: float = 0.0  # of busy processor, for each call of step()
    episode_frames: int = 300
    exit_after_steps: int | None = None  # calls of one Lab's step(), on average over processes
    exit_exactly: bool = False  # that many calls return and the next one ends the process
    exit_on_reset: bool = False
    raise_on_step: int | None = None  # that many calls return and the next ones raise


def version() -> str:
    return "1.0"


def runfiles_path() -> str:
    return _runfiles


def set_runfiles_path(path: str) -> bool:
    global _runfiles
    _check_type("set_runfiles_path() argument", path, str)
    if len(os.fsencode(path)) > 4095:
        raise RuntimeError("Runfiles directory name too long!")
    _runfiles = path
    return True


class Lab:
    """One environment."""

    def __init__(
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] = {},  # noqa: B006  It is never changed.
        renderer: str = "software",
        level_cache: Any = None,
        temp_folder: str = "",
    ):
        given = {1: level, 2: observations, 3: config, 4: renderer, 6: temp_folder}
        for (place, value), kind in zip(given.items(), (str, list, dict, str, str), strict=True):
            _check_type(f"Lab() argument {place}", value, kind)
        if renderer not in ("", "software", "hardware"):
            raise RuntimeError(
                f'Failed to set renderer must be "hardware" or "software" actual "{renderer}"!'
            )
        _apply_settings(config)
        _init_level(level, config)
        for name in observations:
            _check_type("observation name", name, str)
            if name not in ("RGB_INTERLEAVED", "INSTR"):
                raise ValueError(f"Unknown observation '{name}'.")
        self._level = level.removeprefix(_SUITE)
        self._observations, self._config = list(observations), dict(config)
        self._cache = level_cache
        self._shape = (*(int(config.get(key, _SIZES[key])) for key in ("height", "width")), 3)
        self._behaviour = _read_behaviour(self._level)
        self._exit_at = _calls_until_exit(self._behaviour)
        self._calls = self._num_steps = 0
        self._owns_folder = not temp_folder
        self._temp_folder = temp_folder or _make_temp_folder()
        Path(self._temp_folder, "baselab").mkdir(parents=True, exist_ok=True)
        self._status = "uninitialised"

    def reset(self, episode: int = -1, seed: int | None = None) -> bool:
        operator.index(episode)
        if seed is None:
            seed = _rand.getrandbits(31)
        elif not isinstance(seed, int):
            kind = type(seed)
            owner = "numpy." if kind.__module__ == "numpy" else ""
            raise ValueError(f"'seed' must be int or None, was '{owner}{kind.__name__}'.")
        if not -(2**63) <= seed < 2**63:
            raise OverflowError("Python int too large to convert to C long")
        self._check_open("reset")
        self._start((seed + 2**31) % 2**32 - 2**31)
        self._status = "running"
        return True

    def step(self, action: np.ndarray, num_steps: int = 1) -> float:
        _check_type("step() argument 1", action, np.ndarray)
        num_steps = operator.index(num_steps)
        if self._status != "running":
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (len(_ACTIONS),):
            raise ValueError(f"action must have shape ({len(_ACTIONS)})")
        if action.dtype.num != np.dtype(np.intc).num:
            raise ValueError("action must have dtype np.intc")
        if not action.flags.c_contiguous:
            raise ValueError("the real module would read other numbers, without a word")
        self._misbehave()
        reward = self._play(action, min(num_steps, self._behaviour.episode_frames - self._frame))
        self._num_steps += num_steps
        if self._frame >= self._behaviour.episode_frames:
            self._status = "terminated"
        return reward

    def observations(self) -> dict[str, np.ndarray | str]:
        if self._status != "running":
            raise RuntimeError("Environment in wrong status for call to observations()")
        return {
            name: self._instruction if name == "INSTR" else self._render()
            for name in self._observations
        }

    def observation_spec(self) -> list[dict[str, Any]]:
        self._check_open("observation_spec")
        return [
            {"name": "RGB_INTERLEAVED", "shape": self._shape, "dtype": np.uint8},
            {"name": "INSTR", "shape": (), "dtype": str},
        ]

    def action_spec(self) -> list[dict[str, Any]]:
        self._check_open("action_spec")
        return [{"max": most, "min": least, "name": name} for name, least, most in _ACTIONS]

    def events(self) -> list[tuple[str, list[Any]]]:
        if self._status not in ("running", "terminated"):
            raise RuntimeError("Environment in wrong status for call to events()")
        return []

    def is_running(self) -> bool:
        return self._status == "running"

    def num_steps(self) -> int:
        return self._num_steps

    def close(self) -> bool:
        if self._status == "closed":
            return False
        self._status = "closed"
        if self._owns_folder:
            shutil.rmtree(self._temp_folder, ignore_errors=True)
        return True

    def properties(self, key: str = "") -> dict[str, int]:
        return self._find_property(key) if key != "" else {}

    def read_property(self, key: str) -> str:
        return self._find_property(key)

    def write_property(self, key: str, value: str) -> None:
        _check_type("write_property() argument 2", value, str)
        self._find_property(key)

    def __del__(self) -> None:
        if hasattr(self, "_status"):
            self.close()

    def _find_property(self, key: str) -> NoReturn:
        self._check_open("a property")
        _check_type("property key", key, str)
        raise KeyError(f"'{key}' not found.")

    def _check_open(self, method: str) -> None:
        """The real module follows a pointer to freed memory here."""
        if self._status == "closed":
            _end_process(f"Segmentation fault: {method} of a closed Lab", status=139)

    def _start(self, seed: int) -> None:
        data = self._config.get("datasetPath", "")
        if self._level in NEED_DATA and data != "dummy" and not os.path.isdir(data):
            raise RuntimeError(
                f"Failed to start environment - \"[{self._level}] no data set at '{data}'.\n"
                ' Follow instructions to download datasets here:\n data/README.md\n and update it"'
            )
        mixer = int(self._config.get("mixerSeed", 0))
        if self._level.startswith(_GENERATED):
            which = f"{self._level} {mixer} {seed % MAPS_PER_LEVEL}"
            self._make_map(f"{self._level}_noaas_{hashlib.md5(which.encode()).hexdigest()}")
        else:
            self._spend_reset()
        if self._behaviour.exit_on_reset:
            _end_process(_NO_MAP.format(self._level))
        drawn = random.Random(f"{self._level} {mixer} {seed}")
        self._picture = np.resize(np.frombuffer(drawn.randbytes(183), np.uint8), self._shape)
        self._prizes = drawn.choices(tuple(_PRIZES), tuple(_PRIZES.values()), k=PRIZE_FRAMES)
        words = [drawn.choice(words) for words in (_COLOURS, _THINGS) * 2]
        sentence = drawn.choice(_SENTENCES).format(*words)
        self._instruction = sentence if self._level.startswith("language_") else ""
        self._actions = drawn.getrandbits(32)
        self._frame = self._num_steps = 0

    def _make_map(self, key: str) -> None:
        """Takes the map from the cache or compiles it; without it the process ends."""
        path = Path(self._temp_folder, "baselab", f"{key}.pk3")
        hit, failure = False, None
        try:
            hit = self._cache is not None and bool(self._cache.fetch(key, str(path)))
        except BaseException as error:
            failure = error  # It comes out once the map is compiled, and nothing is written.
        self._spend_reset(_HIT_SHARE if hit else 1.0)
        contents = compile_map(key)
        try:
            if not hit:
                path.write_bytes(contents)
            found = path.read_bytes() == contents
        except OSError:
            found = False
        if not found:
            _end_process(_NO_MAP.format(key))
        if failure is not None:
            raise failure
        if self._cache is not None and not hit:
            self._cache.write(key, str(path))

    def _spend_reset(self, share: float = 1.0) -> None:
        # The real module computes all this time and never releases the interpreter's lock.
        time.sleep(self._behaviour.reset_seconds * share)

    def _misbehave(self) -> None:
        """Ends the process or raises where the tests asked for it, and takes a step's time."""
        limit = self._behaviour.raise_on_step
        if self._calls >= self._exit_at:
            _end_process(f"Stand-in ends its process after {self._calls} steps")
        if limit is not None and self._calls >= limit:
            raise RuntimeError(f"Stand-in raises after {self._calls} steps")
        self._calls += 1
        end = time.thread_time() + self._behaviour.step_seconds
        while time.thread_time() < end:
            pass

    def _play(self, action: np.ndarray, frames: int) -> float:
        worth = sum(map(operator.mul, action.tolist(), ACTION_WORTH))
        pressed = action.tobytes()
        reward = 0.0
        for _ in range(frames):
            reward += self._prizes[self._frame % PRIZE_FRAMES] + worth
            self._actions = zlib.crc32(pressed, self._actions)
            self._frame += 1
        return reward

    def _render(self) -> np.ndarray:
        frame = self._picture.copy()
        pressed = self._actions.to_bytes(4, "little")
        frame[:1] = (self._frame % 256, self._frame // 256 % 256, pressed[3])
        frame[1:2] = tuple(pressed[:3])
        return frame


def compile_map(key: str) -> bytes:
    """What a map's file holds."""
    return b"PK\x03\x04" + hashlib.shake_128(key.encode()).digest(60_000)


def _check_type(what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be {kind.__name__}, not {type(value).__name__}")


def _apply_settings(config: dict[str, str]) -> None:
    for key, value in config.items():
        _check_type("setting", key, str)
        _check_type("setting's value", value, str)
        number = int(value) if value.isascii() and value.isdigit() else -1
        if (key in _SIZES and number <= 0) or (key == "mixerSeed" and not 0 <= number < 2**32):
            problem = f"Invalid {key} setting {value}"
            raise RuntimeError(f"Failed to apply setting '{key} = {value}' - \"{problem}\"")


def _init_level(level: str, config: dict[str, str]) -> None:
    problem = None
    if level not in _LEVELS:
        path = f"{_runfiles}/baselab/game_scripts/levels/{level}.lua"
        problem = f"Level not found: Failed to open file '{path}'"
    elif level.removeprefix(_SUITE) in HELD_OUT and config.get("allowHoldOutLevels") != "true":
        problem = f"Level '{level}' is held out: it needs allowHoldOutLevels = true"
    elif unknown := sorted(config.keys() - _SETTINGS.split()):
        problem = f"Invalid setting: {unknown[0]}"
    if problem is not None:
        raise RuntimeError(f'Failed to init environment - "{problem}"')


def _read_behaviour(level: str) -> Behaviour:
    settings = json.loads(os.environ.get("FAKE_DMLAB") or "{}")
    if unknown := set(settings).difference(SUITE_LEVELS, OTHER_LEVELS, "*"):
        raise ValueError(f"FAKE_DMLAB names unknown levels: {sorted(unknown)}")
    return Behaviour(**{**settings.get("*", {}), **settings.get(level, {})})


def _calls_until_exit(behaviour: Behaviour) -> float:
    if behaviour.exit_after_steps is None:
        return math.inf
    chance = 1.0 if behaviour.exit_exactly else random.Random(os.getpid()).expovariate(1.0)
    return round(behaviour.exit_after_steps * chance)


def _make_temp_folder() -> str:
    parent = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(parent, f"dmlab_temp_folder_{os.urandom(3).hex()}")
    try:
        os.mkdir(path, 0o700)
    except OSError:
        raise RuntimeError("Failed to connect RL API") from None
    return path


def _end_process(last_line: str, status: int = 1) -> NoReturn:
    """Ends the process at once: nothing is flushed, no folder removed, no exception seen."""
    os.write(2, f"{last_line}\n".encode())
    os._exit(status)

"""A stand-in for the `deepmind_lab` C extension that fails as the real one does.

It accepts, raises and ends its process as the real module was seen to. Pictures, rewards and maps
are made up: a frame is drawn from level, `mixerSeed` and seed, with the frame number in its first
row, and its reward is the sum of the action's elements times `ACTION_WORTH`.

`FAKE_DMLAB_FRAMES` in the environment is the length of all episodes.
"""

import operator
import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from scalable_agent_popart.suites.dmlab.dmlab30 import SUITE

_FOLDER = "contributed/dmlab30/"
_HELD_OUT = tuple(SUITE.test_versions.values())
_PATHS = {*(_FOLDER + level for level in (*SUITE.tasks, *_HELD_OUT)), *SUITE.more_tasks}
_READ_IMAGES = ("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition")
_GENERATED = ("explore_", "rooms_keys_", "skymaze_", "language_", "lasertag_")
_SETTINGS = {"width", "height", "logLevel", "datasetPath", "allowHoldOutLevels", "mixerSeed"}
# Sums of these powers of two are exact in any order.
ACTION_WORTH = (2**-12, 2**-13, 2**-4, 2**-2, 2**-5, 2**-6, 2**-7)


class Lab:
    def __init__(
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] = {},  # noqa: B006 - it is never changed.
        level_cache: Any = None,
        *,
        temp_folder: str,
    ):
        self._level = level.removeprefix(_FOLDER)
        if level not in _PATHS:
            raise RuntimeError(f"Level not found: Failed to open file '{level}.lua'")
        if self._level in _HELD_OUT and config.get("allowHoldOutLevels") != "true":
            raise RuntimeError(f"Level '{level}' is held out")
        if unknown := config.keys() - _SETTINGS:
            raise RuntimeError(f"Invalid setting: {unknown}")
        self._observations, self._config, self._cache = observations, config, level_cache
        self._shape = (int(config.get("height", 240)), int(config.get("width", 320)), 3)
        self._episode_frames = int(os.environ.get("FAKE_DMLAB_FRAMES", 300))
        self._folder = Path(temp_folder, "baselab")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._running = False

    def reset(self, episode: int = -1, seed: int | None = None) -> bool:
        images = self._config.get("datasetPath", "")
        if self._level in _READ_IMAGES and images != "dummy" and not os.path.isdir(images):
            raise RuntimeError('Failed to start environment - "Cannot open dataset"')
        mixer = int(self._config.get("mixerSeed", 0))
        if self._cache is not None and self._level.startswith(_GENERATED):
            self._make_map(f"{self._level}_{mixer}")
        picture = random.Random(f"{self._level} {mixer} {seed}").randbytes(183)
        self._picture = np.resize(np.frombuffer(picture, np.uint8), self._shape)
        self._frame = 0
        self._running = True
        return True

    def step(self, action: np.ndarray, num_steps: int = 1) -> float:
        if not self._running:
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (7,) or action.dtype.num != np.dtype(np.intc).num:
            raise ValueError("action must have shape (7) and dtype np.intc")
        played = min(num_steps, self._episode_frames - self._frame)
        self._frame += played
        self._running = self._frame < self._episode_frames
        return played * sum(map(operator.mul, action.tolist(), ACTION_WORTH))

    def observations(self) -> dict[str, np.ndarray | str]:
        if not self._running:  # The last frame of an episode cannot be read.
            raise RuntimeError("Environment in wrong status for call to observations()")
        image = self._picture.copy()
        image[:1] = self._frame % 256
        words = f"Pick the {self._picture[0, 0, 0]} hat" if "language_" in self._level else ""
        seen = {"RGB_INTERLEAVED": image, "INSTR": words}
        return {name: seen[name] for name in self._observations}

    def is_running(self) -> bool:
        return self._running

    def close(self) -> None:
        self._running = False

    def _make_map(self, key: str) -> None:
        """Takes a map from the cache, or compiles it; one of other bytes ends the process."""
        path, compiled = self._folder / f"{key}.pk3", random.Random(key).randbytes(60_000)
        if not self._cache.fetch(key, str(path)):
            path.write_bytes(compiled)
            self._cache.write(key, str(path))
        elif path.read_bytes() != compiled:
            os.write(2, f"Didn't find map '{key}'\n: No such file or directory\n".encode())
            os._exit(1)  # Nothing is flushed, removed or raised.

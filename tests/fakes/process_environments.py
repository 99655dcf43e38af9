"""Environments for processes of their own, which work, wait, fail and die for tests."""

import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from environments import ArraySpec

OBSERVATION = {"number": ArraySpec((4,), np.int64), "picture": ArraySpec((2, 3), np.uint8)}
EPISODE_STEPS = 4


class Counting:
    """Shows step, last action, attempt and process id; the reward is the step in the episode."""

    def __init__(self, attempt: int, directory: Path):
        self.attempt = attempt
        self._directory = directory
        self._steps = 0
        (directory / "scratch").write_text("what an engine leaves behind")

    def reset(self) -> Any:
        return self._observe(-1)

    def step(self, action: int) -> tuple[float, bool, Any]:
        self._steps += 1
        place = (self._steps - 1) % EPISODE_STEPS + 1
        return float(place), place == EPISODE_STEPS, self._observe(action)

    def close(self) -> None:
        assert (self._directory / "scratch").exists()

    def _observe(self, action: int) -> Any:
        number = np.array([self._steps, action, self.attempt, os.getpid()])
        return {"number": number, "picture": np.full((2, 3), self._steps % 256, np.uint8)}


class Waiting(Counting):
    """Begins once a file is there."""

    def __init__(self, file: Path, attempt: int, directory: Path):
        super().__init__(attempt, directory)
        self._file = file

    def reset(self) -> Any:
        (self._file.parent / f"waiting_{os.getpid()}").touch()
        while not self._file.exists():
            time.sleep(0.01)
        return super().reset()


class Dying(Counting):
    """Ends its process after some steps, or raises (code 0)."""

    def __init__(self, after: int, code: int, attempt: int, directory: Path):
        super().__init__(attempt, directory)
        self._after = after
        self._code = code

    def step(self, action: int) -> tuple[float, bool, Any]:
        if self._steps == self._after:
            print("no such file: map.zip\n" + 1000 * "entering common.shader\n", flush=True)
            if not self._code:
                raise RuntimeError("wrong status")
            os._exit(self._code)
        return super().step(action)


class Refusing(Counting):
    """Fails to begin, after it has silenced itself."""

    def reset(self) -> Any:
        sys.stderr = io.StringIO()
        raise RuntimeError("no such level")


class Undeclared(Counting):
    """Prints an error, silences itself, and shows a picture of another type from some step on."""

    def __init__(self, after: int, attempt: int, directory: Path):
        super().__init__(attempt, directory)
        print("ConnectionError: trying again\n" + 9 * "entering common.shader\n")
        sys.stderr = io.StringIO()
        self._after = after

    def _observe(self, action: int) -> Any:
        seen = super()._observe(action)
        if self._steps >= self._after:
            seen["picture"] = seen["picture"] / 255
        return seen

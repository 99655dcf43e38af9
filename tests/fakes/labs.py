"""Helpers around the stand-in for `deepmind_lab`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.fake_deepmind_lab import Lab

SUITE = "contributed/dmlab30/"
MAPS = SUITE + "explore_goal_locations_small"
PREBUILT = "seekavoid_arena_01"
SMALL = {"width": "96", "height": "72"}
NOTHING = np.zeros(7, np.intc)
FORWARD = np.array([0, 0, 0, 1, 0, 0, 0], np.intc)
_ROOT = Path(__file__).resolve().parents[2]


def isolate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Puts temporary folders in a place of their own and lets all levels behave."""
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.delenv("FAKE_DMLAB", raising=False)


def behave(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Sets how all levels behave."""
    monkeypatch.setenv("FAKE_DMLAB", json.dumps({"*": fields}))


def make(level: str = PREBUILT, config: dict[str, str] = SMALL, **arguments: Any) -> Lab:
    return Lab(level, ["RGB_INTERLEAVED", "INSTR"], config, **arguments)


def started(level: str = PREBUILT, seed: int = 1, **arguments: Any) -> Lab:
    lab = make(level, **arguments)
    assert lab.reset(seed=seed) is True
    return lab


def frame(lab: Lab) -> np.ndarray:
    return lab.observations()["RGB_INTERLEAVED"]


def folders(parent: Path) -> list[Path]:
    return list(parent.glob("dmlab_temp_folder_*"))


def start_python(program: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Starts a program that can import the package and the tests' helpers."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(_ROOT), **variables},
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(
    program: str, *arguments: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs such a program to its end."""
    with start_python(program, *arguments, **variables) as process:
        try:
            output, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

"""Starts the launch script and others in processes, waits for them, and kills them after a test."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 240  # Only what hangs takes so long.


class Programs:
    """Starts `experiment.py` and kills what is left of it."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def run(self, stderr: Any = subprocess.PIPE, **flags: Any) -> subprocess.Popen[str]:
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        command = [sys.executable, "experiment.py", *arguments]
        pipes: dict[str, Any] = {"stderr": stderr, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def run_python(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end, by default in the checkout, and returns what it wrote."""
    given: dict[str, Any] = {"cwd": ROOT, "timeout": DEADLINE_SECONDS, **how}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, **given)


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], bool], *alive: subprocess.Popen[str]) -> None:
    """Waits for a condition, which the living processes must bring about."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        for process in alive:
            assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "the condition did not come about"
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    """Returns whether a process runs; one that ended may still keep its exit code."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def children(process: int) -> list[int]:
    """Returns the living processes that one has started."""
    return [child.pid for child in psutil.Process(process).children() if is_alive(child.pid)]


def left_in(directory: Path) -> list[str]:
    """Returns the names of what is in a temporary directory and not TensorFlow's own."""
    names = [path.name for path in directory.iterdir()]
    return [name for name in names if not name.startswith("__autograph_generated_file")]


def metrics(logdir: Path) -> list[dict[str, Any]]:
    """Returns the records of the learner's log."""
    return read_log(logdir / "metrics.jsonl")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a log's complete lines; none if there is no log."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def logged_frames(logdir: Path) -> int:
    """Returns the frames of the log's last line; 0 if there is none."""
    lines = metrics(logdir)
    return lines[-1]["frames"] if lines else 0

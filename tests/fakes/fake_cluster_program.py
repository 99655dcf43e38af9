"""Stands in for the experiment where it is tested how its processes are started and ended.

  FAKE_NOTES=DIR FAKE_LEARNER=1,wait python fake_cluster_program.py --job_name=learner ...

Each start adds a line to `DIR/<role><task>.jsonl`: arguments, process id, and what matters of the
environment. Then it does what the role's variable says for this start, the last word for all
further ones: exits with this code; is killed (`kill`); waits for SIGTERM (`wait`) and saves,
or for nothing (`deaf`); or is through (`busy`) once there is no `DIR/slow_disk`.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any


def main(arguments: list[str]) -> None:
    """One life."""
    flags = dict(a.removeprefix("--").partition("=")[::2] for a in arguments)
    role = flags["job_name"]
    directory = Path(os.environ["FAKE_NOTES"])
    words = os.environ.get(f"FAKE_{role.upper()}", "wait").split(",")
    start = len(starts(directory, role + flags.get("task", "")))
    word = words[min(start, len(words) - 1)]

    def save(number: int, frame: FrameType | None) -> None:
        del frame
        (directory / f"{role}.saving").touch()
        wait_until(lambda: not (directory / "slow_disk").exists())
        (directory / f"{role}.saved").touch()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if word == "deaf" else save)
    note = {
        "arguments": arguments,
        "pid": os.getpid(),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    with open(directory / f"{role}{flags.get('task', '')}.jsonl", "a") as notes:
        notes.write(json.dumps(note) + "\n")
    print(f"{role} says {word}\rover\nand an unfinished line", end="", flush=True)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while word in ("wait", "deaf"):
        signal.pause()
    if word == "busy":
        wait_until(lambda: not (directory / "slow_disk").exists())
        sys.exit()
    sys.exit(int(word))


def starts(directory: Path, process: str) -> list[dict[str, Any]]:
    """What a process noted, a start each; `process` is a role, with an actor's task."""
    path = directory / f"{process}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for a condition that another process is to bring about."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition did not come about"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Whether there is such a process, and not only its exit code that nobody asked for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


if __name__ == "__main__":
    main(sys.argv[1:])

"""Stands in for the experiment in tests of how its processes are started and ended.

Each start adds a line to `FAKE_DIR/<role><task>.jsonl`: arguments, process id, and what matters of
the environment. FAKE_<ROLE>, as in `1,wait`, has a word for each start, and the last one counts for
all further starts. A number is the exit code, and `kill` has it killed. `wait` waits for SIGTERM
and saves, `late` heeds it only after a while, and `deaf` never. `busy` ends once there is no
`FAKE_DIR/slow_disk`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> None:
    flags = dict(a.removeprefix("--").partition("=")[::2] for a in arguments)
    role, directory = flags["job_name"], Path(os.environ["FAKE_DIR"])
    name = role + flags.get("task", "")
    words = os.environ.get(f"FAKE_{role.upper()}", "wait").split(",")
    word = words[min(len(starts(directory, name)), len(words) - 1)]

    def wait_for_disk() -> None:
        while (directory / "slow_disk").exists():
            time.sleep(0.01)

    def save(number: int, _: object) -> None:
        (directory / f"{role}.saving").open("a").write("TERM\n")
        wait_for_disk()
        (directory / f"{role}.saved").touch()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if word in ("deaf", "late") else save)
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    record = {"arguments": arguments, "pid": os.getpid(), "devices": devices}
    record["path"] = os.environ["PATH"]
    (directory / f"{name}.jsonl").open("a").write(json.dumps(record) + "\n")
    print(f"{role} says {word}\rover\nand an unfinished line", end="", flush=True)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "late":
        time.sleep(3)
        signal.signal(signal.SIGTERM, save)
    while word in ("wait", "late", "deaf"):
        signal.pause()
    if word == "busy":
        wait_for_disk()
    sys.exit(0 if word == "busy" else int(word))


def starts(directory: Path, process: str) -> list[dict[str, Any]]:
    """Returns what a process recorded at each start; `process` is a role, with an actor's task."""
    path = directory / f"{process}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


if __name__ == "__main__":
    main(sys.argv[1:])

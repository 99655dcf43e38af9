"""Stands in for the experiment in tests of how its processes are started and ended.

Each start adds a line to `FAKE_DIR/<role><task>.jsonl`: arguments, and what matters of the
environment. FAKE_<ROLE>, as in `1,wait`, has a word for each start, and the last one counts for
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


def main(arguments: list[str]) -> None:
    flags = dict(a.removeprefix("--").partition("=")[::2] for a in arguments)
    role, directory = flags["job_name"], Path(os.environ["FAKE_DIR"])
    log = directory / f"{role}{flags.get('task', '')}.jsonl"
    num_starts = log.read_text().count("\n") if log.exists() else 0
    words = os.environ.get(f"FAKE_{role.upper()}", "wait").split(",")
    word = words[min(num_starts, len(words) - 1)]

    def wait_for_disk() -> None:
        while (directory / "slow_disk").exists():
            time.sleep(0.01)

    def save(number: int, _: object) -> None:
        (directory / f"{role}.saving").open("a").write("TERM\n")
        wait_for_disk()
        (directory / f"{role}.saved").touch()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if word in ("deaf", "late") else save)
    record = {"arguments": arguments, "path": os.environ["PATH"]}
    record["devices"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    log.open("a").write(json.dumps(record) + "\n")
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


if __name__ == "__main__":
    main(sys.argv[1:])

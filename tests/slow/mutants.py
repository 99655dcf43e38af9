"""Shows that the tests notice small mistakes, by making those of `mutants.toml` one by one.

Each is made in a copy of the checkout, in which the tests named with it must then fail:

  python tests/slow/mutants.py --jobs=2 --only=vtrace
"""

import argparse
import multiprocessing
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_LIMIT_SECONDS = 300
_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
# Each process of tests is a fork of one that has imported what takes long.
_FORKS = multiprocessing.get_context("forkserver")
_IMPORTED_ONCE = ["pytest", "sonnet", "tensorflow_probability.python.distributions"]


class Mutant(NamedTuple):
    """A mistake, and the tests that notice it."""

    name: str
    file: str  # Its path begins at the root.
    before: str  # This text occurs in the file once, and `after` replaces it.
    after: str
    tests: list[str]  # Their paths begin at `tests`.


def load(only: str = "") -> list[Mutant]:
    """Reads the mutants with this part of a name; exits if the code does not have one's text."""
    by_file = tomllib.loads((_HERE / "mutants.toml").read_text(encoding="utf-8"))
    entries = [Mutant(file=file, **entry) for file, own in by_file.items() for entry in own]
    mutants = [mutant for mutant in entries if only in mutant.name]
    for name, file, before, *_ in mutants:
        if (count := (_ROOT / file).read_text(encoding="utf-8").count(before)) != 1:
            sys.exit(f"{name}: the text occurs {count} times in {file}")
    return mutants


def copy_checkout(target: Path) -> Path:
    """Copies the files that git tracks, or would if they were added; returns the target."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.check_output(command, cwd=_ROOT, text=True).split("\0")):
        if (_ROOT / name).is_file():  # It may have been deleted.
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, target / name)
    return target


def run_pytest(tests: list[str], checkout: Path, log: Path) -> None:
    """Runs tests in this process up to the first failure, and exits with pytest's code."""
    import pytest  # noqa: PLC0415 - imported in the server.

    os.setsid()  # Programs that the tests have started can be killed with them.
    with open(log, "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(checkout)
    # Programs that tests start are this copy's, too. Bytecode may be another mutant's.
    sys.path.insert(0, str(checkout))
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    sys.exit(pytest.main([*options, *(f"tests/{test}" for test in tests)]))


def failure(tests: list[str], checkout: Path, limit: float | None = None) -> str:
    """Runs tests up to the first failure; returns what failed, empty if nothing did."""
    log = checkout.with_suffix(".log")
    process = _FORKS.Process(target=run_pytest, args=(tests, checkout, log))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        return "the time limit"
    if process.exitcode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", log.read_text(), re.MULTILINE)
    if failed is None:
        raise RuntimeError(log.read_text()[-2000:])
    return failed[1]


def main() -> int:
    """Tries all mutants; returns 1 unless all were caught."""
    parser = argparse.ArgumentParser(description="Shows that the tests notice small mistakes.")
    parser.add_argument("--only", default="", help="a part of the names of those to try")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try at the same time")
    options = parser.parse_args()
    mutants = load(options.only)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _FORKS.set_forkserver_preload(_IMPORTED_ONCE)
    checkouts: queue.SimpleQueue[Path] = queue.SimpleQueue()  # Nobody uses these now.

    def catches(mutant: Mutant) -> bool:
        checkout, start = checkouts.get(), time.monotonic()
        path = checkout / mutant.file
        original = path.read_text(encoding="utf-8")
        path.write_text(original.replace(mutant.before, mutant.after), encoding="utf-8")
        failed = failure(mutant.tests, checkout, _LIMIT_SECONDS)
        path.write_text(original, encoding="utf-8")
        checkouts.put(checkout)
        result = f"caught by {failed}" if failed else "SURVIVED"
        print(f"{mutant.name:50} {time.monotonic() - start:4.0f} s  {result}", flush=True)
        return bool(failed)

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(options.jobs) as pool:
        for i in range(options.jobs):
            checkouts.put(checkout := copy_checkout(Path(directory) / str(i)))
        if failed := failure(sorted({t for m in mutants for t in m.tests}), checkout):
            sys.exit(f"{failed} fails without any mutant")
        num_caught = sum(pool.map(catches, mutants))
    print(f"{num_caught} of {len(mutants)} caught in {time.monotonic() - start:.0f} s")
    return int(num_caught < len(mutants) or not mutants)


if __name__ == "__main__":
    sys.exit(main())

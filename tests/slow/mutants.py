"""Shows that the tests notice small mistakes, by making those of `mutants.toml` one by one.

Each is made in a copy of the checkout, in which the tests named with it must then fail:

  python tests/slow/mutants.py --jobs=2 --only=vtrace
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_LIMIT_SECONDS = 300
_ROOT = Path(__file__).resolve().parents[2]
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
    """Reads the mutants with this part of a name; exits without any, or if a text is missing."""
    by_file = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    mutants = [
        Mutant(**{"file": file, "tests": [_tests_of(file)], **each})
        for file, of_file in by_file.items()
        for each in of_file
        if only in each["name"]
    ]
    if not mutants:  # pytest would run all tests if it got none.
        sys.exit(f"--only={only}: there is no such mutant")
    for name, file, before, *_ in mutants:
        if (count := (_ROOT / file).read_text().count(before)) != 1:
            sys.exit(f"{name}: the text occurs {count} times in {file}")
    return mutants


def _tests_of(file: str) -> str:
    """Returns the path of the tests of a module."""
    return f"unit/{file.removeprefix('scalable_agent_popart/').removesuffix('.py')}_test.py"


@contextlib.contextmanager
def copied_checkout() -> Iterator[Path]:
    """Copies the files that git tracks, or would if they were added; removes them in the end."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=_ROOT, text=True).split("\0")
    with tempfile.TemporaryDirectory() as directory:
        for name in filter(None, names):
            if (_ROOT / name).is_file():  # It may have been deleted.
                (target := Path(directory, "copy", name)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(_ROOT / name, target)
        yield Path(directory, "copy")


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
    paths = [f"tests/{test}" for test in tests]
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *paths]))


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


def catches(mutant: Mutant) -> bool:
    """Tries a mutant; prints and returns whether its tests fail."""
    start = time.monotonic()
    with copied_checkout() as checkout:
        path = checkout / mutant.file
        path.write_text(path.read_text().replace(mutant.before, mutant.after))
        failed = failure(mutant.tests, checkout, _LIMIT_SECONDS)
    result = f"caught by {failed}" if failed else "SURVIVED"
    print(f"{mutant.name:50} {time.monotonic() - start:4.0f} s  {result}", flush=True)
    return bool(failed)


def main() -> int:
    """Tries all mutants; returns 1 unless all were caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="a part of the names of those to try")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try at the same time")
    options = parser.parse_args()
    mutants = load(options.only)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _FORKS.set_forkserver_preload(_IMPORTED_ONCE)
    start = time.monotonic()
    with copied_checkout() as checkout:
        if failed := failure(sorted({t for m in mutants for t in m.tests}), checkout):
            sys.exit(f"{failed} fails without any mutant")
    with ThreadPoolExecutor(options.jobs) as pool:
        num_caught = sum(pool.map(catches, mutants))
    print(f"{num_caught} of {len(mutants)} caught in {time.monotonic() - start:.0f} s")
    return int(num_caught < len(mutants))


if __name__ == "__main__":
    sys.exit(main())

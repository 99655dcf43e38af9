"""What belongs to the repository, so that tests of texts read no other files of a checkout."""

import contextlib
import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def git(*arguments: str) -> list[str]:
    """Returns what git lists for the repository; nothing without git, as in a source archive."""
    command = ["git", "-c", "safe.directory=*", "-c", "core.quotePath=no", *arguments]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        listed = subprocess.check_output(command, cwd=ROOT, text=True, stderr=subprocess.DEVNULL)
        return listed.splitlines()
    return []


@functools.cache
def files() -> list[Path]:
    """Returns the files that git tracks, or without git those outside hidden folders."""
    paths = [ROOT / name for name in git("ls-files")]
    if not paths:
        for folder, folders, names in os.walk(ROOT):
            environment = "pyvenv.cfg" in names
            folders[:] = [f for f in folders if not (environment or f.startswith("."))]
            paths += [Path(folder, name) for name in names]
    return sorted(filter(Path.is_file, paths))  # A tracked file may have been deleted.


def files_named(ending: str, *folders: str) -> list[Path]:
    """Returns the files with this ending of a name, of some folders or of all."""
    within = [ROOT / folder for folder in folders] or [ROOT]
    return [p for p in files() if p.name.endswith(ending) and not {*within}.isdisjoint(p.parents)]


def name_of(path: Path) -> str:
    """Returns a file's path from the root on."""
    return path.relative_to(ROOT).as_posix()

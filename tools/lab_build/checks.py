"""What a build of DeepMind Lab needs, looked at before anything is written."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

# Debian's packages, also Ubuntu's, by the program that each brings.
_PROGRAMS = {
    "gcc": "gcc",
    "g++": "g++",
    "ninja": "ninja-build",
    "pkg-config": "pkg-config",
    "zip": "zip",
}
# The same by the library, as pkg-config calls it.
_LIBRARIES = {
    "absl_flat_hash_map": "libabsl-dev",
    "eigen3": "libeigen3-dev",
    "glib-2.0": "libglib2.0-dev",
    "libjpeg": "libjpeg-dev",
    "lua5.1": "liblua5.1-0-dev",
    "libpng": "libpng-dev",
    "sdl2": "libsdl2-dev",
    "libxml-2.0": "libxml2-dev",
    "zlib": "zlib1g-dev",
}
_RENDERERS = {
    "osmesa": {"osmesa": "libosmesa6-dev"},
    "egl": {"egl": "libegl-dev", "gl": "libgl-dev"},
}
CLONE = "git clone https://github.com/google-deepmind/lab"
_POINTER = b"version https://git-lfs"
_POINTER_BYTES = 1024  # None is longer.


def machine_problems(renderer: str) -> list[str]:
    """Returns a line for each thing that this machine lacks."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return ["DeepMind Lab is built for Linux on x86-64 processors only"]
    if not (3, 11) <= sys.version_info < (3, 14) or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return [f"DeepMind Lab is built for Python 3.11 to 3.13 with the GIL, not {sys.executable}"]
    packages = [package for name, package in _PROGRAMS.items() if not shutil.which(name)]
    libraries = _LIBRARIES | _RENDERERS[renderer]
    packages += [package for name, package in libraries.items() if not _has_library(name)]
    python, numpy = header_folders()
    problems = []
    if not (python / "Python.h").is_file():
        if sys.base_prefix == "/usr":
            packages.append(f"python{sysconfig.get_python_version()}-dev")
        else:
            problems.append(f"the headers of this Python are missing: {python} has no Python.h")
    if not (numpy / "numpy/arrayobject.h").is_file():
        problems.append(
            f"{sys.executable} has no NumPy 2: use .venv/bin/python, which make install makes, "
            "or install numpy>=2 for it"
        )
    if packages:
        names = " ".join(sorted(packages))
        problems.insert(0, f"packages are missing: sudo apt-get install {names}")
    return problems


def header_folders() -> tuple[Path, Path]:
    """Returns where the headers of this Python and of its NumPy are or would be."""
    spec = importlib.util.find_spec("numpy")
    places = spec.submodule_search_locations if spec else None
    return Path(sysconfig.get_path("include")), Path(*(places or ["numpy"])[:1], "_core/include")


def checkout_problems(checkout: Path, names: Iterable[str]) -> list[str]:
    """Returns a line for each kind of file that is not as it should be.

    Looked at are all files that git has listed or, in a checkout without git, those of `names`.
    """
    names = _listed_by_git(checkout) or list(names)
    has_git = (checkout / ".git").exists()
    absent = [name for name in names if not os.access(checkout / name, os.R_OK)]
    pointers = [name for name in names if _is_pointer(checkout / name)]
    problems = []
    if absent:
        problems.append(
            f"{len(absent)} files of {checkout}, such as {absent[0]}, are absent or unreadable: "
            f"{f'git -C {checkout} checkout .' if has_git else CLONE}"
        )
    if pointers:
        problems.append(
            f"{len(pointers)} files of {checkout}, such as {pointers[0]}, are pointers of Git LFS: "
            f"{f'git -C {checkout} lfs pull' if has_git else CLONE}"
        )
    return problems


def _has_library(name: str) -> bool:
    if not shutil.which("pkg-config"):
        return False
    return subprocess.run(["pkg-config", "--exists", name]).returncode == 0


def _listed_by_git(checkout: Path) -> list[str]:
    """Returns the names that git has of a checkout's files, none where it cannot tell."""
    if not (checkout / ".git").exists() or not shutil.which("git"):
        return []
    # Where the checkout belongs to somebody else, git has to be told that this is well.
    command = ["git", "-c", "safe.directory=*", "-C", str(checkout), "ls-files", "-z"]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout.split("\0")[:-1]


def _is_pointer(path: Path) -> bool:
    if not (path.is_file() and os.access(path, os.R_OK)) or path.stat().st_size > _POINTER_BYTES:
        return False
    return path.read_bytes().startswith(_POINTER)

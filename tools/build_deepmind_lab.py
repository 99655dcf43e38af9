"""Builds DeepMind Lab for the Python that runs this, from a checkout of its source.

  python tools/build_deepmind_lab.py --source=lab --output=wheels --install

Takes packages of Debian or Ubuntu and this Python's headers and NumPy, no Bazel and no network
(only to install it, pip may fetch `dm-env`).
What is missing is said first, and nothing is written then. The wheel is there once a level of it
has been played. A build that was stopped goes on with the same command. Levels are rendered on the
processor (`--renderer=osmesa`) or by EGL, on a GPU where there is one (`--renderer=egl`).

The checkout's BUILD files say what is compiled from what, and Ninja compiles it.
"""

import argparse
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from lab_build import checks, ninja_file, wheel
from lab_build.build_files import BuildFiles

_PLAY = Path(__file__).resolve().parent / "lab_build/play.py"
_STOPPED = "the build has stopped; the same command goes on from there"
_SPLIT_BY_SHELLS = re.compile(r"[^\w@%+=:,./-]")
_VENV = "use .venv/bin/python, which make install makes"
_MARK = "build.ninja"  # Says whose folder it is; the last file to be removed from it.


def main() -> int:
    """Builds the wheel; returns the exit code, 1 after a line on each thing that is missing."""
    parser = argparse.ArgumentParser(
        description="Builds DeepMind Lab for the Python that runs this."
    )
    source = f"its source: {checks.CLONE}"
    parser.add_argument("--source", type=Path, default=Path("lab"), help=source)
    parser.add_argument("--output", type=Path, default=Path("wheels"), help="folder of the wheel")
    parser.add_argument(
        "--renderer",
        choices=ninja_file.LIBRARIES,
        default="osmesa",
        help="what draws: the processor (osmesa), or what EGL finds",
    )
    parser.add_argument("--install", action="store_true", help="install it into this Python, too")
    given = parser.parse_args()
    managed = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()
    if given.install and managed and sys.prefix == sys.base_prefix:
        return _complain([f"--install: nothing can be installed for {sys.executable}: {_VENV}"])
    if given.install and not importlib.util.find_spec("pip"):
        return _complain([f"--install: {sys.executable} has no pip: {_VENV}"])
    try:
        code = _build(given.source, given.output, given.renderer)
    except KeyboardInterrupt:
        return _complain([_STOPPED], 130)
    except OSError as error:  # The disk is full, or the folder cannot be written to.
        return _complain([f"{error}; {_STOPPED}"])
    return _install(given.output / wheel.NAME) if code == 0 and given.install else code


def _build(source: Path, output: Path, renderer: str) -> int:
    if not (source / "python/dmlab_module.c").is_file():
        return _complain([f"{source} is no checkout of DeepMind Lab: {checks.CLONE}"])
    build_files = BuildFiles(source.resolve())
    try:
        problems = checks.machine_problems(renderer)
        problems += checks.checkout_problems(source, ninja_file.sources(build_files, renderer))
    except (OSError, KeyError, ValueError) as error:
        problems = [f"the BUILD files of {source} are not those of a whole DeepMind Lab: {error}"]
    for place in (str(output.resolve()), sys.prefix):
        if _SPLIT_BY_SHELLS.search(place):
            shell = "DeepMind Lab compiles maps by a shell, which cannot read"
            problems.append(f"{shell} {place!r}: have this Python and --output elsewhere")
    if problems:
        return _complain(problems)
    folder = output.resolve() / "deepmind_lab_build"
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        return _complain([f"{folder} is not of a build: remove it, or give another --output"])
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / _MARK, os.O_RDWR | os.O_CREAT)  # Also Ninja's, which may outlive this.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _complain([f"another build is at work in {output}"])
    if (folder / "BUILD").resolve() != (source / "BUILD").resolve():
        _clear(folder)  # Of another checkout.
    ninja_file.write(folder, source.resolve(), build_files, renderer, checks.header_folders())
    if subprocess.run(["ninja", "-C", str(folder)], pass_fds=[lock]).returncode:
        return _complain([_STOPPED])
    print(f"Writing {wheel.NAME}", flush=True)
    files = wheel.contents(folder, build_files, renderer)
    packages = wheel.debian_packages(files.values())
    wheel.write(folder / wheel.NAME, files, source / "LICENSE", packages)
    with tempfile.TemporaryDirectory(dir=folder) as site:
        print("Playing a level", flush=True)
        wheel.unpack(folder / wheel.NAME, Path(site))
        path = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, str(_PLAY)]
        if subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, cwd=site).returncode:
            return _complain(["the module was built, but does not play a level: see above"])
    (folder / wheel.NAME).replace(output / wheel.NAME)
    _clear(folder)
    (folder / _MARK).unlink()
    folder.rmdir()
    print(f"Made {output / wheel.NAME}")
    print(f"Machines that run it need: sudo apt-get install {' '.join(packages)}", flush=True)
    return 0


def _clear(folder: Path) -> None:
    """Removes all of a build but its mark, so that an interrupt leaves what is still a build's."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _MARK:
            path.unlink()


def _install(path: Path) -> int:
    command = [sys.executable, "-m", "pip", "install", str(path)]
    # The first takes the place of an earlier build, the second adds what the wheel asks for.
    for options in (["--force-reinstall", "--no-deps"], []):
        try:
            code = subprocess.run([*command, "--quiet", *options]).returncode
        except KeyboardInterrupt:
            code = 130
        if code:
            return _complain([f"{path} is made, and still to install: {' '.join(command)}"], code)
    return 0


def _complain(problems: list[str], code: int = 1) -> int:
    for problem in problems:
        print(f"build_deepmind_lab: {problem}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

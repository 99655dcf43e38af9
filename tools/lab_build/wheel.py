"""The wheel of DeepMind Lab: what lies where in it, and what it says of itself."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import ninja_file
from .build_files import BuildFiles

_VERSION = "1.0"  # As `deepmind_lab.version()`.
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_TAG = f"cp{_PYTHON.replace('.', '')}"
NAME = f"deepmind_lab-{_VERSION}-{_TAG}-{_TAG}-linux_x86_64.whl"
_INFORMATION = f"deepmind_lab-{_VERSION}.dist-info"
_PACKAGE_INIT = Path(__file__).resolve().parent / "package_init.py"
_DIVERSIONS = ("diversion by ", "local diversion ")  # Of dpkg, which names no package there.
_METADATA = f"""\
Metadata-Version: 2.1
Name: deepmind-lab
Version: {_VERSION}
Summary: DeepMind Lab: a 3D learning environment
Home-page: https://github.com/google-deepmind/lab
Requires-Python: =={_PYTHON}.*
Requires-Dist: numpy>=2,<3
Requires-Dist: dm-env
Requires-Dist: six
"""
_WHEEL = f"""\
Wheel-Version: 1.0
Generator: build_deepmind_lab
Root-Is-Purelib: false
Tag: {_TAG}-{_TAG}-linux_x86_64
"""


def contents(folder: Path, build_files: BuildFiles, renderer: str) -> dict[str, Path]:
    """Returns the package's files by name; `folder` is Ninja's, and `renderer` what it built."""
    out = folder / ninja_file.OUT
    files = {
        "__init__.py": _PACKAGE_INIT,
        "dmenv_module.py": folder / "python/dmenv_module.py",
        "deepmind_lab.so": out / "deepmind_lab.so",
        "bspc": out / "bspc",
        "q3map2/q3map2": out / "q3map2",
        "baselab/vm.pk3": out / "baselab/vm.pk3",
    }
    script = "deepmind/level_generation/compile_map.sh"
    files[script] = folder / script
    library = build_files.target(ninja_file.LIBRARIES[renderer]).name
    # The engine asks for `_sw` unless told otherwise; whichever it asks for, there is one renderer.
    files |= dict.fromkeys((library, "libdmlab_headless_sw.so"), out / library)
    for name in ninja_file.PACKS:
        [output] = build_files.target(f"//:{name}").files("outs")
        files[output] = out / output
    for name in ninja_file.PLAIN_FILES:
        rule = build_files.target(f"//:{name}")
        pairs = zip(rule.files("outs"), rule.files("srcs"), strict=True)
        files |= {output: folder / source for output, source in pairs}
    return {f"deepmind_lab/{name}": path for name, path in files.items()}


def debian_packages(files: Iterable[Path]) -> list[str]:
    """Returns the packages of what the programs among files are linked to, and `zip`.

    Where Debian's tools are missing, libraries stand for their packages.
    """
    programs = {str(path) for path in files if path.suffix in ("", ".so")}
    command = ["objdump", "-p", *programs]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    libraries = sorted({line.split()[1] for line in lines if line.split()[:1] == ["NEEDED"]})
    try:
        command = ["dpkg-query", "--search", *(f"*/x86_64-linux-gnu/{name}" for name in libraries)]
        english = {**os.environ, "LC_ALL": "C"}
        found = subprocess.run(command, capture_output=True, text=True, env=english)
        lines = found.stdout.splitlines()
    except FileNotFoundError:
        lines = libraries
    packages = {line.partition(":")[0] for line in lines if not line.startswith(_DIVERSIONS)}
    return sorted({"zip", *packages})


def write(
    path: Path, files: Mapping[str, Path], license_file: Path, packages: Iterable[str]
) -> None:
    """Writes a wheel of files by name, for the Python that runs; `packages` are the system's."""
    external = "".join(f"Requires-External: {package}\n" for package in packages)
    texts = {
        f"{_INFORMATION}/METADATA": (_METADATA + external).encode(),
        f"{_INFORMATION}/WHEEL": _WHEEL.encode(),
        f"{_INFORMATION}/licenses/LICENSE": license_file.read_bytes(),
    }
    records = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in [*sorted(files), *texts]:
            source = files.get(name)
            data = source.read_bytes() if source else texts[name]
            executable = source and (os.access(source, os.X_OK) or source.suffix == ".sh")
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            packed = name.endswith(".pk3")
            entry.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(data)}\n")
        record = f"{_INFORMATION}/RECORD"
        archive.writestr(record, "".join([*records, f"{record},,\n"]))


def unpack(path: Path, folder: Path) -> None:
    """Unpacks a wheel as an installer does, programs executable."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            os.chmod(archive.extract(entry, folder), (entry.external_attr >> 16) & 0o777)

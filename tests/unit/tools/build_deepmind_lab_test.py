"""The build of DeepMind Lab, on a checkout of a few lines; nothing is compiled."""

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.programs import ROOT
from tools.lab_build import checks, ninja_file, wheel
from tools.lab_build.build_files import BuildFiles

_BUILD = """
load("@//:python_system.bzl", "python_repo")

licenses(["restricted"])

CODE = "engine/code"

ARCH = "-DARCH=\\\\\\"x86\\\\\\""

ASM_SOURCES = ["game/main"]

CGAME_QVM_ASMS = ASM_SOURCES + ["game/calls"]

QAGAME_QVM_ASMS = ASM_SOURCES

Q3UI_QVM_ASMS = ASM_SOURCES

genrule(name = "lcc_dagcheck", srcs = [CODE + "/dag.md"], outs = [CODE + "/dag.c"])

[cc_binary(name = name, srcs = [CODE + "/" + name + ".c"], copts = [ARCH]) for name in [
    "lburg",
    "q3asm",
    "q3cpp",
    "q3lcc",
    "bspc",
]]

cc_binary(name = "q3rcc", srcs = [CODE + "/dag.c"])

cc_library(
    name = "engine",
    srcs = glob([CODE + "/**/*.c", CODE + "/*.h"], exclude = [CODE + "/game/*.c"]),
    defines = ["BOTLIB"],
    linkopts = ["-lrt"],
    deps = ["//lua", "@zlib_archive//:zlib"],
)

[cc_binary(name = name, linkshared = 1, deps = select({
    "dmlab_graphics_sdl": [":sdl"],
    "//conditions:default": [":engine", ":dmlab.lds"],
})) for name in [
    "libdmlab_headless_sw.so",
    "libdmlab_headless_hw.so",
    "deepmind_lab.so",
]]

[genrule(name = name, srcs = ["assets/a b.tga"], outs = ["baselab/" + name]) for name in [
    "assets_pk3",
    "assets_oa_pk3",
    "assets_bots_pk3",
    "built_maps",
    "non_pk3_assets",
]]

SCRIPTS = glob(["scripts/**/*.lua"])

genrule(name = "game_script_assets", srcs = SCRIPTS, outs = ["baselab/" + f for f in SCRIPTS])
"""
_FILES = {
    "BUILD": _BUILD,
    "LICENSE": "Free.",
    "assets/a b.tga": "texture",
    "deepmind/level_generation/compile_map.sh": "zip",
    "dmlab.lds": "",
    "engine/code/engine.c": "",
    "engine/code/engine.h": "",
    "engine/code/game/main.c": "",
    "lua/BUILD": 'cc_library(name = "lua", srcs = ["vm.cc"], includes = ["."])',
    "lua/vm.cc": "",
    "python/dmenv_module.py": "",
    "python/dmlab_module.c": "",
    "q3map2/BUILD": 'cc_binary(name = "q3map2", srcs = ["main.c"])',
    "q3map2/main.c": "",
    "scripts/levels/lt_chasm.lua": "",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in _FILES.items():
        path = tmp_path / "lab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "lab"


def test_targets_come_with_what_they_depend_on(checkout: Path) -> None:
    targets, archives = BuildFiles(checkout).needed("//:libdmlab_headless_sw.so")
    assert [target.name for target in targets] == ["libdmlab_headless_sw.so", "engine", "lua"]
    assert archives == ["@zlib_archive//:zlib"]
    assert targets[1].files("srcs") == ["engine/code/engine.c", "engine/code/engine.h"]
    assert targets[2].files("srcs") == ["lua/vm.cc"]


def test_sources_that_the_build_makes_need_not_be_there(checkout: Path) -> None:
    names = ninja_file.sources(BuildFiles(checkout), "osmesa")
    assert {"engine/code/engine.h", "lua/vm.cc", "assets/a b.tga"} <= set(names)
    assert "engine/code/dag.c" not in names


def test_ninja_compiles_as_the_build_files_say(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ninja_file, "_ask_pkg_config", lambda option, name: f"{option}={name}")
    monkeypatch.setattr(ninja_file, "_has_logging", lambda: False)
    folder = tmp_path / "build"
    folder.mkdir()
    ninja_file.write(folder, checkout, BuildFiles(checkout), "egl", [])
    edges = {}
    for edge in (folder / "build.ninja").read_text().split("\nbuild ")[1:]:
        head, *given = edge.splitlines()
        output, _, rest = head.partition(": ")
        edges[output] = (rest, *given)
    assert edges["out/objects/bspc/engine/code/bspc.c.o"] == (
        "c engine/code/bspc.c | ",
        "  flags = '-DARCH=\"x86\"' ",
    )
    assert edges["out/objects/engine/engine/code/engine.c.o"][1] == (
        "  flags = -DBOTLIB -isystemlua/. --cflags=zlib"
    )
    library = edges["out/libdmlab_headless_hw.so"]
    assert library[0].startswith("link out/objects/engine/engine/code/engine.c.o out/objects/lua/")
    assert library[1:] == ("  flags = -shared", "  libraries = -lrt --libs=zlib")
    assert edges["out/vm/cgame.qvm"][0].startswith(
        "run out/engine/code/game/main.asm engine/code/game/calls.asm | out/q3asm"
    )
    assert edges["out/baselab/assets_pk3"][0].startswith("pack assets/a$ b.tga")
    assert (folder / "out/baselab/assets_pk3.list").read_text() == "a b.tga\n"
    assert (folder / "engine/code/engine.c").is_file()


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(checks, "header_folders", lambda: (Path("/nowhere"), Path("/nowhere")))


@pytest.mark.usefixtures("bare_machine")
def test_what_a_machine_lacks_is_one_line_each() -> None:
    packages, numpy = checks.machine_problems("egl")
    assert packages.startswith("packages are missing: sudo apt-get install g++ gcc libabsl-dev ")
    assert {"libegl-dev", "ninja-build", "zip"} <= set(packages.split())
    assert f"python3.{sys.version_info.minor}-dev" in packages.split()
    assert "libosmesa6-dev" not in packages.split()
    assert numpy.startswith(f"{sys.executable} has no NumPy 2: ")


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("name", ["docs/dmlab.md", "Dockerfile"])
def test_all_packages_are_named_where_they_are_installed(name: str) -> None:
    packages = checks.machine_problems("osmesa")[0].partition("install ")[2].split()
    packages = [name.replace(f"python3.{sys.version_info.minor}", "python3") for name in packages]
    assert set(packages) <= set((ROOT / name).read_text().replace(";", " ").split())


def test_absent_files_and_pointers_are_named(checkout: Path) -> None:
    (checkout / "assets/a b.tga").write_text("version https://git-lfs.github.com/spec/v1\n")
    names = ["assets/a b.tga", "engine/code/engine.c", "engine/code/lost.c"]
    absent, pointers = checks.checkout_problems(checkout, names)
    assert absent.startswith(f"1 files of {checkout}, such as engine/code/lost.c, are absent")
    assert absent.endswith(": git clone https://github.com/google-deepmind/lab")
    assert "1 files" in pointers
    assert "such as assets/a b.tga, are pointers of Git LFS" in pointers


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_git_knows_which_files_are_absent(checkout: Path) -> None:
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", "-C", str(checkout), *command], check=True)
    assert checks.checkout_problems(checkout, ["unused"]) == []
    (checkout / "lua/vm.cc").unlink()
    [absent] = checks.checkout_problems(checkout, ["unused"])
    assert "lua/vm.cc" in absent
    assert absent.endswith(f": git -C {checkout} checkout .")


def test_the_wheel_needs_the_packages_of_what_its_programs_are_linked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, lines in {
        "objdump": "Dynamic Section:\n  NEEDED  libGL.so.1\n  NEEDED  libz.so.1",
        "dpkg-query": "local diversion from: /usr/lib/libz.so.1\n"
        "diversion by glx from: /usr/lib/x86_64-linux-gnu/libGL.so.1\n"
        "libgl1:amd64: /usr/lib/x86_64-linux-gnu/libGL.so.1\nzlib1g: /usr/lib/libz.so.1",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{lines}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert wheel.debian_packages([Path("lab.so")]) == ["libgl1", "zip", "zlib1g"]
    (tmp_path / "dpkg-query").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert wheel.debian_packages([Path("lab.so")]) == ["libGL.so.1", "libz.so.1", "zip"]


def test_the_wheel_is_one_that_installers_read(checkout: Path, tmp_path: Path) -> None:
    build_files = BuildFiles(checkout)
    for name in ("deepmind_lab.so", "bspc", "q3map2", "libdmlab_headless_hw.so", "baselab/vm.pk3"):
        path = checkout / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(0o755)
    for name in ninja_file.PACKS:
        (checkout / "out/baselab" / name).write_text(name)
    files = wheel.contents(checkout, build_files, "egl")
    wheel.write(tmp_path / wheel.NAME, files, checkout / "LICENSE", ["zip"])
    wheel.unpack(tmp_path / wheel.NAME, tmp_path / "site")

    package = tmp_path / "site/deepmind_lab"
    assert (package / "baselab/scripts/levels/lt_chasm.lua").is_file()
    assert (package / "libdmlab_headless_sw.so").read_text() == "libdmlab_headless_hw.so"
    for program in ("bspc", "q3map2/q3map2", "deepmind/level_generation/compile_map.sh"):
        assert os.access(package / program, os.X_OK)
    [installed] = importlib.metadata.distributions(path=[str(tmp_path / "site")])
    assert (installed.name, installed.version) == ("deepmind-lab", "1.0")
    assert installed.requires == ["numpy>=2,<3", "dm-env", "six"]
    assert installed.metadata.get_all("Requires-External") == ["zip"]
    recorded = {str(file): file for file in installed.files or ()}
    present = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    assert recorded.keys() == {str(path.relative_to(tmp_path / "site")) for path in present}
    assert recorded["deepmind_lab/bspc"].size == len("bspc")


@pytest.mark.parametrize(
    ("lost", "message"),
    [("python/dmlab_module.c", "is no checkout of DeepMind Lab"), ("lua/BUILD", "lua/BUILD'")],
)
def test_without_a_whole_checkout_nothing_is_written(
    checkout: Path, lost: str, message: str
) -> None:
    (checkout / lost).unlink()
    output = checkout.parent / "wheels"
    [line] = _complaints(checkout, output)
    assert message in line
    assert not output.exists()


@pytest.mark.parametrize("text", [b"cc_library(", b"cc_library(name = lua)", b"\xff"])
def test_a_build_file_that_is_damaged_is_named(checkout: Path, text: bytes) -> None:
    (checkout / "lua/BUILD").write_bytes(text)
    [line] = _complaints(checkout, checkout.parent / "wheels")
    assert "are not those of a whole DeepMind Lab" in line


def test_a_folder_whose_name_a_shell_takes_apart_is_refused(checkout: Path) -> None:
    output = checkout.parent / "two words"
    assert f"cannot read '{output}'" in _complaints(checkout, output)[-1]
    assert not output.exists()


def test_what_is_in_the_way_is_left_alone(checkout: Path) -> None:
    output = checkout.parent / "wheels"
    output.touch()
    assert "Not a directory" in _complaints(checkout, output)[-1]
    output.unlink()
    other = output / "deepmind_lab_build/mine"
    other.mkdir(parents=True)
    assert "is not of a build" in _complaints(checkout, output)[-1]
    assert other.exists()
    shutil.rmtree(other.parent)
    other.parent.mkdir()
    with open(other.parent / "build.ninja", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another build is at work" in _complaints(checkout, output)[-1]
    assert [path.name for path in other.parent.iterdir()] == ["build.ninja"]


_NINJA = """#!/bin/sh
cd "$2" && mkdir -p out/baselab && echo compiled >> out/log && cp out/log "$LOGS" || exit
[ -e "$LOGS/fails" ] && exit 1
for file in deepmind_lab.so bspc q3map2 libdmlab_headless_sw.so baselab/vm.pk3 PACKS; do
  echo > out/$file
done
"""


def test_a_build_goes_on_and_its_wheel_is_there_once_it_plays(
    checkout: Path, tmp_path: Path
) -> None:
    output, programs, logs = tmp_path / "wheels", tmp_path / "bin", tmp_path / "logs"
    made, folder, fails = output / wheel.NAME, output / "deepmind_lab_build", logs / "fails"
    programs.mkdir()
    logs.mkdir()
    packs = " ".join(f"baselab/{name}" for name in ninja_file.PACKS)
    (programs / "ninja").write_text(_NINJA.replace("PACKS", packs))
    (programs / "ninja").chmod(0o755)
    play = programs / "play.py"
    given = {"PATH": f"{programs}:{os.environ['PATH']}", "LOGS": str(logs)}
    fails.touch()
    assert "the same command goes on" in _complaints(checkout, output, **given)[-1]
    fails.unlink()
    given["PLAY"] = str(play)
    play.write_text("raise SystemExit(1)")
    assert "does not play a level" in _complaints(checkout, output, **given)[-1]
    assert not made.exists()
    assert (logs / "log").read_text() == "compiled\n" * 2
    play.write_text(
        "import importlib.util, os\n"
        f"assert importlib.util.find_spec('deepmind_lab') and not os.path.exists({str(made)!r})"
    )
    shutil.copytree(checkout, tmp_path / "another")
    assert _tool(tmp_path / "another", output, **given).returncode == 0
    assert (logs / "log").read_text() == "compiled\n"
    assert made.is_file()
    assert not folder.exists()


def _complaints(checkout: Path, output: Path, **environment: str) -> list[str]:
    """Returns what the tool says where machine and checkout lack nothing."""
    result = _tool(checkout, output, **environment)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert all(line.startswith("build_deepmind_lab: ") for line in lines)
    return lines


def _tool(checkout: Path, output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import os, sys, build_deepmind_lab as tool\n"
        "tool.checks.machine_problems = lambda renderer: []\n"
        "tool.checks.checkout_problems = lambda checkout, names: []\n"
        "tool.ninja_file._ask_pkg_config = lambda option, name: ''\n"
        "tool.wheel.debian_packages = lambda files: ['zip']\n"
        "tool._PLAY = os.environ.get('PLAY', tool._PLAY)\n"
        "sys.exit(tool.main())"
    )
    command = [sys.executable, "-c", program, f"--source={checkout}", f"--output={output}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools"), **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True)

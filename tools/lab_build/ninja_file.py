"""Writes a `build.ninja` that makes DeepMind Lab's targets as its own BUILD files describe them.

Ninja runs in a folder with links to all that the checkout holds, so that paths are those of the
BUILD files. What is made lies in the folder `out` beside them.
"""

import functools
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from .build_files import BuildFiles, Target

OUT = "out"
LIBRARIES = {"osmesa": "//:libdmlab_headless_sw.so", "egl": "//:libdmlab_headless_hw.so"}
_MODULE = "//:deepmind_lab.so"
_MAP_COMPILERS = ("//:bspc", "//q3map2")
_SCRIPT_COMPILERS = ("//:lburg", "//:q3asm", "//:q3cpp", "//:q3lcc", "//:q3rcc")
_SCRIPTS = {"cgame": "CGAME_QVM_ASMS", "qagame": "QAGAME_QVM_ASMS", "ui": "Q3UI_QVM_ASMS"}
PACKS = ("assets_pk3", "assets_oa_pk3", "assets_bots_pk3")
PLAIN_FILES = ("game_script_assets", "built_maps", "non_pk3_assets")
_GENERATED = "//:lcc_dagcheck"
_CODE = "engine/code"
_LOGGING = {"absl_check", "absl_log"}
_HEADERS = Path(__file__).resolve().parent / "include"

# The names by which pkg-config knows the BUILD files' archives.
_PKG_CONFIG_NAMES = {
    "eigen_archive": ["eigen3"],
    "glib_archive": ["glib-2.0"],
    "jpeg_archive": ["libjpeg"],
    "libxml_archive": ["libxml-2.0"],
    "lua_archive": ["lua5.1"],
    "png_archive": ["libpng", "zlib"],
    "sdl_system": ["sdl2"],
    "zlib_archive": ["zlib"],
}
# What `lenient` lists are errors from GCC 14 on.
_RULES = """\
optimise = -O2 -DNDEBUG -fPIC -fcommon -w
lenient = -Wno-implicit-function-declaration -Wno-incompatible-pointer-types -Wno-int-conversion
rule c
  command = gcc -std=gnu99 $optimise $lenient -iquote . $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  description = Compiling $in
rule cc
  command = g++ -std=c++17 $optimise -iquote . $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  description = Compiling $in
rule link
  command = g++ -pthread -Wl,--as-needed $flags -o $out $in $libraries
  description = Linking $out
rule pack
  command = rm -f $out && cd $folder && zip -q -X "$$OLDPWD/$out" -@ < "$$OLDPWD/$out.list"
  description = Packing $out
rule run
  command = $command
  description = Making $out
"""


def sources(build_files: BuildFiles, renderer: str) -> list[str]:
    """Returns all files of the checkout that go into a build; `renderer` is one of `LIBRARIES`."""
    rules = [build_files.target(f"//:{name}") for name in (*PACKS, *PLAIN_FILES)]
    targets = [target for label in _labels(renderer) for target in build_files.needed(label)[0]]
    names = [name for rule in rules for name in rule.files("srcs")]
    for kind in ("srcs", "hdrs", "textual_hdrs"):
        names += [name for target in targets for name in target.files(kind)]
    generated = build_files.target(_GENERATED).files("outs")
    return [name for name in dict.fromkeys(names) if name not in generated]


def write(
    folder: Path, checkout: Path, build_files: BuildFiles, renderer: str, headers: Iterable[Path]
) -> None:
    """Makes a folder ready for Ninja; `headers` are the folders of Python's and NumPy's."""
    for path in checkout.iterdir():
        link = folder / path.name
        if not path.name.startswith(".") and not link.is_symlink():
            link.symlink_to(path)
    ninja = _NinjaFile(folder, build_files, headers)
    for label in _labels(renderer):
        ninja.link(label)
    ninja.compile_scripts()
    for name in PACKS:
        pack = build_files.target(f"//:{name}")
        ninja.pack(pack.files("outs")[0], pack.files("srcs"))
    ninja.write()


def _labels(renderer: str) -> list[str]:
    return [*_SCRIPT_COMPILERS, *_MAP_COMPILERS, LIBRARIES[renderer], _MODULE]


class _NinjaFile:
    """The text of a `build.ninja` as it grows."""

    def __init__(self, folder: Path, build_files: BuildFiles, headers: Iterable[Path]):
        self._folder = folder
        self._build_files = build_files
        self._python_flags = [f"-isystem{path}" for path in headers]
        self._text = [_RULES]
        self._objects: dict[str, list[str]] = {}
        [self._generated] = build_files.target(_GENERATED).files("outs")

    def write(self) -> None:
        """Writes the file."""
        (self._folder / "build.ninja").write_text("\n".join([*self._text, ""]))

    def link(self, label: str) -> None:
        """Adds a program or shared library and the objects it is made of."""
        targets, archives = self._build_files.needed(label)
        options = [option for target in targets for option in target.words("linkopts")]
        options = [option.replace("$(location :dmlab.lds)", "dmlab.lds") for option in options]
        self._edge(
            "link",
            f"{OUT}/{targets[0].name}",
            [name for target in targets for name in self._compile(target)],
            flags="-shared" if targets[0].arguments.get("linkshared") else "",
            libraries=f"{shlex.join(options)} {_pkg_config('--libs', archives)}",
        )

    def compile_scripts(self) -> None:
        """Adds the game's own scripts, which its virtual machine runs."""
        lburg, q3asm, q3cpp, q3lcc, q3rcc = (f"{OUT}/{label[3:]}" for label in _SCRIPT_COMPILERS)
        [source] = self._build_files.target(_GENERATED).files("srcs")
        output = f"{OUT}/{self._generated}"
        self._run(output, [source], f"{lburg} {source} > {output}", [lburg])
        compiled = {}
        for name in self._build_files.variable("ASM_SOURCES"):
            compiled[name] = f"{OUT}/{_CODE}/{name}.asm"
            command = f"{q3lcc} -DSTANDALONE {_CODE}/{name}.c -o {compiled[name]}"
            self._run(compiled[name], [f"{_CODE}/{name}.c"], command, [q3cpp, q3lcc, q3rcc])
        for name, variable in _SCRIPTS.items():
            parts = self._build_files.variable(variable)
            parts = [compiled.get(part, f"{_CODE}/{part}.asm") for part in parts]
            output = f"{OUT}/vm/{name}.qvm"
            self._run(output, parts, f"{q3asm} -o {output} {' '.join(parts)}", [q3asm])
        self.pack("baselab/vm.pk3", [f"{OUT}/vm/{name}.qvm" for name in _SCRIPTS])

    def pack(self, output: str, files: Sequence[str]) -> None:
        """Adds a zip file of files that share their first folder, which is not part of names."""
        folder = files[0].partition("/")[0]
        names = self._folder / OUT / f"{output}.list"
        text = "".join(f"{name.removeprefix(f'{folder}/')}\n" for name in files)
        if not names.exists() or names.read_text() != text:
            names.parent.mkdir(parents=True, exist_ok=True)
            names.write_text(text)
        self._edge("pack", f"{OUT}/{output}", files, [f"{OUT}/{output}.list"], folder=folder)

    def _run(
        self, output: str, inputs: Sequence[str], command: str, programs: Sequence[str]
    ) -> None:
        self._edge("run", output, inputs, programs, command=command)

    def _compile(self, target: Target) -> list[str]:
        """Adds the objects of a target's own sources; returns their names."""
        label = f"//{target.folder}:{target.name}"
        if label not in self._objects:
            flags = self._flags(label)
            sources = [name for name in target.files("srcs") if name.endswith((".c", ".cc"))]
            sources = [f"{OUT}/{name}" if name == self._generated else name for name in sources]
            self._objects[label] = [
                f"{OUT}/objects/{target.path(target.name)}/{name}.o" for name in sources
            ]
            for source, name in zip(sources, self._objects[label], strict=True):
                self._edge(source.rpartition(".")[2], name, [source], flags=flags)
        return self._objects[label]

    def _flags(self, label: str) -> str:
        """Returns the flags of a target's compilation, as Bazel puts them together."""
        targets, archives = self._build_files.needed(label)
        flags = [word for option in targets[0].words("copts") for word in shlex.split(option)]
        for target in targets:
            flags += [f"-D{name}" for name in target.words("defines")]
            flags += [f"-isystem{target.path(name)}" for name in target.words("includes")]
        if targets[0].folder == "q3map2":  # Its own type `bool` is at odds with stdbool.h.
            flags += ["-include", str(_HEADERS / "qboolean.h")]
        if any(label.startswith("@python_system//") for label in archives):
            flags += self._python_flags
        return f"{shlex.join(flags)} {_pkg_config('--cflags', archives)}"

    def _edge(
        self, rule: str, output: str, inputs: Iterable[str], needs: Iterable[str] = (), **given: str
    ) -> None:
        names = " ".join(_escape(name) for name in inputs)
        more = " ".join(_escape(name) for name in needs)
        self._text.append(f"build {_escape(output)}: {rule} {names} | {more}")
        self._text += [f"  {name} = {value.replace('$', '$$')}" for name, value in given.items()]


def _pkg_config(option: str, archives: Iterable[str]) -> str:
    """Returns the flags of compiling (`--cflags`) or linking (`--libs`) with archives."""
    names = []
    for label in archives:
        archive, _, name = label.removeprefix("@").partition("//")
        if archive == "com_google_absl":
            names.append(f"absl_{name.rpartition('/')[2].rpartition(':')[2]}")
        else:
            names += _PKG_CONFIG_NAMES.get(archive, [])
    flags = ""
    if not _has_logging() and not _LOGGING.isdisjoint(names):
        # Abseil before 2023 has no `absl/log`; the headers beside this module take its place.
        names = [name for name in names if name not in _LOGGING]
        flags = f"-isystem{shlex.quote(str(_HEADERS))} " if option == "--cflags" else ""
    return flags + " ".join(dict.fromkeys(_ask_pkg_config(option, name) for name in names))


# By the name, since pkg-config takes a second for some of Abseil's together.
@functools.cache
def _ask_pkg_config(option: str, name: str) -> str:
    return subprocess.check_output(["pkg-config", option, name], text=True).strip()


@functools.cache
def _has_logging() -> bool:
    return subprocess.run(["pkg-config", "--exists", "absl_log"]).returncode == 0


def _escape(name: str) -> str:
    return name.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

"""BUILD files against the sources: each module is a target whose `deps` are what it imports."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = "scalable_agent_popart"
_SOURCES = sorted(
    path
    for pattern in ("*.py", f"{_PACKAGE}/**/*.py", "benchmarks/**/*.py", "tests/*.py", "tools/*.py")
    for path in _ROOT.glob(pattern)
)
_DEPS = ("deps", "package_deps")
_FOLDERS = sorted({str(path.parent.relative_to(_ROOT)) for path in _SOURCES})


class Target(NamedTuple):
    """What a BUILD file says of one file of Python."""

    label: str  # as other targets name it to import the file
    deps: set[str]


def _full(label: str, folder: str) -> str:
    """A label as it is written in a folder's BUILD file, in full: `//folder:name`."""
    package, colon, name = label.partition(":")
    if not package:
        package = "//" if folder == "." else f"//{folder}"
    return f"{package}:{name if colon else package.rsplit('/', 1)[-1]}"


def _targets(folder: str) -> Iterator[tuple[Path, Target]]:
    """The files of a folder that its BUILD file makes targets of."""
    for statement in ast.parse((_ROOT / folder / "BUILD").read_text()).body:
        assert isinstance(statement, ast.Expr)
        call = statement.value
        assert isinstance(call, ast.Call)
        kind = ast.unparse(call.func)
        if kind not in ("module", "program", "pytest_test", "py_library"):
            continue
        given = {word.arg: word.value for word in call.keywords}
        name = ast.literal_eval(given["name"])
        (source,) = ast.literal_eval(given["srcs"]) if "srcs" in given else (f"{name}.py",)
        imported = name if kind in ("module", "py_library") else f"{name}_lib"
        deps, of_package = (
            ast.literal_eval(given[word]) if word in given else [] for word in _DEPS
        )
        for labels in (deps, of_package):
            ordered = sorted(set(labels), key=_place)
            assert labels == ordered, f"deps of {name} in {folder}: not in order"
        deps += [f"//{_PACKAGE}:{module}" for module in of_package]
        yield (
            _ROOT / folder / source,
            Target(_full(f":{imported}", folder), {_full(label, folder) for label in deps}),
        )


def _place(label: str) -> tuple[bool, list[str]]:
    """Where a label comes in a list: those of the same folder first."""
    return not label.startswith(":"), label.split(":")


_TARGETS = {path: target for folder in _FOLDERS for path, target in _targets(folder)}


def _file(module: str, importer: Path) -> Path | None:
    """The file of this repository that a module is: beside the importer, or from the root."""
    for folder in (importer.parent, _ROOT):
        stem = folder.joinpath(*module.split("."))
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path in _TARGETS:
                return path
    return None


def _imports(importer: Path) -> set[Path]:
    """What a file imports of this repository, at its top or within functions.

    Of `from a import b` that is the module `a.b` if there is one, else `a`. Importing a package's
    module imports the package as well; not so for the package's own modules, or their targets
    would go in circles, and not for the outermost package: `module` adds that one.
    """
    found: set[Path | None] = set()
    for node in ast.walk(ast.parse(importer.read_text())):
        if isinstance(node, ast.Import):
            found |= {_file(alias.name, importer) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module
            found |= {
                _file(f"{node.module}.{alias.name}", importer) or _file(node.module, importer)
                for alias in node.names
            }
    files = {path for path in found if path}
    packages = {path.parent / "__init__.py" for path in files if path.parent != importer.parent}
    return files | packages & _TARGETS.keys() - {_ROOT / _PACKAGE / "__init__.py"}


def test_labels_are_read_as_bazel_reads_them() -> None:
    assert _full(":popart", ".") == "//:popart"
    assert _full("//:popart", "tests") == "//:popart"
    assert _full(":suite", f"{_PACKAGE}/suites") == f"//{_PACKAGE}/suites:suite"
    assert _full(f"//{_PACKAGE}/suites", ".") == f"//{_PACKAGE}/suites:suites"


def test_every_file_is_a_target_and_every_target_a_file() -> None:
    assert sorted(_TARGETS) == _SOURCES


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_deps_are_what_is_imported(path: Path) -> None:
    assert _TARGETS[path].deps == {_TARGETS[imported].label for imported in _imports(path)}


def test_locked_packages_are_those_the_project_asks_for() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["test"]
    lines = (_ROOT / "bazel" / "requirements.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    locked = {canonicalize_name(name): version for name, version in pins}
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])

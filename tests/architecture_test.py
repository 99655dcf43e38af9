"""Who may know whom: imports are parsed, never run, and held to the layout's arrows."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = "scalable_agent_popart"
_TENSORFLOW = {"tensorflow", "sonnet", "tensorflow_probability", "tf_keras", "keras"}

_SOURCES = sorted(
    path for pattern in ("*.py", f"{_PACKAGE}/**/*.py") for path in _ROOT.glob(pattern)
)
_LEAVES = ("vtrace", "popart", "environments")
# Modules that a process without TensorFlow can use.
_LIGHT = (
    "environments",
    f"{_PACKAGE}.config",
    f"{_PACKAGE}.config_checks",
    f"{_PACKAGE}.environment_process",
    f"{_PACKAGE}.process_pool",
    f"{_PACKAGE}.errors",
    f"{_PACKAGE}.evaluation_summary",
    f"{_PACKAGE}.intervals",
    f"{_PACKAGE}.member_directory",
    f"{_PACKAGE}.population_directory",
    f"{_PACKAGE}.report",
    f"{_PACKAGE}.report.ancestry",
    f"{_PACKAGE}.report.comparison",
    f"{_PACKAGE}.report.course",
    f"{_PACKAGE}.report.curves",
    f"{_PACKAGE}.report.figures",
    f"{_PACKAGE}.report.finals",
    f"{_PACKAGE}.report.gradients",
    f"{_PACKAGE}.report.page",
    f"{_PACKAGE}.report.population_figures",
    f"{_PACKAGE}.report.population_tables",
    f"{_PACKAGE}.report.populations",
    f"{_PACKAGE}.report.published",
    f"{_PACKAGE}.report.records",
    f"{_PACKAGE}.report.runs",
    f"{_PACKAGE}.report.tables",
    f"{_PACKAGE}.run_directory",
    f"{_PACKAGE}.scores",
    f"{_PACKAGE}.suites",
    f"{_PACKAGE}.suites.atari57",
    f"{_PACKAGE}.suites.atari_emulator",
    f"{_PACKAGE}.suites.atari_starts",
    f"{_PACKAGE}.suites.catch",
    f"{_PACKAGE}.suites.cluttered_catch",
    f"{_PACKAGE}.suites.dmlab30",
    f"{_PACKAGE}.suites.level_cache",
    f"{_PACKAGE}.suites.search_space",
    f"{_PACKAGE}.suites.suite",
    f"{_PACKAGE}.videos",
)
_THREADS = {"threading", "queue", "concurrent", "multiprocessing", f"{_PACKAGE}.worker_threads"}
_MATHS = (
    "vtrace",
    "popart",
    f"{_PACKAGE}.losses",
    f"{_PACKAGE}.pixel_control",
    f"{_PACKAGE}.rmsprop",
)


def _module_name(path: Path) -> str:
    parts = path.relative_to(_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_PATHS = {_module_name(path): path for path in _SOURCES}


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """Dotted names of all imports, at the top or within functions.

    `from a import b` gives `a` and `a.b`: b may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports would not be seen here"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def _imports(module: str) -> frozenset[str]:
    """What a module of this repository imports itself, packages above included."""
    names = set(_imported_names(_tree(_PATHS[module])))
    return frozenset(
        ".".join(parts[:length])
        for parts in (name.split(".") for name in names)
        for length in range(1, len(parts) + 1)
    )


def _reach(module: str) -> set[str]:
    """What a module imports, and what the modules of this repository it imports do."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in _imports(waiting.pop()) - seen:
            seen.add(name)
            if name in _PATHS:
                waiting.append(name)
    return seen


def test_sources_are_found() -> None:
    assert set(_LEAVES) | {"experiment"} | set(_LIGHT) | set(_MATHS) <= set(_PATHS)
    assert "tensorflow" in _reach(f"{_PACKAGE}.training")
    assert f"{_PACKAGE}.losses" in _reach(f"{_PACKAGE}.training")


@pytest.mark.parametrize("module", _LEAVES)
def test_leaves_never_import_the_package_or_the_launch_script(module: str) -> None:
    assert not {_PACKAGE, "experiment"} & _reach(module)


@pytest.mark.parametrize("module", [name for name in _PATHS if name != "experiment"])
def test_only_the_launch_script_knows_flags_and_nothing_knows_it(module: str) -> None:
    assert not {"experiment", "absl.app", "absl.flags"} & _imports(module)
    attributes = {n.attr for n in ast.walk(_tree(_PATHS[module])) if isinstance(n, ast.Attribute)}
    names = {n.id for n in ast.walk(_tree(_PATHS[module])) if isinstance(n, ast.Name)}
    assert "FLAGS" not in attributes | names


def test_launch_script_imports_nothing_heavy_at_its_top() -> None:
    top: list[ast.stmt] = [
        node
        for node in _tree(_PATHS["experiment"]).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    direct = set(_imported_names(ast.Module(top, [])))
    reached = direct.union(*(_reach(name) for name in direct if name in _PATHS))
    assert f"{_PACKAGE}.config" in direct
    assert not _TENSORFLOW & reached


@pytest.mark.parametrize("module", _LIGHT)
def test_light_modules_reach_no_tensorflow(module: str) -> None:
    assert not _TENSORFLOW & _reach(module)


@pytest.mark.parametrize("package", ["suites", "report"])
def test_every_suite_and_the_report_are_light(package: str) -> None:
    assert {name for name in _PATHS if name.startswith(f"{_PACKAGE}.{package}")} <= set(_LIGHT)


def test_actor_knows_neither_loss_nor_learner_nor_where_it_runs() -> None:
    forbidden = {f"{_PACKAGE}.{name}" for name in ("losses", "learner", "training", "suites")}
    assert not (forbidden | {"popart", "vtrace"}) & _reach(f"{_PACKAGE}.actor")


def test_learner_knows_neither_environments_nor_actors_nor_threads() -> None:
    forbidden = {f"{_PACKAGE}.{name}" for name in ("suites", "actor", "training", "run_directory")}
    assert not (forbidden | _THREADS) & _reach(f"{_PACKAGE}.learner")


@pytest.mark.parametrize("module", _MATHS)
def test_maths_knows_neither_configuration_nor_environments_nor_threads_nor_files(
    module: str,
) -> None:
    forbidden = {f"{_PACKAGE}.{name}" for name in ("config", "suites", "run_directory")}
    files = {"os", "pathlib", "io", "json"}
    assert not (forbidden | _THREADS | files | {"environments"}) & _reach(module)


@pytest.mark.parametrize(
    "path", [path for path in _SOURCES if path.stem != "transport"], ids=_module_name
)
def test_tensorflow_1_is_used_nowhere_but_in_the_transport(path: Path) -> None:
    names = {ast.unparse(node) for node in ast.walk(_tree(path)) if isinstance(node, ast.Attribute)}
    names |= set(_imported_names(_tree(path)))
    assert not [name for name in names if "compat.v1" in name]


def test_nothing_is_called_utils() -> None:
    assert not [path for path in _SOURCES if path.stem in ("util", "utils", "helpers", "misc")]

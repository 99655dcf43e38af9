"""Folders import only what they may: imports are parsed, never run, and held to the BUILD files."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "scalable_agent_popart"
_TENSORFLOW = {"tensorflow", "sonnet", "tensorflow_probability", "tf_keras", "keras"}
_SOURCES = {
    ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (*_ROOT.glob("*.py"), *(_ROOT / _PACKAGE).rglob("*.py"))
}
# These are imported by processes that do without TensorFlow.
_LIGHT = re.compile(
    r"environments"
    rf"|{_PACKAGE}\.(errors|scores|suites|report|runs\.(config|directory|json_lines|run)"
    r"|evaluation\.summary|population\.(directory|lineage))\b.*"
)
_THREADS = {"threading", "queue", "concurrent", "multiprocessing", f"{_PACKAGE}.system.threads"}
_MATHS = [
    "vtrace",
    "popart",
    *(f"{_PACKAGE}.learning.{name}" for name in ("losses", "pixel_control", "rmsprop")),
]


def _tree(module: str) -> ast.Module:
    return ast.parse(_SOURCES[module].read_text())


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the modules that these statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports would not be seen here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names
            yield from (str(node.module) for name in names if name not in _SOURCES)


@functools.cache
def _imports(module: str) -> set[str]:
    """Returns what a module imports, at the top or within functions."""
    nodes = list(ast.walk(_tree(module)))
    blocks = [node for node in nodes if isinstance(node, ast.If)]
    never_run = [n for b in blocks if ast.unparse(b.test) == "TYPE_CHECKING" for n in b.body]
    return set(_imported(node for node in nodes if node not in never_run))


def _reach(module: str) -> set[str]:
    """Returns what a module imports, and what the modules of this repository it imports do."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in _imports(waiting.pop()) - seen:
            seen |= {name, name.partition(".")[0]}
            waiting += [name] if name in _SOURCES else []
    return seen


def _target(module: str) -> str:
    """Returns the label of the Bazel target that a module is part of."""
    path = module.split(".")
    if path[0] != _PACKAGE:
        return "//:launch_script" if module == "experiment" else f"//:{path[0]}"
    if len(path) > 1 and (_ROOT / _PACKAGE / path[1] / "BUILD").is_file():
        return f"//{_PACKAGE}/{path[1]}"
    return f"//{_PACKAGE}" + (":factory" if path[-1] == "factory" else "")


def _arrows() -> dict[str, set[str]]:
    """Returns each target of a BUILD file with its `deps`."""
    arrows = {}
    for path in (_ROOT / "BUILD", *(_ROOT / _PACKAGE).rglob("BUILD")):
        folder = path.parent.relative_to(_ROOT).as_posix().lstrip(".")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "folder":
                given = {word.arg: word.value for word in node.keywords}
                label = f"//{folder}"
                label += f":{ast.literal_eval(given['name'])}" if "name" in given else ""
                deps = ast.literal_eval(given["deps"]) if "deps" in given else []
                arrows[label] = {f"//{folder}{dep}" if dep[0] == ":" else dep for dep in deps}
                if folder and label != f"//{_PACKAGE}":
                    assert f"//{_PACKAGE}" not in arrows[label], "Bazel refuses what it has twice"
                    arrows[label].add(f"//{_PACKAGE}")
    return arrows


def test_folders_import_only_those_that_their_build_files_name() -> None:
    arrows = _arrows()
    for module in _SOURCES:
        target = _target(module)
        used = {_target(name) for name in _imports(module) if name in _SOURCES}
        assert used <= arrows[target] | {target}, module


def test_arrows_between_folders_make_no_circle() -> None:
    arrows = _arrows()
    while leaves := {target for target, deps in arrows.items() if not deps & arrows.keys()}:
        arrows = {target: deps for target, deps in arrows.items() if target not in leaves}
    assert not arrows


def test_only_the_launch_script_knows_flags_and_nothing_knows_it() -> None:
    for module in _SOURCES.keys() - {"experiment"}:
        used = {"experiment", "absl.app", "absl.flags"} & _imports(module)
        assert not used or module == f"{_PACKAGE}.system.program", "it parses and never reads them"
        words = {getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(_tree(module))}
        assert "FLAGS" not in words, module


def test_what_processes_without_tensorflow_import_is_light() -> None:
    light = [module for module in _SOURCES if _LIGHT.fullmatch(module)]
    assert len(light) > 20
    for name in (*light, *_imported(_tree("experiment").body)):
        assert name not in _TENSORFLOW
        assert name not in _SOURCES or not _TENSORFLOW & _reach(name), name


def test_maths_knows_neither_configuration_nor_environments_nor_threads_nor_files() -> None:
    forbidden = {f"{_PACKAGE}.{name}" for name in ("suites", "runs")} | _THREADS
    forbidden |= {"environments", "os", "pathlib", "io"}
    for module in _MATHS:
        assert not forbidden & _reach(module), module


def test_actor_and_learner_do_not_know_each_other() -> None:
    actor, learner = _reach(f"{_PACKAGE}.acting.actor"), _reach(f"{_PACKAGE}.learning.learner")
    others = (f"{_PACKAGE}.learning", "vtrace", "popart")
    assert not any(name.startswith(others) for name in actor)
    others = (f"{_PACKAGE}.acting", f"{_PACKAGE}.suites")
    assert not any(name.startswith(others) for name in learner)
    assert not _THREADS & learner

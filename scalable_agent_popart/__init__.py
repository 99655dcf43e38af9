"""PopArt-IMPALA: multi-task deep reinforcement learning with adaptive normalisation."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from scalable_agent_popart.evaluation.trained import TrainedAgent
    from scalable_agent_popart.report.run_tables import RunTables

__version__ = "0.2.0"

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _refuse(line: str) -> NoReturn:
    """Raises ImportError, or ends one of the project's own programs, which shows no traceback."""
    # Python names the command -m while it looks for the module.
    command = os.path.basename(sys.argv[0]) in ("popart-impala", "-m")
    place = os.path.relpath(os.path.abspath(sys.argv[0]), _FOLDER).partition(os.sep)[0]
    if command or place in ("experiment.py", "tools", "benchmarks", "bazel"):
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)  # It would fail again.
    raise ImportError(line)


def _refuse_other_pythons() -> None:
    """Raises ImportError if this Python is too old or too new, or has none of the packages."""
    advice = "run make install once, then source .venv/bin/activate"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        version = ".".join(map(str, sys.version_info[:2]))
        line = f"{sys.executable} is Python {version}, and Python 3.11, 3.12 or 3.13 is needed"
        _refuse(f"{line}: remove .venv if it has that Python, {advice}")
    for name in ("absl", "sonnet"):
        if importlib.util.find_spec(name) is None:
            _refuse(f"{sys.executable} has no module {name!r}: {advice}")


def _refuse_other_modules() -> None:
    """Raises ImportError if the user's own modules hide those next to the package."""
    for name in ("environments", "popart", "vtrace"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        other = os.path.abspath(spec.origin)
        folders = {os.path.dirname(other), os.path.dirname(os.path.realpath(other))}
        if not folders & {_FOLDER, os.path.realpath(_FOLDER)}:  # Build systems link to files.
            line = f"{other} is found in place of {os.path.join(_FOLDER, name)}.py, which "
            _refuse(f"{line}scalable_agent_popart needs: rename it, or move it elsewhere")


_refuse_other_pythons()
_refuse_other_modules()


def load(
    logdir: str | os.PathLike[str],
    frames: int | None = None,
    level_name: str | None = None,
    dataset_path: str | os.PathLike[str] | None = None,
    level_cache_dir: str | os.PathLike[str] | None = None,
    network: str | None = None,
) -> "TrainedAgent":
    """Loads the agent of a run, quietly: its newest checkpoint, or the one at so many `frames`.

    A member of a population is a run, `POPULATION/member-00`. `level_name` is needed to play tasks
    of a module of one's own, and `network` to load such a network. The other two are for DmLab
    where the run's own folders are missing; "" stands for none. Raises `errors.UserError` if there
    is no run, if it has no such checkpoint that can be read, or if its tasks are not those of the
    suite of `level_name`. It also raises it if its network is not `network`.
    """
    # Processes that do without TensorFlow import this package as well.
    if "tensorflow" not in sys.modules:
        importlib.import_module(f"{__name__}.system.tensorflow_import").import_quietly()
    agent: TrainedAgent = importlib.import_module(f"{__name__}.evaluation.trained").TrainedAgent(
        os.path.expanduser(logdir), frames, level_name, dataset_path, level_cache_dir, network
    )
    return agent


def read_runs(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> "RunTables":
    """Reads what runs recorded into pandas tables, without TensorFlow.

    A path is a run's directory, a folder of runs, or a pattern such as `runs/catch5-*`. Runs may
    still be training, and a population is one run, as in reports. Warns of what cannot be read.
    Raises `errors.UserError` if a path does not exist, or if no run can be read.
    """
    reader = importlib.import_module(f"{__name__}.report.run_tables")
    tables: RunTables = reader.read(paths)
    return tables

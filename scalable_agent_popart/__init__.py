"""PopArt-IMPALA: multi-task deep reinforcement learning with adaptive normalisation."""

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalable_agent_popart.trained import TrainedAgent

__version__ = "0.1.0"


def _refuse_other_modules() -> None:
    """Raises ImportError if the user's own modules hide those next to the package."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in ("environments", "popart", "vtrace"):
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            continue
        other = os.path.abspath(found.origin)
        folders = {os.path.dirname(other), os.path.dirname(os.path.realpath(other))}
        if not folders & {folder, os.path.realpath(folder)}:  # Build systems link to files.
            line = f"{other} is found in place of {os.path.join(folder, name)}.py, which "
            line += "scalable_agent_popart needs: rename it, or move it elsewhere"
            # A program shows no traceback; Python names it -m while it looks for the module.
            if os.path.basename(sys.argv[0]) in ("popart-impala", "-m"):
                sys.exit(f"error: {line}")
            raise ImportError(line)


_refuse_other_modules()


def load(
    logdir: str | os.PathLike[str],
    frames: int | None = None,
    level_name: str | None = None,
    dataset_path: str | os.PathLike[str] | None = None,
    level_cache_dir: str | os.PathLike[str] | None = None,
) -> "TrainedAgent":
    """Loads the agent of a run, quietly: its newest checkpoint, or the one at so many `frames`.

    A member of a population is a run, `POPULATION/member-00`. `level_name` is needed to play tasks
    of a module of one's own. The other two are for DmLab where the run's own folders are missing;
    "" stands for none. Raises `errors.UserError` if there is no run, if it has no such checkpoint
    that can be read, or if its tasks are not those of the suite of `level_name`.
    """
    # Processes that do without TensorFlow import this package as well.
    if "tensorflow" not in sys.modules:
        importlib.import_module(f"{__name__}.system.tensorflow_import").import_quietly()
    agent: TrainedAgent = importlib.import_module(f"{__name__}.trained").TrainedAgent(
        os.path.expanduser(logdir), frames, level_name, dataset_path, level_cache_dir
    )
    return agent

"""PopArt-IMPALA: multi-task deep reinforcement learning with adaptive normalisation."""

import importlib.util
import os
import sys

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

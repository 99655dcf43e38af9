"""The command `popart-impala`, which is that of `python experiment.py`."""

import runpy
from pathlib import Path


def run() -> None:
    """Runs the launch script next to the package, even if another module has its name."""
    runpy.run_path(str(Path(__file__).parents[1] / "experiment.py"), run_name="__main__")


if __name__ == "__main__":
    run()

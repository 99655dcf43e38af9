"""Runs the main program, or parses its flags, within the tests' own process."""

from typing import Any

from absl import flags
from absl.testing import flagsaver

import experiment


def run(**given: Any) -> None:
    """Runs the main program with these flags."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["experiment.py"])
    with flagsaver.flagsaver(**given):
        experiment.main(["experiment.py"])


def given_flags(*arguments: str) -> dict[str, Any]:
    """Returns the flags that these arguments give the main program."""
    with flagsaver.flagsaver():
        assert flags.FLAGS(["experiment.py", *arguments]) == ["experiment.py"]
        return experiment.given_flags()

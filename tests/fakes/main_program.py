"""Runs the main program within the tests' own process."""

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

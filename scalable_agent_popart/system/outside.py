"""What a flag names in a Python module outside of the package, as MODULE:NAME."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from scalable_agent_popart.errors import UserError, describe

_OWN_MODULES = ("environments", "experiment", "popart", "vtrace")


def load(flag: str, module: str, name: str) -> Any:
    """Imports a module, perhaps of the current directory, and returns its attribute `name`.

    Raises UserError if the module is one of this program's, or if it cannot be loaded.
    """
    if module in _OWN_MODULES:
        raise UserError(f"--{flag}: {module} is a module of this program; rename yours")
    if os.getcwd() not in sys.path:  # Child processes get `sys.path`, too.
        sys.path.append(os.getcwd())
    failure = f"--{flag}: the {name} of {module} cannot be loaded"
    return call(lambda: getattr(importlib.import_module(module), name), failure)


def call(function: Callable[[], Any], failure: str) -> Any:
    """Calls a function from outside of the package; raises UserError, a line, if it fails."""
    try:
        return function()
    except Exception as error:
        raise UserError(f"{failure} ({describe(error)})") from error

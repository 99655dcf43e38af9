"""DeepMind Lab. This module becomes the native one beside it, which finds its state by name."""

import importlib.machinery
import importlib.util
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
_file = os.path.join(_folder, "deepmind_lab.so")
_loader = importlib.machinery.ExtensionFileLoader(__name__, _file)
_spec = importlib.util.spec_from_file_location(
    __name__, _file, loader=_loader, submodule_search_locations=[_folder]
)
assert _spec is not None
_native = importlib.util.module_from_spec(_spec)
sys.modules[__name__] = _native
_loader.exec_module(_native)

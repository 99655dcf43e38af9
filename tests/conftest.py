"""What all tests share."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Modules that train or start processes; they run after everything else.
_SLOW = ("throughput_test", "bookkeeping_test", "experiment_test", "learning_test", "failure_test")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the fast tests first."""
    names = {name: place for place, name in enumerate(_SLOW, start=1)}
    items.sort(key=lambda item: names.get(item.path.stem, 0))

"""What all tests share."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_ROOT = Path(__file__).resolve().parents[1]

# Modules that train or start processes; they run after everything else.
_SLOW = (
    "report_test",
    "starts_test",
    "record_starts_test",
    "process_pool_test",
    "dmlab30_test",
    "throughput_test",
    "actor_test",
    "member_test",
    "experiment_test",
    "evaluate_test",
    "run_experiment_test",
    "pixel_control_runs_test",
    "remote_actors_test",
    "dmlab30_runs_test",
    "learning_test",
    "failure_test",
    "population_runs_test",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the fast tests first."""
    names = {name: place for place, name in enumerate(_SLOW, start=1)}
    items.sort(key=lambda item: names.get(item.path.stem, 0))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes the stand-in importable as `deepmind_lab`, also in processes that are started.

    The fixture is a function that sets how levels behave: `stand_in(lt_chasm={...}, **{"*": ...})`.
    """
    from scalable_agent_popart.suites.dmlab import dmlab30  # noqa: PLC0415

    folder = tmp_path / "stand_in"
    folder.mkdir()
    (folder / "deepmind_lab.py").write_text("from tests.fakes.fake_deepmind_lab import *\n")
    monkeypatch.syspath_prepend(str(folder))
    # Where engines leave their files, and processes that start others find the stand-in.
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(_ROOT)]))
    dmlab30.complaint.cache_clear()

    def behave(**levels: dict[str, Any]) -> None:
        monkeypatch.setenv("FAKE_DMLAB", json.dumps(levels))

    behave()
    yield behave
    dmlab30.complaint.cache_clear()
    sys.modules.pop("deepmind_lab", None)

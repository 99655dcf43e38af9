"""Fixtures that tests share, and the order of tests."""

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.programs import ROOT, Programs

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # Programs have it, too.
# A shell's background jobs ignore SIGINT, and programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def full_float32() -> None:
    """Makes a GPU compute products with all bits of float32, as the oracles do."""
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.config.experimental.enable_tensor_float_32_execution(False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is under `tests/slow`, and puts whole runs first, so that none is begun last."""
    for item in items:
        if ROOT / "tests" / "slow" in item.path.parents:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: ROOT / "tests" / "unit" in item.path.parents)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder for the temporary files of this process and those that it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def programs() -> Iterator[Programs]:
    """Starts `experiment.py` in processes, and kills them after the test."""
    with contextlib.closing(Programs()) as programs:
        yield programs


@pytest.fixture
def stand_in(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], None]]:
    """Makes the stand-in importable as `deepmind_lab`, also in processes that are started.

    The fixture is a function that sets the frames of an episode.
    """
    from scalable_agent_popart.suites.dmlab import dmlab30  # noqa: PLC0415

    folder = tmp_path / "stand_in"
    folder.mkdir()
    (folder / "deepmind_lab.py").write_text("from tests.fakes.fake_deepmind_lab import *\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
    dmlab30.complaint.cache_clear()

    yield lambda frames: monkeypatch.setenv("FAKE_DMLAB_FRAMES", str(frames))
    dmlab30.complaint.cache_clear()
    sys.modules.pop("deepmind_lab", None)


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.slow)])
def room_frames(request: pytest.FixtureRequest, temporary: Path) -> int:
    """Makes the stand-in importable as `deepmind_lab`, or takes the real one where it is installed.

    Returns the frames of the longest episodes of the `rooms_*_train` levels.
    """
    if request.param == "stand-in":
        request.getfixturevalue("stand_in")(40)
        return 40
    if importlib.util.find_spec("deepmind_lab") is None:
        pytest.skip("deepmind_lab is not installed")
    return 3600

"""The stand-in for `deepmind_lab`: its folders, its cache, and the ways it fails."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import fake_deepmind_lab
import labs
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module puts its temporary folders."""
    labs.isolate(monkeypatch, tmp_path)
    return tmp_path


def _run_apart(program: str, **fields: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program after `lab` was made on a level with maps, with unflushed output."""
    start = (
        "import atexit, numpy as np; from fake_deepmind_lab import Lab\n"
        "atexit.register(print, 'finalised'); print('started')\n"
        f"class Cache:\n  fetch = lambda *_: {fields.pop('fetched', False)}\n"
        "  write = lambda *_: None\n"
        f"lab = Lab('{labs.MAPS}', ['RGB_INTERLEAVED'], level_cache=Cache())\n"
    )
    return labs.run_python(start + program, FAKE_DMLAB=json.dumps({"*": fields}))


class _Cache:
    """Keeps maps in memory and notes what it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []

    def fetch(self, key: str, pk3_path: str) -> bool:
        self.calls.append(("fetch", key))
        if key in self.files:
            Path(pk3_path).write_bytes(self.files[key])
        return key in self.files

    def write(self, key: str, pk3_path: str) -> None:
        self.calls.append(("write", key))
        self.files[key] = Path(pk3_path).read_bytes()


def test_closing_stops_the_episode_and_removes_the_folder(temp: Path) -> None:
    lab = labs.started(labs.MAPS)
    (folder,) = labs.folders(temp)
    assert re.fullmatch(r"dmlab_temp_folder_\w{6}", folder.name)
    (pk3,) = folder.glob("baselab/*.pk3")
    assert 50_000 < pk3.stat().st_size < 70_000
    assert lab.close() is True
    assert lab.close() is False
    assert not lab.is_running()
    assert not folder.exists()
    for use in (lab.observations, lab.events, lambda: lab.step(labs.NOTHING)):
        with pytest.raises(RuntimeError, match="Environment in wrong status"):
            use()


def test_a_forgotten_lab_removes_its_folder_and_a_given_folder_stays(temp: Path) -> None:
    lab = labs.started()
    assert len(labs.folders(temp)) == 1
    del lab
    assert not labs.folders(temp)
    lab = labs.started(labs.MAPS, temp_folder=str(temp / "given"))
    assert not labs.folders(temp)
    lab.close()
    assert list((temp / "given").glob("baselab/*.pk3"))


def test_a_missing_map_is_fetched_compiled_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    labs.behave(monkeypatch, reset_seconds=0.2)
    cache = _Cache()
    seconds = []
    for seed in (1, 2, 1 + fake_deepmind_lab.MAPS_PER_LEVEL):
        lab = labs.make(labs.MAPS, level_cache=cache)
        start = time.perf_counter()
        lab.reset(seed=seed)
        seconds.append(time.perf_counter() - start)
    first, second = cache.files
    assert re.fullmatch(r"explore_goal_locations_small_\w+_[0-9a-f]{32}", first)
    assert cache.calls == [
        *(("fetch", first), ("write", first), ("fetch", second), ("write", second)),
        ("fetch", first),
    ]
    assert min(seconds[:2]) >= 0.2
    assert 0.02 < seconds[2] < 0.2


def test_levels_with_prebuilt_maps_ask_no_cache() -> None:
    cache = _Cache()
    for level in (
        labs.PREBUILT,
        *(labs.SUITE + x for x in ("natlab_fixed_large_map", "psychlab_visual_search")),
    ):
        labs.started(level, level_cache=cache)
    assert cache.calls == []


def test_what_a_cache_raises_comes_out_of_reset() -> None:
    class Broken(_Cache):
        broken = "fetch"

        def fetch(self, key: str, pk3_path: str) -> bool:
            if self.broken == "fetch":
                raise OSError("no fetching")
            return super().fetch(key, pk3_path)

        def write(self, key: str, pk3_path: str) -> None:
            super().write(key, pk3_path)
            raise OSError("no writing")

    cache = Broken()
    lab = labs.make(labs.MAPS, level_cache=cache)
    with pytest.raises(OSError, match="no fetching"):
        lab.reset()
    assert cache.calls == []
    cache.broken = "write"
    with pytest.raises(OSError, match="no writing"):
        lab.reset()
    assert not lab.is_running()


@pytest.mark.parametrize(
    ("program", "fields", "last_line", "status"),
    [
        ("lab.reset()", {"fetched": True}, "Didn't find map 'explore_", 1),
        (
            "Cache.fetch = lambda self, key, path: open(path, 'w').write('other')\nlab.reset()",
            {},
            "Didn't find map 'explore_",
            1,
        ),
        ("lab.reset()", {"exit_on_reset": True}, "Didn't find map 'explore_", 1),
        (
            "lab.reset()\nfor _ in range(3): lab.step(np.zeros(7, np.intc))\n"
            "print('three', flush=True)\nlab.step(np.zeros(7, np.intc))",
            {"exit_after_steps": 3, "exit_exactly": True},
            "Stand-in ends its process after 3 steps",
            1,
        ),
        ("lab.close(); lab.reset()", {}, "Segmentation fault: reset of a closed Lab", 139),
    ],
    ids=["no file", "other file", "on reset", "on step", "after close"],
)
def test_some_failures_end_the_whole_process(
    program: str, fields: dict[str, Any], last_line: str, status: int, temp: Path
) -> None:
    result = _run_apart(f"try:\n  exec({program!r})\nexcept BaseException as e: print(e)", **fields)
    assert result.returncode == status
    assert result.stderr.startswith(last_line)
    assert "finalised" not in result.stdout
    assert ("three" in result.stdout) == ("three" in program)
    assert len(labs.folders(temp)) == (0 if "close" in program else 1)


def test_a_process_that_ends_well_leaves_no_folder(temp: Path) -> None:
    result = _run_apart("lab.reset()")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "started\nfinalised\n"
    assert not labs.folders(temp)


def test_steps_before_an_exit_vary_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    for process in range(200):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        behaviour = fake_deepmind_lab.Behaviour(exit_after_steps=100)
        steps.append(fake_deepmind_lab._calls_until_exit(behaviour))
    assert len(set(steps)) > 50
    assert 70 < np.mean(steps) < 130


def test_a_step_raises_and_lasts_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    labs.behave(monkeypatch, raise_on_step=2, step_seconds=0.02)
    lab = labs.started()
    start = time.thread_time()
    for _ in range(2):
        lab.step(labs.NOTHING)
    assert 0.04 <= time.thread_time() - start < 0.2
    with pytest.raises(RuntimeError, match="after 2 steps"):
        lab.step(labs.NOTHING)


def test_a_levels_own_behaviour_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"*": {"episode_frames": 8, "raise_on_step": 0}, labs.PREBUILT: {"raise_on_step": None}}
    monkeypatch.setenv("FAKE_DMLAB", json.dumps(own))
    lab = labs.started()
    lab.step(labs.NOTHING, 8)
    assert not lab.is_running()
    with pytest.raises(RuntimeError, match="after 0 steps"):
        labs.started("lt_chasm").step(labs.NOTHING)
    for wrong in ({"lt_chas": {}}, {"*": {"reset_second": 1}}):
        monkeypatch.setenv("FAKE_DMLAB", json.dumps(wrong))
        with pytest.raises((ValueError, TypeError), match=r"lt_chas|reset_second"):
            labs.make()

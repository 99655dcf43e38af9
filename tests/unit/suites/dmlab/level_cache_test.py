"""Compiled maps are kept whole or not at all, and no more of them than is allowed."""

import math
import os
import random
from pathlib import Path
from unittest import mock

import pytest

from scalable_agent_popart.suites.dmlab.level_cache import LevelCache

_MAP = bytes(range(0, 256, 3)) + b"a map"


def _write(cache: LevelCache, folder: Path, key: str, compiled: bytes = _MAP) -> None:
    (folder / "written.pk3").write_bytes(compiled)
    cache.write(key, str(folder / "written.pk3"))


def _fetch(cache: LevelCache, folder: Path, key: str) -> bytes | None:
    pk3 = folder / "fetched.pk3"
    return pk3.read_bytes() if cache.fetch(key, str(pk3)) else None


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_keys_keep_their_maps_apart_and_within_the_directory(tmp_path: Path) -> None:
    cache = LevelCache(str(tmp_path / "deep" / "cache"), math.inf)
    keys = ["../../x", "", "a/b", "a%2Fb", "\0"]
    for key in keys:
        assert _fetch(cache, tmp_path, key) is None
        _write(cache, tmp_path, key, key.encode())
    assert [_fetch(cache, tmp_path, key) for key in keys] == [key.encode() for key in keys]
    assert len(_files(tmp_path)) == len(keys) + 2
    # No folder either: who may write to the directory could not write to another user's folder.
    assert len(list((tmp_path / "deep" / "cache").iterdir())) == len(keys)


def test_a_damaged_entry_is_a_miss_and_is_mended(tmp_path: Path) -> None:
    cache = LevelCache(str(tmp_path / "cache"), math.inf)
    _write(cache, tmp_path, "level")
    (entry,) = _files(tmp_path / "cache")
    entry.write_bytes(entry.read_bytes()[:40])
    assert _fetch(cache, tmp_path, "level") is None
    _write(cache, tmp_path, "level")
    assert _fetch(cache, tmp_path, "level") == _MAP


def test_a_write_that_fails_half_way_leaves_the_old_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LevelCache(str(tmp_path / "cache"), math.inf)
    _write(cache, tmp_path, "level")
    monkeypatch.setattr(Path, "replace", mock.Mock(side_effect=OSError("No space left")))
    _write(cache, tmp_path, "level", b"another map")
    assert _fetch(cache, tmp_path, "level") == _MAP
    assert len(_files(tmp_path / "cache")) == 1


def test_the_maps_not_used_for_longest_make_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others' files are left alone, however old, and so is what cannot be removed or looked at."""
    directory = tmp_path / "cache"
    stays, mine = directory / "stays.dmlab_map", directory / "of_mine.map"
    stays.mkdir(parents=True)
    (directory / "nowhere.dmlab_map").symlink_to("nowhere.dmlab_map")
    mine.write_bytes(bytes(5000))
    cache = LevelCache(str(directory), max_bytes=3.5 * 1000 + stays.stat().st_size)
    for age, key in enumerate("abc", start=1):
        _write(cache, tmp_path, key, bytes(968))
        os.utime(directory / f"{key}.dmlab_map", (age, age))
    for path in (stays, mine):
        os.utime(path, (0, 0))
    assert _fetch(cache, tmp_path, "a")
    _write(cache, tmp_path, "d", bytes(968))
    assert sorted(path.stem for path in _files(directory)) == ["a", "c", "d", "of_mine"]
    assert stays.exists()
    assert not caplog.messages


def test_small_maps_rarely_list_the_directory_and_hardly_pass_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LevelCache(str(tmp_path / "cache"), max_bytes=40_000)
    monkeypatch.setattr(os, "scandir", scan := mock.Mock(wraps=os.scandir))
    random.seed(1)
    sizes = []
    for key in range(1500):
        _write(cache, tmp_path, str(key), bytes(8))  # With its digest a tenth of 1% of the limit.
        if key % 10 == 0:
            sizes.append(40 * len(os.listdir(tmp_path / "cache")))
    assert 40_000 < max(sizes) < 1.1 * 40_000
    assert 100 < scan.call_count < 200

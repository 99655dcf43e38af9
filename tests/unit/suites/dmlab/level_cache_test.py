"""Compiled maps are kept whole or not at all."""

from pathlib import Path

import pytest

from scalable_agent_popart.suites.dmlab.level_cache import LevelCache

_MAP = bytes(range(0, 256, 3)) + b"a map"


def _write(cache: LevelCache, folder: Path, key: str, compiled: bytes = _MAP) -> None:
    (folder / "written.pk3").write_bytes(compiled)
    cache.write(key, str(folder / "written.pk3"))


def _fetch(cache: LevelCache, folder: Path, key: str) -> bytes | None:
    pk3 = folder / "fetched.pk3"
    return pk3.read_bytes() if cache.fetch(key, str(pk3)) else None


def test_keys_keep_their_maps_apart_and_within_the_directory(tmp_path: Path) -> None:
    cache = LevelCache(str(tmp_path / "deep" / "cache"))
    keys = ["../../x", "", "a/b", "a%2Fb", "\0"]
    for key in keys:
        assert _fetch(cache, tmp_path, key) is None
        _write(cache, tmp_path, key, key.encode())
    assert [_fetch(cache, tmp_path, key) for key in keys] == [key.encode() for key in keys]
    assert len(list((tmp_path / "deep" / "cache").iterdir())) == len(keys)


def test_a_damaged_entry_is_a_miss_and_is_mended(tmp_path: Path) -> None:
    cache = LevelCache(str(tmp_path / "cache"))
    _write(cache, tmp_path, "level")
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(entry.read_bytes()[:40])
    assert _fetch(cache, tmp_path, "level") is None
    _write(cache, tmp_path, "level")
    assert _fetch(cache, tmp_path, "level") == _MAP


def test_a_write_that_fails_half_way_leaves_the_old_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LevelCache(str(tmp_path / "cache"))
    _write(cache, tmp_path, "level")

    def fail(path: Path, target: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    _write(cache, tmp_path, "level", b"another map")
    assert _fetch(cache, tmp_path, "level") == _MAP
    assert len(list((tmp_path / "cache").iterdir())) == 1

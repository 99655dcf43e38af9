"""Compiled maps are kept whole or not at all, whatever becomes of files and processes."""

import contextlib
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalable_agent_popart.suites.dmlab.level_cache import LevelCache
from tests.fakes import fake_deepmind_lab, labs

_MAP = bytes(range(0, 256, 3)) + b"a map"
_OTHER = b"another map"
_DEADLINE_SECONDS = 60

_IMPORTS = """
import itertools, os, signal, sys
from pathlib import Path
from scalable_agent_popart.suites.dmlab.level_cache import LevelCache
cache, folder = LevelCache(sys.argv[1]), Path(sys.argv[2])
"""


class Shelf:
    """A cache in a directory of its own, with a place for the engine's files."""

    def __init__(self, folder: Path):
        self.directory = folder / "cache"
        self.cache = LevelCache(str(self.directory))
        self.engine = folder / "engine"
        self.engine.mkdir()

    def write(self, key: str, compiled: bytes = _MAP) -> None:
        pk3 = self.engine / "written.pk3"
        pk3.write_bytes(compiled)
        self.cache.write(key, str(pk3))
        assert pk3.read_bytes() == compiled

    def fetch(self, key: str) -> bytes | None:
        """The map of a key; None after a miss, which leaves no file behind."""
        pk3 = self.engine / "fetched.pk3"
        hit = self.cache.fetch(key, str(pk3))
        assert hit is pk3.exists()
        compiled = pk3.read_bytes() if hit else None
        pk3.unlink(missing_ok=True)
        return compiled

    def entries(self) -> list[Path]:
        return [path for path in self.directory.iterdir() if not path.name.startswith(".")]

    def leftovers(self) -> list[Path]:
        return [path for path in self.directory.iterdir() if path.name.startswith(".")]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@contextlib.contextmanager
def _started(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone when the block ends."""
    with labs.start_python(_IMPORTS + program, *arguments) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("compiled", [_MAP, b"", b"\r\n\x00\xff", b"PK\x03\x04" * 50_000])
def test_a_written_map_comes_back_byte_for_byte(shelf: Shelf, compiled: bytes) -> None:
    shelf.write("level", compiled)
    assert shelf.fetch("level") == compiled
    assert LevelCache(str(shelf.directory)).fetch("level", str(shelf.engine / "again"))
    assert (shelf.engine / "again").read_bytes() == compiled
    assert len(shelf.entries()) == 1
    assert not shelf.leftovers()


def test_an_unknown_key_is_a_miss_and_makes_nothing(shelf: Shelf) -> None:
    assert shelf.fetch("level") is None
    assert not shelf.directory.exists()
    shelf.write("level")
    before = shelf.entries()
    for key in ("leve", "levels", "LEVEL", "level.map", ""):
        assert shelf.fetch(key) is None
    assert shelf.entries() == before


def test_a_second_map_takes_the_place_of_the_first(shelf: Shelf) -> None:
    shelf.write("level", _OTHER)
    shelf.write("level")
    assert shelf.fetch("level") == _MAP
    assert len(shelf.entries()) == 1


def test_an_entry_cut_short_anywhere_is_a_miss_and_is_mended(shelf: Shelf) -> None:
    shelf.write("level")
    (entry,) = shelf.entries()
    whole = entry.read_bytes()
    for length in range(len(whole)):
        entry.write_bytes(whole[:length])
        assert shelf.fetch("level") is None, length
    shelf.write("level")
    assert shelf.fetch("level") == _MAP


def test_one_changed_bit_anywhere_is_a_miss_and_is_mended(shelf: Shelf) -> None:
    shelf.write("level")
    (entry,) = shelf.entries()
    whole = entry.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        entry.write_bytes(changed)
        assert shelf.fetch("level") is None, place
    shelf.write("level")
    assert shelf.fetch("level") == _MAP


def _replace_by_a_link_to_nothing(entry: Path) -> None:
    entry.unlink()
    entry.symlink_to("nowhere")


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry.write_bytes(_MAP),
        lambda entry: entry.write_bytes(bytes(10_000)),
        lambda entry: entry.write_bytes(entry.read_bytes() + b"\x00"),
        lambda entry: entry.write_bytes(b"\x00" + entry.read_bytes()),
        lambda entry: entry.unlink(),
        _replace_by_a_link_to_nothing,
    ],
    ids=["bare map", "zeros", "longer", "shifted", "gone", "link"],
)
def test_an_entry_of_other_content_is_a_miss_and_is_mended(
    shelf: Shelf, damage: Callable[[Path], None]
) -> None:
    shelf.write("level")
    (entry,) = shelf.entries()
    damage(entry)
    assert shelf.fetch("level") is None
    shelf.write("level")
    assert shelf.fetch("level") == _MAP
    assert shelf.entries() == [entry]


def test_a_directory_in_an_entrys_place_is_a_miss_for_good(shelf: Shelf) -> None:
    shelf.write("level")
    (entry,) = shelf.entries()
    entry.unlink()
    (entry / "inside").mkdir(parents=True)
    for _ in range(2):
        assert shelf.fetch("level") is None
        shelf.write("level")
    assert not shelf.leftovers()
    shelf.write("other")
    assert shelf.fetch("other") == _MAP


def test_keys_of_all_kinds_stay_apart_and_within_the_directory(
    shelf: Shelf, tmp_path: Path
) -> None:
    absolute = str(tmp_path / "absolute")
    keys = ["../../x", "..", ".", "", "a/b", "a%2Fb", "a%252Fb", "a_b", "a/", "/a", absolute]
    keys += ["x" * 200, "Größe", "\n", "\0", "*", "~", "$HOME", ".new_", "x.map", "x"]
    for key in keys:
        shelf.write(key, key.encode())
    assert [shelf.fetch(key) for key in keys] == [key.encode() for key in keys]
    assert len(os.listdir(shelf.directory)) == len(keys)
    assert all(entry.is_file() for entry in shelf.directory.iterdir())
    assert sorted(os.listdir(tmp_path)) == ["cache", "engine"]


def test_a_key_too_long_for_a_file_name_is_a_miss_for_good(shelf: Shelf) -> None:
    for key in ("/" * 200, "x" * 5000):
        assert shelf.fetch(key) is None
        shelf.write(key)
        assert shelf.fetch(key) is None
    assert not os.listdir(shelf.directory)


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_in_the_directorys_place_raises_nothing(shelf: Shelf, below: str) -> None:
    shelf.directory.write_bytes(b"a file")
    shelf.cache = LevelCache(str(shelf.directory / below))
    for _ in range(2):
        assert shelf.fetch("level") is None
        shelf.write("level")
    assert shelf.directory.read_bytes() == b"a file"


def test_the_directory_is_made_with_its_parents_and_again_when_removed(shelf: Shelf) -> None:
    directory = shelf.directory / "deeper" / "still"
    shelf.cache = LevelCache(str(directory))
    for _ in range(2):
        assert shelf.fetch("level") is None
        shelf.write("level")
        assert shelf.fetch("level") == _MAP
        for entry in directory.iterdir():
            entry.unlink()
        directory.rmdir()


def test_a_missing_map_is_not_written_and_harms_no_entry(shelf: Shelf) -> None:
    shelf.write("level")
    for nothing in (shelf.engine / "missing.pk3", shelf.engine):
        shelf.cache.write("level", str(nothing))
        shelf.cache.write("other", str(nothing))
    assert shelf.fetch("level") == _MAP
    assert shelf.fetch("other") is None
    assert len(os.listdir(shelf.directory)) == 1


def test_a_map_that_cannot_be_put_in_place_is_a_miss(shelf: Shelf) -> None:
    shelf.write("level")
    for place in (shelf.engine, shelf.engine / "missing" / "map.pk3"):
        assert shelf.cache.fetch("level", str(place)) is False
    assert shelf.fetch("level") == _MAP


def test_a_cache_can_be_pickled(shelf: Shelf) -> None:
    shelf.write("level")
    shelf.cache = pickle.loads(pickle.dumps(shelf.cache))
    assert shelf.fetch("level") == _MAP


_FILL_THE_DISK = """
import resource
pk3 = folder / "large.pk3"
pk3.write_bytes(bytes(100_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
cache.write("level", str(pk3))
cache.write("large", str(pk3))
"""


def test_a_full_disk_costs_the_entry_alone(shelf: Shelf) -> None:
    """A limit on the size of files fails like a full disk: in the middle of the writing."""
    shelf.write("level", _OTHER)
    result = labs.run_python(_IMPORTS + _FILL_THE_DISK, shelf.directory, shelf.engine)
    assert result.returncode == 0, result.stderr
    assert shelf.fetch("level") == _OTHER
    assert shelf.fetch("large") is None
    assert not shelf.leftovers()


_CONTEND = """
def check(key, name):
    path = folder / name
    path.unlink(missing_ok=True)
    assert cache.fetch(key, str(path)), "a miss"
    compiled = path.read_bytes()
    assert len(set(compiled)) == 1 and len(compiled) == 300 * compiled[0], "not whole"

own = sys.argv[3]
for number in range(1, 81):
    pk3 = folder / f"written_{own}"
    # Each process has maps of its own, of all sizes.
    compiled = (3 * number + int(own)) % 255 + 1
    pk3.write_bytes(bytes([compiled]) * (300 * compiled))
    cache.write(f"level {number % 3}", str(pk3))
    for key in range(3):
        check(f"level {key}", f"fetched_{own}")
"""


def test_processes_that_share_a_directory_see_whole_entries_alone(shelf: Shelf) -> None:
    """Once there, an entry is never missed: that would be one replaced bit by bit."""
    keys = [f"level {number}" for number in range(3)]
    for key in keys:
        shelf.write(key, bytes([1]) * 300)
    writers = 3
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_started(_CONTEND, shelf.directory, shelf.engine, own))
            for own in range(writers)
        ]
        seen = set()
        while any(process.poll() is None for process in processes):
            for key in keys:
                compiled = shelf.fetch(key)
                assert compiled
                assert compiled == compiled[:1] * (300 * compiled[0])
                seen.add(compiled[0])
        for process in processes:
            _, errors = process.communicate(timeout=_DEADLINE_SECONDS)
            assert process.returncode == 0, errors
    assert len(seen) > 10, "the reader must have seen the writers at work"
    assert len(shelf.entries()) == len(keys)
    assert not shelf.leftovers()


_WRITE_WITHOUT_END = """
pk3 = folder / "large.pk3"
pk3.write_bytes(bytes(8_000_000))
for number in itertools.count():
    cache.write(f"level {number % 3}", str(pk3))
"""


def _kill_while_writing(shelf: Shelf) -> None:
    """Kills a process as soon as some of an entry is on the disk, but not all."""
    with _started(_WRITE_WITHOUT_END, shelf.directory, shelf.engine) as process:
        before = set(shelf.directory.iterdir())
        end = time.monotonic() + _DEADLINE_SECONDS
        while process.poll() is None:
            assert time.monotonic() < end, "no entry was written"
            for path in set(shelf.directory.iterdir()) - before:
                with contextlib.suppress(FileNotFoundError):
                    if 0 < path.stat().st_size < 8_000_000:
                        process.kill()
        assert process.wait() == -signal.SIGKILL, process.communicate()[1]


def test_processes_killed_while_writing_leave_hidden_files_at_most(shelf: Shelf) -> None:
    shelf.write("level", _OTHER)
    for _ in range(2):
        _kill_while_writing(shelf)
        assert all(path.name.startswith(".new_") for path in shelf.leftovers())
        assert shelf.fetch("level") == _OTHER
        names = {path.name for path in shelf.entries()}
        fetched = [shelf.fetch(f"level {number}") for number in range(3)]
        assert set(fetched) <= {None, bytes(8_000_000)}
        assert len(names) == 4 - fetched.count(None), "an entry that is there is whole"
    shelf.write("level 0")
    assert shelf.fetch("level 0") == _MAP


_DIE_BEFORE_THE_END = """
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
pk3 = folder / "map.pk3"
pk3.write_bytes(bytes(1000))
os.replace = os.rename = Path.replace = Path.rename = die
cache.write("level", str(pk3))
"""


def test_a_process_killed_before_an_entry_is_in_place_leaves_the_old_one(shelf: Shelf) -> None:
    shelf.write("level", _OTHER)
    with _started(_DIE_BEFORE_THE_END, shelf.directory, shelf.engine) as process:
        assert process.wait(_DEADLINE_SECONDS) == -signal.SIGKILL, process.communicate()[1]
    assert shelf.fetch("level") == _OTHER
    assert len(shelf.entries()) == len(shelf.leftovers()) == 1
    shelf.write("level")
    assert shelf.fetch("level") == _MAP


_RESET_WITH_DAMAGE = """
from tests.fakes import labs
def damage(change):
    (entry,) = Path(sys.argv[1]).iterdir()
    change(entry)
    lab = labs.started(labs.MAPS, level_cache=cache)
    (pk3,) = labs.folders(folder)[0].glob("baselab/*.pk3")
    assert cache.fetch(pk3.stem, str(folder / "mended"))
    assert (folder / "mended").read_bytes() == pk3.read_bytes()
    lab.close()

damage(lambda entry: None)
damage(lambda entry: entry.write_bytes(b""))
damage(lambda entry: entry.write_bytes(entry.read_bytes()[:30_000]))
damage(lambda entry: entry.write_bytes(entry.read_bytes()[:-1] + b"?"))
damage(lambda entry: entry.write_bytes(b"?" + entry.read_bytes()[1:]))
def make_directory(entry):
    entry.unlink()
    entry.mkdir()
try:
    damage(make_directory)
except AssertionError:
    print("not mended, but reset")
"""


def test_the_engine_outlives_damaged_entries(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, like the engine, ends its process if a promised map is not the right one."""
    labs.isolate(monkeypatch, shelf.engine)
    lab = labs.started(labs.MAPS, level_cache=shelf.cache)
    (entry,) = shelf.entries()
    (pk3,) = labs.folders(shelf.engine)[0].glob("baselab/*.pk3")
    assert shelf.fetch(pk3.stem) == fake_deepmind_lab.compile_map(pk3.stem)
    lab.close()
    result = labs.run_python(_IMPORTS + _RESET_WITH_DAMAGE, shelf.directory, shelf.engine)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "not mended, but reset\n"
    assert entry.is_dir()

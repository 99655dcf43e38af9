"""Cache of DeepMind Lab's compiled maps in a directory that many processes share."""

import contextlib
import hashlib
import os
import random
import urllib.parse
import uuid
from pathlib import Path

from absl import logging

_SUFFIX = ".dmlab_map"  # Other files in the directory are the user's.
# Writers look for entries to remove once in so much of the limit, on average, and remove so much
# more than they must. Thus the directory is rarely listed, and rarely too large.
_INTERVAL, _MARGIN = 0.01, 0.05


class LevelCache:
    """A level cache as `deepmind_lab.Lab` takes one: an object with `fetch` and `write`.

    An entry is a file: a digest of key and compiled map, then the map. It is ignored if its digest
    does not fit, since the engine ends its process if `fetch` returns True without a proper map.
    Any process may remove any entry at any time; the least recently used ones go first.
    """

    def __init__(self, directory: str, max_bytes: float):
        self._directory = Path(directory)  # The first `write` makes it.
        self._max_bytes = max_bytes

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copies the map of a key to `pk3_path`; returns False if there is none."""
        path = self._path(key)
        try:
            entry = path.read_bytes()
            compiled = entry[hashlib.sha256().digest_size :]
            if entry != _entry(key, compiled):
                return False
            Path(pk3_path).write_bytes(compiled)
        except OSError:
            return False
        with contextlib.suppress(OSError):  # The file has just been removed, or is another user's.
            os.utime(path)
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keeps the map at `pk3_path`; a failure is logged, and the map compiled again later."""
        # Other users could not write to a folder of this user's within the directory.
        temporary = self._directory / f"{uuid.uuid4().hex}{_SUFFIX}"
        try:
            entry = _entry(key, Path(pk3_path).read_bytes())
            self._directory.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(entry)
                temporary.replace(self._path(key))
            finally:
                temporary.unlink(missing_ok=True)
            if random.random() * self._max_bytes * _INTERVAL < len(entry):
                self._make_room()
        except OSError as error:
            logging.warning("the level cache could not keep %s or make room: %s", key, error)

    def _make_room(self) -> None:
        """Removes the least recently used entries, and what killed writers left, if too large."""
        entries = []
        for file in os.scandir(self._directory):
            with contextlib.suppress(OSError):  # The file has just been removed.
                if file.name.endswith(_SUFFIX):
                    status = file.stat()
                    entries.append((status.st_mtime, status.st_size, file.path))
        total = sum(size for _, size, _ in entries)
        if total <= self._max_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= self._max_bytes * (1 - _MARGIN):
                break
            with contextlib.suppress(OSError):  # The path may be another user's, or no file.
                os.unlink(path)
                total -= size

    def _path(self, key: str) -> Path:
        return self._directory / f"{urllib.parse.quote(key, safe='')}{_SUFFIX}"


def _entry(key: str, compiled: bytes) -> bytes:
    return hashlib.sha256(key.encode() + compiled).digest() + compiled

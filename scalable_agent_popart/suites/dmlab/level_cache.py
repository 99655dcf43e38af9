"""Cache of DeepMind Lab's compiled maps in a directory that many processes share."""

import contextlib
import hashlib
import math
import os
import random
import time
import urllib.parse
import uuid
from pathlib import Path

from absl import logging

_SUFFIX = ".dmlab_map"  # Other files in the directory are the user's.
# Writers look for entries to remove once in so much of the limit, on average, and remove so much
# more than they must. Thus the directory is rarely listed, and rarely too large.
_INTERVAL, _MARGIN = 0.01, 0.05
_BEING_WRITTEN = "+"  # Entries have no such names, because their keys are quoted.
_MAX_WRITE_SECONDS = 3600.0  # A writer that takes longer was killed.


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
        with contextlib.suppress(OSError):  # It has just been removed, or is another user's.
            os.utime(path)
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keeps the map at `pk3_path`; a failure is logged, and the map compiled again later."""
        try:
            entry = _entry(key, Path(pk3_path).read_bytes())
            self._directory.mkdir(parents=True, exist_ok=True)
            # Other users could not write to a folder of this one's.
            temporary = self._directory / f"{_BEING_WRITTEN}{uuid.uuid4().hex}{_SUFFIX}"
            try:
                temporary.write_bytes(entry)
                temporary.replace(self._path(key))
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            logging.warning("the map %s could not be kept: %s", key, error)
            return
        if random.random() * self._max_bytes * _INTERVAL < len(entry):
            try:
                self._make_room()
            except OSError as error:
                logging.warning("no room could be made in %s: %s", self._directory, error)

    def _make_room(self) -> None:
        """Removes what killed writers left and, if all is too large, the least recently used."""
        entries, now = [], time.time()
        for file in os.scandir(self._directory):
            if file.name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):
                    status = file.stat()
                    is_old = now - status.st_mtime > _MAX_WRITE_SECONDS
                    if file.name.startswith(_BEING_WRITTEN) and is_old:
                        os.unlink(file.path)
                    else:
                        entries.append((status.st_mtime, status.st_size, file.path))
        total = sum(size for _, size, _ in entries)
        limit = self._max_bytes * (1 - _MARGIN) if total > self._max_bytes else math.inf
        for _, size, path in sorted(entries):
            if total <= limit:
                break
            with contextlib.suppress(OSError):  # It may be another user's, or no file.
                Path(path).unlink(missing_ok=True)
                total -= size

    def _path(self, key: str) -> Path:
        return self._directory / f"{urllib.parse.quote(key, safe='')}{_SUFFIX}"


def _entry(key: str, compiled: bytes) -> bytes:
    return hashlib.sha256(key.encode() + compiled).digest() + compiled

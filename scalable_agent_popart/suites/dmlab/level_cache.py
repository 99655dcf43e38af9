"""Cache of DeepMind Lab's compiled maps in a directory that many processes share."""

import hashlib
import urllib.parse
import uuid
from pathlib import Path

from absl import logging


class LevelCache:
    """A level cache as `deepmind_lab.Lab` takes one: an object with `fetch` and `write`.

    An entry is a file: a digest of key and compiled map, then the map. It is ignored if its digest
    does not fit, since the engine ends its process if `fetch` returns True without a proper map.
    """

    def __init__(self, directory: str):
        self._directory = Path(directory)  # Made at the first `write`.

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copies the map of a key to `pk3_path`; returns False if there is none."""
        try:
            entry = self._path(key).read_bytes()
            compiled = entry[hashlib.sha256().digest_size :]
            if entry != _entry(key, compiled):
                return False
            Path(pk3_path).write_bytes(compiled)
        except OSError:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keeps the map at `pk3_path`; a failure is logged, and the map compiled again later."""
        try:
            compiled = Path(pk3_path).read_bytes()
            self._directory.mkdir(parents=True, exist_ok=True)
            temporary = self._directory / f".new_{uuid.uuid4().hex}"
            try:
                temporary.write_bytes(_entry(key, compiled))
                temporary.replace(self._path(key))
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            logging.warning("the map %s could not be kept: %s", key, error)

    def _path(self, key: str) -> Path:
        return self._directory / f"{urllib.parse.quote(key, safe='')}.map"


def _entry(key: str, compiled: bytes) -> bytes:
    return hashlib.sha256(key.encode() + compiled).digest() + compiled

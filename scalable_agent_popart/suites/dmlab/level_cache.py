"""Compiled maps of DeepMind Lab, kept in a directory that any number of processes share."""

import hashlib
import urllib.parse
import uuid
from pathlib import Path

from absl import logging

_DIGEST_BYTES = hashlib.sha256().digest_size


class LevelCache:
    """A level cache as `deepmind_lab.Lab` takes one: an object with `fetch` and `write`.

    An entry is a file: a digest of key and compiled map, then the map. It appears all at once or
    not at all, and one whose digest does not fit is as good as none: a map that the engine is
    promised and does not find ends its process.
    """

    def __init__(self, directory: str):
        """Uses a directory, which is made when first written to."""
        self._directory = Path(directory)

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copies the map of that key to `pk3_path`; returns False if there is none."""
        try:
            entry = self._path(key).read_bytes()
            digest, compiled = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
            if _digest(key, compiled) != digest:
                return False
            Path(pk3_path).write_bytes(compiled)
        except OSError:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keeps the map at `pk3_path`; if that fails, it is compiled again another time."""
        try:
            compiled = Path(pk3_path).read_bytes()
            self._directory.mkdir(parents=True, exist_ok=True)
            temporary = self._directory / f".new_{uuid.uuid4().hex}"
            try:
                temporary.write_bytes(_digest(key, compiled) + compiled)
                temporary.replace(self._path(key))
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            logging.warning("the map %s could not be kept: %s", key, error)

    def _path(self, key: str) -> Path:
        return self._directory / f"{urllib.parse.quote(key, safe='')}.map"


def _digest(key: str, compiled: bytes) -> bytes:
    return hashlib.sha256(key.encode() + compiled).digest()

"""Threads of this process."""

import threading


def running(*beginnings: str) -> list[str]:
    """Returns the names of running threads that begin so."""
    return [each.name for each in threading.enumerate() if each.name.startswith(beginnings)]

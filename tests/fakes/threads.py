"""Threads of this process: one that cannot start, and those that run."""

import threading

import pytest


def refuse_thread(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Lets no thread of this name start, as if there were too many."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError(f"no thread {name}")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


def running(*beginnings: str) -> list[str]:
    """Returns the names of running threads that begin so."""
    return [each.name for each in threading.enumerate() if each.name.startswith(beginnings)]

"""Threads with an owner, to which what they raise comes back."""

import sys
import threading
from collections.abc import Callable

import pytest

from scalable_agent_popart.errors import PassingError
from scalable_agent_popart.system import threads as threads_lib
from scalable_agent_popart.system.threads import Threads


class Worker(Threads):
    def __init__(self, work: Callable[[], object]):
        super().__init__()
        self._work = work

    def start(self) -> None:
        self.start_thread("worker-0", self._work)

    def stop(self) -> None:
        """Waits for nothing."""


def test_a_thread_cannot_end_its_owner_as_if_all_were_done() -> None:
    threads = Worker(sys.exit)
    threads.start()
    threads.close()
    with pytest.raises(RuntimeError, match=r"worker-0 called sys\.exit"):
        threads.raise_error()


def test_a_thread_that_hangs_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_lib, "_JOIN_SECONDS", 0.01)
    end = threading.Event()
    threads = Worker(end.wait)
    threads.start()
    threads.close()
    with pytest.raises(PassingError, match=r"^worker-0 did not stop in 0\.01 s"):
        threads.raise_error()
    end.set()

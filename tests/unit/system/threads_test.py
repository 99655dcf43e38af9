"""Threads with an owner, to which what they raise comes back."""

import threading

import pytest

from scalable_agent_popart.errors import PassingError
from scalable_agent_popart.system import threads as threads_lib
from scalable_agent_popart.system.threads import Threads


class Waiting(Threads):
    end = threading.Event()

    def start(self) -> None:
        self.start_thread("worker-0", self.end.wait)

    def stop(self) -> None:
        """Waits for nothing."""


def test_one_that_hangs_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_lib, "_JOIN_SECONDS", 0.1)
    threads = Waiting()
    threads.start()
    threads.close()
    with pytest.raises(PassingError, match=r"^worker-0 did not stop in 0\.1 s; perhaps a step"):
        threads.raise_error()
    threads.end.set()

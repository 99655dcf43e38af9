"""Threads with an owner, to which what they raise comes back."""

import sys
import threading
from collections.abc import Callable
from unittest import mock

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


def test_those_that_hang_have_one_time_limit_and_one_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads_lib, "_JOIN_SECONDS", 0.25)
    end = threading.Event()
    threads = Worker(end.wait)
    for _ in range(3):
        threads.start()
    # The clock shows when `close` begins and before it waits for each thread.
    clock = mock.Mock(monotonic=iter([5.0, 5.0, 5.0625, 9.0]).__next__)
    monkeypatch.setattr(threads_lib, "time", clock)
    with mock.patch.object(threading.Thread, "join") as join:
        threads.close()
    assert [call.args for call in join.call_args_list] == [(0.25,), (0.1875,), (0.0,)]
    with pytest.raises(PassingError, match=r"^worker-0 did not stop in 0\.25 s; perhaps a step"):
        threads.raise_error()
    end.set()

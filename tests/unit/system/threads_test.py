"""Threads with an owner, to which what they raise comes back."""

import sys

import pytest

from scalable_agent_popart.system.threads import Threads


class Exiting(Threads):
    def start(self) -> None:
        self.start_thread("worker-0", sys.exit)

    def stop(self) -> None:
        """Waits for nothing."""


def test_a_thread_cannot_end_its_owner_as_if_all_were_done() -> None:
    threads = Exiting()
    threads.start()
    threads.close()
    with pytest.raises(RuntimeError, match=r"worker-0 called sys\.exit"):
        threads.raise_error()

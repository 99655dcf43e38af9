"""Threads with an owner: none outlives it, and no exception in one goes unnoticed."""

import abc
import threading
import time
from collections.abc import Callable

from scalable_agent_popart.errors import PassingError

_JOIN_SECONDS = 60.0


class Threads(abc.ABC):
    """A group of threads that end together, and the first exception that one of them raised."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the threads, which `close` ends."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Makes every thread return; called from any thread, possibly more than once."""

    def start_thread(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)  # One that could not start cannot be joined.

    def raise_error(self) -> None:
        """Raises the first exception of a thread, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.stop()
        deadline = time.monotonic() + _JOIN_SECONDS  # The same for all, which may all hang.
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive() and self._error is None:
                message = f"{thread.name} did not stop in {_JOIN_SECONDS:g} s"
                self._error = PassingError(f"{message}; perhaps a step of an environment hangs")

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # The owner must see any exception.
            failure = error
            if isinstance(error, SystemExit):  # It would end the owner as if all were done.
                failure = RuntimeError(f"{threading.current_thread().name} called sys.exit")
                failure.__cause__ = error
            self._error = self._error or failure
            self.stop()

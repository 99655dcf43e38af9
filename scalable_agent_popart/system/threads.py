"""Threads with an owner: none outlives it, and no exception in one goes unnoticed."""

import threading
from collections.abc import Callable

_JOIN_SECONDS = 60.0


class WorkerThreads:
    """Starts threads, keeps the first exception of any, and ends them together."""

    def __init__(self, stop: Callable[[], None]):
        """Creates the group.

        Args:
          stop: makes every worker return; called on the first exception and on `close`, from
            any thread, possibly more than once.
        """
        self._stop = stop
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Runs `work` in a new thread."""
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def raise_error(self) -> None:
        """Raises the first exception of a worker, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stops all workers and waits for them."""
        self._stop()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                self._keep(RuntimeError(f"{thread.name} did not stop in {_JOIN_SECONDS:g} s"))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # Whatever it is, the owner must see it.
            self._keep(error)
            self._stop()

    def _keep(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error

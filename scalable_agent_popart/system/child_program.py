"""Work with TensorFlow in a child process: its owner's side, and its main function."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from scalable_agent_popart.errors import UserError, exit_code, explain
from scalable_agent_popart.system import supervisor, tensorflow_import
from scalable_agent_popart.system.supervisor import Child, Restarts

_COMMAND = "from scalable_agent_popart.system.child_program import run; run()"
_MAX_PAUSE_SECONDS = 60.0
_MAX_RESTARTS_IN_A_ROW = 7
_HEALTHY_SECONDS = 60.0  # The death of a process that lived longer may begin a new row.


class Program:
    """Work that a child process does for this one, which starts it again where it dies."""

    def __init__(
        self,
        work: Callable[[Any], Iterable[int | None]],
        payload: Any,
        first_pause: float = 0.0,
        **environment: str,
    ):
        """Starts nothing yet.

        Args:
          work: a function that takes the payload and yields numbers of signals that asked it to
            stop, or None. Importing its module must not import TensorFlow.
          first_pause: seconds before the first restart; see `Restarts`.
          environment: variables that the process has besides this one's.
        """
        self._task = (work, payload)
        self._restarts = Restarts(first_pause, _MAX_PAUSE_SECONDS, _MAX_RESTARTS_IN_A_ROW)
        self._environment = {**supervisor.python_environment(), **environment}
        self._due = 0.0
        self.child: Child | None = None  # Between two lives there is none.

    def attend(self) -> int | None:
        """Starts the process if that is due; returns the exit code of one that has ended."""
        if self.child is None:
            if time.monotonic() >= self._due:
                command = [sys.executable, "-c", _COMMAND]
                self.child = Child(command, self._task, environment=self._environment)
            return None
        return self.child.wait(0)

    def restart(self, what: str, setting: str, healthy: bool = True) -> None:
        """Lets `attend` start the process again, which has ended, once a pause is over.

        Raises UserError if it has died too often in a row: it tells `what` happened, and blames the
        setting. A process that was `healthy` and lived for long begins a new row.
        """
        assert self.child is not None, "it has ended"
        healthy = healthy and time.monotonic() - self.child.began >= _HEALTHY_SECONDS
        pause = self._restarts.pause(healthy)
        if pause is None:
            raise UserError(
                f"{what} {self._restarts.deaths} times in a row: is there too little memory for "
                f"{setting}?"
            )
        self._due, self.child = time.monotonic() + pause, None


def run() -> None:
    """Does the work of a `Program` in its process, until it ends or the parent is gone.

    A user's error goes to the parent as a message, and decides on the exit code.
    """
    connection, (work, payload) = supervisor.begin()

    def end_with_parent() -> None:
        connection.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    tensorflow_import.import_quietly()  # It forks, which threads would not survive.
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        for signal_number in work(payload):
            if signal_number is not None:
                sys.exit(128 + signal_number)
    except Exception as error:
        if (line := explain(error)) is None:
            raise
        connection.sendall(line.encode())
        sys.exit(exit_code(error))

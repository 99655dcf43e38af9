"""Work with TensorFlow in a child process: its owner's side, and its main function."""

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import supervisor, tensorflow_import, terminal
from scalable_agent_popart.system.program import exit_code, explain
from scalable_agent_popart.system.supervisor import Child, Restarts

# It takes the payload and returns the number of the signal that asked it to stop, or None. Its
# module must not import TensorFlow.
Work = Callable[[Any], int | None]
_COMMAND = "from scalable_agent_popart.system.child_program import run; run()"
_MAX_RESTARTS_IN_A_ROW = 7
_HEALTHY_SECONDS = 60.0  # The death of a process that lived longer may begin a new row.


class Program:
    """Work in a child process that this process can start again when it dies."""

    def __init__(self, work: Work, payload: Any, first_pause: float = 0.0, **environment: str):
        """Starts the process, with these variables added to this one's environment."""
        self._restarts = Restarts(_MAX_RESTARTS_IN_A_ROW, first_pause)
        command = [sys.executable, "-P", "-c", _COMMAND]
        environment = supervisor.python_environment() | environment
        self._start = functools.partial(Child, command, (work, payload), environment=environment)
        self._due: float | None = None  # The time to start the process again.
        self.child = self._start()

    def attend(self) -> int | None:
        """Returns the process's exit code at its end; after `restart` it starts the next one."""
        if self._due is None:
            return self.child.wait(0)
        if time.monotonic() >= self._due:
            self._due, self.child = None, self._start()
        return None

    def restart(self, what: str, setting: str, healthy: bool = True) -> None:
        """Starts a process again that has ended, or lets `attend` do so after a pause.

        A death begins a new row if the process was `healthy` and old. After too many in a row it
        raises UserError, which says `what` the process did and blames the setting.
        """
        age = time.monotonic() - self.child.began
        pause = self._restarts.pause(healthy and age >= _HEALTHY_SECONDS)
        if pause is None:
            row = f"{self._restarts.deaths} times in a row"
            raise UserError(f"{what} {row}: is there too little memory for {setting}?")
        self._due = time.monotonic() + pause
        self.attend()


def run() -> None:
    """Does the work of a `Program` in its process; passes a user's error on to the parent."""
    terminal.outlive_terminal()
    connection, (work, payload) = supervisor.begin()

    def end_with_parent() -> None:
        connection.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    tensorflow_import.import_quietly()
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        signal_number = work(payload)
    except Exception as error:
        if (line := explain(error)) is None:
            raise
        connection.sendall(line.encode())
        sys.exit(exit_code(error))
    if signal_number is not None:
        sys.exit(128 + signal_number)

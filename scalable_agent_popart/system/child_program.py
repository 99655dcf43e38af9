"""The main function of a child process that computes with TensorFlow."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from scalable_agent_popart.errors import exit_code, explain
from scalable_agent_popart.system import supervisor, tensorflow_import


def run(work: Callable[[Any], Iterable[int | None]]) -> None:
    """Does the work that its parent's payload describes, until it ends or the parent is gone.

    `work` takes the payload and yields numbers of signals that asked it to stop, or None. A user's
    error goes to the parent as a message, and decides on the exit code.
    """
    connection, payload = supervisor.begin()

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

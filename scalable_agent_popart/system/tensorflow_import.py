"""Importing TensorFlow without its libraries' messages on the terminal.

They write some when they are loaded, which no setting of theirs keeps back, and later name
operations and optimisations of graphs that they do without.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

NVIDIA_DRIVER = Path("/proc/driver/nvidia")
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS, _FATAL = "2", "3"
_SUCCESS = b"\0"


def import_quietly() -> None:
    """Imports TensorFlow, hides what it writes meanwhile, and sets what it writes later.

    Messages of an import that fails, or that ends the process, are shown. Later ones are only
    those that end the process, since errors are raised as exceptions; with an NVIDIA driver those
    of errors, too, since exceptions from GPUs often name no cause. Users who set
    TF_CPP_MIN_LOG_LEVEL themselves have nothing hidden from them.
    """
    if _LEVEL in os.environ:
        return
    os.environ[_LEVEL] = _ERRORS if NVIDIA_DRIVER.exists() else _FATAL
    with _hidden_unless_it_fails():
        import tensorflow  # noqa: F401, PLC0415


@contextlib.contextmanager
def _hidden_unless_it_fails() -> Iterator[None]:
    """Holds back what is written to standard error, in a process that outlives a crash of this."""
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(writer)
        _keep(reader)
    stderr = os.dup(2)
    os.dup2(writer, 2)
    os.close(reader)
    os.close(writer)
    failed = False
    try:
        yield
    except Exception:
        failed = True
        raise
    finally:
        if not failed:  # Ctrl-C is no failure.
            os.write(2, _SUCCESS)
        os.dup2(stderr, 2)
        os.close(stderr)
        os.waitpid(keeper, 0)


def _keep(reader: int) -> None:
    """Reads up to the mark of success, or shows what was read; ends the process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # They are for the process that imports.
        signal.signal(number, signal.SIG_IGN)
    text = b""
    while not text.endswith(_SUCCESS):
        part = os.read(reader, 2**16)
        if not part:
            os.write(2, text)
            break
        text += part
    os._exit(0)

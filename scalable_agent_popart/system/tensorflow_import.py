"""Imports TensorFlow without its libraries' messages, some of which no setting suppresses."""

import os
import signal
from pathlib import Path

NVIDIA_DRIVER = Path("/proc/driver/nvidia")
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS, _FATAL = "2", "3"
_SUCCESS = b"\0"


def import_quietly() -> None:
    """Imports TensorFlow, hides its messages meanwhile, and sets which messages it writes later.

    Messages of an import that fails are shown. Later ones are only those before the process ends,
    and with an NVIDIA driver those of errors, as exceptions from GPUs often name no cause. Nothing
    is hidden from users who set TF_CPP_MIN_LOG_LEVEL to show more.
    """
    if os.environ.get(_LEVEL, _FATAL) not in (_ERRORS, _FATAL):  # Which a parent may have set.
        return
    os.environ[_LEVEL] = _ERRORS if NVIDIA_DRIVER.exists() else _FATAL
    # What is written to standard error is kept in a process that outlives a crash of this one.
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(writer)
        for number in (signal.SIGINT, signal.SIGTERM):  # They are for the process that imports.
            signal.signal(number, signal.SIG_IGN)
        text = b""
        while not text.endswith(_SUCCESS) and (part := os.read(reader, 2**16)):
            text += part
        os.write(2, b"" if text.endswith(_SUCCESS) else text)
        os._exit(0)
    stderr = os.dup(2)
    os.dup2(writer, 2)
    os.close(reader)
    os.close(writer)
    end = _SUCCESS
    try:
        import tensorflow  # noqa: F401, PLC0415
    except Exception:  # Ctrl-C is no failure.
        end = b""
        raise
    finally:
        os.write(2, end)
        os.dup2(stderr, 2)
        os.close(stderr)
        os.waitpid(keeper, 0)

"""Imports TensorFlow without its libraries' messages, not all of which a setting suppresses."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

NVIDIA_DRIVER = Path("/proc/driver/nvidia")
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS, _FATAL = "2", "3"
_SUCCESS = b"\0"
# TensorFlow works without this module. That saves a third of the time, and 100 MB until `tf.keras`
# is used.
_OPTIONAL = "keras.src.optimizers"


def import_quietly() -> None:
    """Imports TensorFlow, and hides its messages unless the import fails.

    Later it writes only fatal messages, and with an NVIDIA driver also errors, because exceptions
    from GPUs often name no cause. Users who set TF_CPP_MIN_LOG_LEVEL to show more see everything.
    """
    if os.environ.get(_LEVEL, _FATAL) not in (_ERRORS, _FATAL):  # A parent may have set these two.
        return
    os.environ[_LEVEL] = _ERRORS if NVIDIA_DRIVER.exists() else _FATAL
    # A process that outlives a crash of this one keeps what is written to standard error.
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(writer)
        for number in (signal.SIGINT, signal.SIGTERM):  # These mean the process that imports.
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
    modules: dict[str, Any] = sys.modules
    modules.setdefault(_OPTIONAL, None)
    try:
        import tensorflow  # noqa: F401, PLC0415

        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    except Exception:  # Ctrl-C is no failure.
        end = b""
        raise
    finally:
        if modules[_OPTIONAL] is None:
            del modules[_OPTIONAL]
        os.write(2, end)
        os.dup2(stderr, 2)
        os.close(stderr)
        os.waitpid(keeper, 0)

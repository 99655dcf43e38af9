"""Imports TensorFlow with its faster kernels, and without its libraries' messages."""

import logging
import os
import tempfile
from pathlib import Path

NVIDIA_DRIVER = Path("/proc/driver/nvidia")
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS, _FATAL = "2", "3"


def import_quietly() -> None:
    """Imports TensorFlow with oneDNN, and hides its messages unless the import raises.

    Later it writes only fatal messages, and with an NVIDIA driver also errors, because exceptions
    from GPUs often name no cause. Users who set TF_CPP_MIN_LOG_LEVEL to show more see everything.
    """
    # TensorFlow itself leaves out oneDNN on processors without AVX-512. On an EPYC with AVX2 the
    # update took 0.4 (deep) and 0.5 (shallow) times as long with it.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if os.environ.get(_LEVEL, _FATAL) not in (_ERRORS, _FATAL):  # A parent may have set these two.
        return
    os.environ[_LEVEL] = _ERRORS if NVIDIA_DRIVER.exists() else _FATAL
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as messages:
        os.dup2(messages.fileno(), 2)
        try:
            import tensorflow  # noqa: F401, PLC0415

            logging.getLogger("tensorflow").setLevel(logging.ERROR)
        except Exception:  # Ctrl-C is no failure.
            messages.seek(0)
            os.write(stderr, messages.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)

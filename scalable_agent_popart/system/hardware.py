"""The machine's memory and devices, and their use by TensorFlow and the allocator."""

import contextlib
import ctypes
import gc
import os
import resource
from typing import Any

import psutil
import tensorflow as tf
from absl import logging

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import cores
from scalable_agent_popart.system.tensorflow_import import NVIDIA_DRIVER

# Names of glibc's `mallopt` parameters, from its malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_THRESHOLDS = (2**31 - 1, 2**25)  # glibc before 2.35 takes only the second.
_MAX_OPEN_FILES = 2**16


def prepare_process(gpus: int = -1) -> None:
    """Sets TensorFlow's GPU and threads, the allocator, the garbage collector and open files.

    Call it after all imports and before TensorFlow first computes. `gpus` is 0 for none, -1 for the
    first if there is one, and 1 for the first; without a GPU 1 raises UserError.
    """
    keep_freed_memory()
    allow_open_files()
    # Without this, looking through the modules' many objects would take a tenth of all work.
    gc.collect()
    gc.freeze()
    why = missing_gpu()
    if gpus == 1 and not has_gpu():
        raise UserError(f"--gpus=1: there is no GPU to train on{f': {why}' if why else ''}")
    if gpus != 0 and why:
        logging.warning("trains without a GPU: %s", why)
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[: abs(gpus)], "GPU")
        share_gpus()
        if not has_gpu():  # Actors and the parts of a batch already keep every core busy.
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(cores.num_cores())


def share_gpus() -> None:
    """Makes TensorFlow take GPUs' memory as it needs it, so that other programs have the rest."""
    with contextlib.suppress(RuntimeError):  # TensorFlow has computed already.
        for gpu in tf.config.get_visible_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)


def keep_freed_memory() -> None:
    """Makes glibc, if that is the allocator, keep memory that it would return to the system.

    Otherwise the activations of large batches would be mapped and faulted in at every step. It gets
    a single arena, because those of threads hold no block of 64 MiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Setting anything ends glibc's own adaptation, so the threshold for mapping comes first.
    if mallopt and any(mallopt(_M_MMAP_THRESHOLD, size) for size in _MMAP_THRESHOLDS):
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_ARENA_MAX, 1)


def allow_open_files() -> int:
    """Raises the limit of open files, such as connections, and returns at most what it allows."""
    present, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # Linux has no infinite ones.
    limit = min(most, _MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(present, limit), most))
    return limit


def memory_mib() -> float:
    """Measures the memory that this process and its descendants, in shares, have resident."""
    this_process = psutil.Process()
    total = this_process.memory_info().rss
    for process in this_process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # The process has ended.
            total += process.memory_full_info().pss
    return total / 2**20


def has_gpu() -> bool:
    return bool(tf.config.get_visible_devices("GPU"))


def learner_device() -> str:
    """Returns the name of the device that updates are computed on."""
    return "/device:GPU:0" if has_gpu() else "/device:CPU:0"


def missing_gpu() -> str:
    """Returns why a GPU that the environment promises is missing; empty if it promises none."""
    if tf.config.list_physical_devices("GPU"):
        return ""
    promised = os.environ.get("CUDA_VISIBLE_DEVICES", "0" if NVIDIA_DRIVER.exists() else "")
    if promised in ("", "-1", "NoDevFiles"):
        return ""
    return (
        "CUDA_VISIBLE_DEVICES or an NVIDIA driver promise one, but TensorFlow can use none; with "
        "TF_CPP_MIN_LOG_LEVEL=0 in the environment it says why"
    )


def device() -> dict[str, Any]:
    """Describes processor, usable cores and GPUs, for records."""
    gpus = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU"))
    return {
        "processor": cores.processor(),
        "cores": cores.num_cores(),
        "gpus": [details.get("device_name", "unnamed") for details in gpus],
        **({"missing_gpu": why} if (why := missing_gpu()) else {}),
    }

"""The number of cores that this process may use; imports no TensorFlow."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

# Linux's lists of the cgroups that a process is in, and of what they allow.
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Counts the cores that this process may use: by affinity and cgroups, rounded up."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, _cgroup_quotas())]))


def _cgroup_quotas() -> Iterator[float]:
    """Yields the processor time, in cores, that each of this process's cgroups allows it."""
    lines = _OWN_CGROUPS.read_text().splitlines() if _OWN_CGROUPS.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 names no controllers, and has both numbers in one file.
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        root = _CGROUPS / controllers
        # Limits of the groups above hold as well. In a container the path may be the host's, and
        # the container's own group the root.
        for group in (own := root / path.lstrip("/"), *own.parents):
            with contextlib.suppress(OSError, ValueError):  # ValueError: the quota is "max".
                quota, period = " ".join((group / name).read_text() for name in names).split()
                if float(quota) >= 0:
                    yield float(quota) / float(period)
            if group == root:
                break

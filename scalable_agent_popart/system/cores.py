"""The processor and the number of cores that this process may use, without TensorFlow."""

import contextlib
import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

# Linux lists here which cgroups a process is in, and what they allow.
_MEMBERSHIP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def processor() -> str:
    """Returns the name of the processor's model."""
    model = re.search(r"model name\s*:\s*(.*\S)", Path("/proc/cpuinfo").read_text())
    return model[1] if model else platform.processor() or platform.machine()


def num_cores() -> int:
    """Counts the cores that affinity and cgroups allow this process, rounded up."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, _cgroup_quotas())]))


def _cgroup_quotas() -> Iterator[float]:
    """Yields the processor time, in cores, that each of this process's cgroups allows it."""
    lines = _MEMBERSHIP.read_text().splitlines() if _MEMBERSHIP.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 names no controllers and has both numbers in one file.
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        root = _CGROUPS / controllers
        # Limits of the groups above hold as well. A container may see the host's path here, and
        # then its own group is the root.
        for group in (lowest := root / path.lstrip("/"), *lowest.parents):
            with contextlib.suppress(OSError, ValueError):  # ValueError: the quota is "max".
                quota, period = " ".join((group / name).read_text() for name in names).split()
                if float(quota) >= 0:
                    yield float(quota) / float(period)
            if group == root:
                break

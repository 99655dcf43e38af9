"""The number of cores, on machines that the tests make up."""

from pathlib import Path

import pytest

from scalable_agent_popart.system import cores


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 2),
        # A container sees this: the path is the host's, and the root is the container's group.
        ("0::/host/path", {"cpu.max": "400000 100000"}, 4),
        ("2:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "1e5"}, 3),
    ],
)
def test_cores_are_those_of_the_affinity_and_no_more_than_cgroups_allow(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cgroup: str,
    files: dict[str, str],
    expected: int,
) -> None:
    (tmp_path / "cgroup").write_text(cgroup + "\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    monkeypatch.setattr(cores, "_MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: set(range(8)))
    assert cores.num_cores() == expected

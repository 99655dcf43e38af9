"""The package, the files that name its version, and a tag have one version."""

import re
import subprocess
from pathlib import Path

import pytest

import scalable_agent_popart

_ROOT = Path(__file__).resolve().parents[2]
_VERSION = scalable_agent_popart.__version__


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("CHANGELOG.md", r"^## (\S+) - (?:\d{4}-\d\d-\d\d|unreleased)$"),
        ("CITATION.cff", r"^version: (\S+)$"),
        ("MODULE.bazel", r'^    version = "(\S+)",$'),
    ],
)
def test_files_name_the_version_of_the_package(name: str, pattern: str) -> None:
    versions = re.findall(pattern, (_ROOT / name).read_text(), re.MULTILINE)
    assert versions[:1] == [_VERSION]


def test_tag_is_the_version() -> None:
    command = ["git", "tag", "--list", "v*", "--points-at=HEAD"]
    tags = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True).stdout.split()
    assert tags in ([], [f"v{_VERSION}"])

"""The package, the files that name its version, and a tag have one version."""

import re

import pytest

import scalable_agent_popart
from tests.text.repository import ROOT, git

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
    versions = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
    assert versions[:1] == [_VERSION]


def test_tag_is_the_version() -> None:
    assert git("tag", "--list", "v*", "--points-at=HEAD") in ([], [f"v{_VERSION}"])

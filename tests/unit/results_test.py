"""Kept results can be read, and their flag files still make the same runs."""

import json
import tarfile
from pathlib import Path

import pytest

from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.settings import OLDER, RETIRED, SETTINGS
from tests.fakes.main_program import given_flags

_ROOT = Path(__file__).resolve().parents[2]
_RECORDS = sorted((_ROOT / "results").glob("**/runs.json"))


@pytest.mark.parametrize("path", _RECORDS, ids=lambda path: path.parent.name)
def test_runs_were_made_with_the_flags_of_their_files(path: Path) -> None:
    for record in json.loads(path.read_text())["runs"]:
        (flag_file,) = (_ROOT / "configs").rglob(record["flag_file"])
        given = given_flags(f"--flagfile={flag_file}", f"--seed={record['seed']}")
        config, made = Config.from_flags(given).flags, {**OLDER, **record["flags"]}
        if made["precision"] == "auto":  # It is of an older version.
            del made["precision"]
        assert all(made.pop(name, value) == value for name, value in RETIRED.items())
        # Flags may have been added since, but none is another now.
        assert {"level_name", "reward_clipping", "use_popart", "seed"} <= made.keys()
        assert made.keys() <= config.keys()
        # How often records are made changes nothing else; nor do settings that mean nothing without
        # another. Threads follow the machine.
        free = dict.fromkeys(("log_seconds", "actor_threads"))
        needs = {name: each.part.needs for name, each in SETTINGS.items()}
        free |= dict.fromkeys(n for n, needed in needs.items() if needed and not config[needed])
        assert {**config, **made, **free} == {**config, **free}, record["run"]


@pytest.mark.parametrize(
    "file", sorted(_ROOT.glob("results/**/logs*.tar.xz")), ids=lambda f: f"{f.parent.name}/{f.name}"
)
def test_reports_can_be_made_of_kept_logs(file: Path) -> None:
    with tarfile.open(file) as archive:
        first = archive.next()  # Records come before the other logs.
        record = json.load(archive.extractfile(first))
    assert first.name.endswith(("config.json", "population.json"))
    assert Config.from_record(record).suite.tasks == tuple(record["tasks"])

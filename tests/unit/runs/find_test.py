"""What `--runs` stands for: runs, folders of them, and patterns."""

from pathlib import Path

import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.directory import find_runs


def test_folders_and_patterns_stand_for_the_runs_in_them_and_paths_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a/config.json", "runs/b/population.json", "runs/b/member-00/config.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    for name in ("runs/[ab]/config.json", "runs/report/report.html", "runs/a/checkpoints/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "runs" / "a.log").touch()
    every = ["runs/[ab]", "runs/a", "runs/b"]
    for names, runs in (
        (["runs"], every),
        (["runs/*"], every),
        (["runs/[ab]"], ["runs/[ab]"]),
        (["runs/[a]", "runs/b/"], ["runs/a", "runs/b/"]),
        (["runs/b/member-*"], ["runs/b/member-00"]),
        (["runs/report", "runs/*.log"], ["runs/report", "runs/*.log"]),
    ):
        assert list(find_runs(names)) == runs
    for name in ("none", "none*", ""):
        with pytest.raises(UserError, match="which does not exist"):
            list(find_runs(["runs", name]))

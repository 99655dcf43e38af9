"""The suite of docs/own_suite.md is trained, tested and reported on."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.main_program import run
from tests.fakes.programs import metrics, read_log
from tests.fakes.report_text import read_report

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_suite.md"
_FILES = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_pages_suite_is_trained_tested_and_reported_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_tasks.py").write_text(_FILES[0])
    training = {"level_name": "my_tasks:corridors", "use_popart": True, "logdir": "run"}
    run(**training, num_actors=4, batch_size=4, total_environment_frames=3_000)
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["flags"]["level_name"] == "my_tasks:corridors"
    assert tuple(metrics(tmp_path / "run")[-1]["scale"]) == ("left", "right")
    episodes = read_log(tmp_path / "run" / "episodes.jsonl")
    assert {line["episode_return"] for line in episodes} == {0, 1}
    run(mode="test", logdir="run", test_num_episodes=4, level_name="my_tasks:right")
    tested = json.loads((tmp_path / "run" / "evaluation.json").read_text())["tasks"]["right"]
    assert tested["normalised"] == tested["mean_return"] == np.mean(tested["returns"])
    exec(_FILES[1])  # Checks the environments.
    (tmp_path / "my_tasks.py").unlink()
    del sys.modules["my_tasks"]
    run(mode="report", runs=["run"], report_dir="report")
    text = read_report(tmp_path / "report")
    assert "## corridors\n" in text
    assert not re.search(r"\d\.\d%", text)

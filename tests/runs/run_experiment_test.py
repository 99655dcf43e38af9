"""A whole experiment: an agent is trained, tested and reported on, and again from its logs."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

from scalable_agent_popart.system.cores import num_cores
from tests.fakes.programs import ROOT, metrics
from tests.fakes.report_text import read_report

_FLAGS = """--level_name=catch_1,catch_10 --total_environment_frames=2000 --num_actors=4
--batch_size=4 --log_seconds=0.1 --log_task_gradients --use_popart"""


def _run(folder: Path, *arguments: str) -> None:
    (folder / "small.flags").write_text("\n".join(_FLAGS.split()))
    command = [sys.executable, "tools/run_experiment.py", f"--logdir={folder / 'runs'}"]
    command += [f"--report_dir={folder / 'report'}", "--test_num_episodes=2", *arguments]
    subprocess.run([*command, str(folder / "small.flags")], cwd=ROOT, check=True)


def test_an_agent_is_trained_tested_and_reported_on(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    _run(tmp_path)
    run = tmp_path / "runs" / "small-1"
    frames = metrics(run)[-1]["frames"]
    assert frames >= 2000
    report = read_report(tmp_path / "report")
    assert "### Gradients by task" in report
    record = json.loads((tmp_path / "report" / "runs.json").read_text())
    assert record["reported_on"]["cores"] == num_cores()
    (made,) = record["runs"]
    assert (made["agent"], made["seed"], made["frames"]) == ("PopArt-IMPALA", 1, frames)
    assert made["test"]["episodes"] == {"catch_1": 2, "catch_10": 2}
    assert (made["test"]["starts"], made["test"]["frames"]) == ("noop", frames)
    assert made["versions"]["tensorflow"]
    with tarfile.open(tmp_path / "report" / "logs.tar.xz") as archive:
        archive.extractall(tmp_path / "again" / "runs", filter="data")
    _run(tmp_path / "again", "--notrain")
    for table in (tmp_path / "report" / "tables").iterdir():
        again = (tmp_path / "again" / "report" / "tables" / table.name).read_text()
        assert again.replace(str(tmp_path / "again"), str(tmp_path)) == table.read_text()

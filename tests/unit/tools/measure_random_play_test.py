import csv
from pathlib import Path

import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from tools import measure_random_play


def test_random_play_of_each_task_is_measured_once(tmp_path: Path) -> None:
    output, config = tmp_path / "random.csv", Config.from_flags({"level_name": "catch5"})
    first, *rest = config.suite.tasks
    cut_off = f"{first},30,0.5,0.1\n{rest[0]},3"
    output.write_text(f"game,episodes,mean,standard_error\n{cut_off}")
    measure_random_play.measure(config, 8, output)
    rows = list(csv.DictReader(output.open()))
    assert [row["game"] for row in rows] == [first, *rest]
    assert rows[0]["mean"] == "0.5"  # It was measured before.
    references = [config.suite.reference_scores[task] for task in rest]
    for row, reference in zip(rows[1:], references, strict=True):
        assert row["episodes"] == "8"  # Six environments share them.
        assert abs(float(row["mean"]) - reference.random) < 5 * float(row["standard_error"])


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "other.csv"
    output.write_text("name\n")
    with pytest.raises(UserError, match="no file of this tool"):
        measure_random_play.measure(Config.from_flags({"level_name": "catch5"}), 2, output)
    assert output.read_text() == "name\n"

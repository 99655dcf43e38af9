"""The command line: what is refused, in one line, before anything is written or loaded."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scalable_agent_popart.config import Config
from scalable_agent_popart.runs.directory import RunDirectory

_ROOT = Path(__file__).resolve().parents[2]


def _config(level_name: str = "catch5", /, **given: Any) -> Config:
    return Config.from_flags({"level_name": level_name, **given})


class Answer(NamedTuple):
    """What the program said before it gave up."""

    returncode: int
    stdout: str
    errors: list[str]  # lines of standard error
    imported: set[str]  # modules


def _run(*arguments: str) -> Answer:
    """Runs the program, which is to refuse, and notes what it imported."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "experiment.py", *arguments],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = result.stderr.splitlines()
    imports = [line for line in lines if line.startswith("import time:")]
    return Answer(
        result.returncode,
        result.stdout,
        [line for line in lines if not line.startswith("import time:")],
        {line.rsplit("|", 1)[1].strip() for line in imports},
    )


def _assert_refused_at_once(answer: Answer) -> None:
    assert answer.returncode not in (0, None)
    assert answer.stdout == ""
    assert "absl.flags" in answer.imported, "imports are to be seen at all"
    assert not {"tensorflow", "sonnet"} & answer.imported


def _assert_one_line(answer: Answer, *expected: str) -> None:
    """The program refused with one line that holds these texts, and without heavy imports."""
    assert len(answer.errors) == 1, answer.errors
    assert answer.errors[0].startswith("error: ")
    assert all(text in answer.errors[0] for text in expected), answer.errors
    _assert_refused_at_once(answer)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--level_name=pongg"], ["--level_name", "'pongg'", "pong"]),
        ([], ["--level_name is missing", "atari57"]),
        (["--level_name=catch5", "--num_actors=4"], ["--num_actors=4", "5 tasks"]),
        (
            ["--level_name=catch5", "--use_popart", "--popart_scale_lower_bound=0"],
            ["--popart_scale_lower_bound", "0.0"],
        ),
        (["--level_name=catch5", "stray"], ["'stray'", "--name=value"]),
        (["--level_name=catch5", "--mode=test"], ["there is no run in", "train first"]),
    ],
)
def test_command_that_cannot_be_is_answered_with_one_line_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    answer = _run(f"--logdir={tmp_path / 'run'}", *arguments)
    _assert_one_line(answer, *expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--reward_clipping=nonsense", "abs_one|none|soft_asymmetric|oar"),
        ("--batch_size=many", "--batch_size=many"),
        ("--batch_sise=4", "batch_sise"),
    ],
)
def test_flag_that_cannot_be_parsed_is_named_and_nothing_is_written(
    tmp_path: Path, argument: str, expected: str
) -> None:
    answer = _run("--level_name=catch5", f"--logdir={tmp_path / 'run'}", argument)
    assert expected in answer.errors[0]
    assert not any("Traceback" in line for line in answer.errors)
    _assert_refused_at_once(answer)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["train", "test"])
def test_run_directory_of_another_suite_is_left_alone(tmp_path: Path, mode: str) -> None:
    directory = RunDirectory(str(tmp_path))
    directory.lock()
    directory.record(_config("catch5", logdir=str(tmp_path)))
    directory.close()
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    answer = _run(f"--logdir={tmp_path}", "--level_name=pong", f"--mode={mode}")
    _assert_one_line(answer, str(tmp_path), "catch5", "pong")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("mode", ["train", "test"])
def test_damaged_run_directory_is_left_alone(tmp_path: Path, mode: str) -> None:
    record = json.dumps({"flags": dataclasses.asdict(_config())})
    (tmp_path / "config.json").write_text(record[: len(record) // 2])
    answer = _run(f"--logdir={tmp_path}", "--level_name=catch5", f"--mode={mode}")
    _assert_one_line(answer, str(tmp_path / "config.json"), "damaged")
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == record[: len(record) // 2]

"""A program in a child process: how often it is started again."""

import os
import sys
from pathlib import Path

import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.system import child_program
from scalable_agent_popart.system.child_program import Program


def test_deaths_count_in_a_row_unless_the_program_was_healthy_and_lived_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_program, "_COMMAND", "raise SystemExit(3)")
    monkeypatch.setattr(child_program, "_MAX_RESTARTS_IN_A_ROW", 1)
    monkeypatch.setattr(child_program, "_HEALTHY_SECONDS", 0.0)
    program = Program(print, None)
    for _ in range(3):
        assert program.child.wait() == program.attend() == 3
        program.restart("it ended", "--actor_jobs")
    assert program.child.wait() == 3
    for lived_long, healthy in ((True, False), (False, True)):
        monkeypatch.setattr(child_program, "_HEALTHY_SECONDS", 0.0 if lived_long else 1e6)
        with pytest.raises(UserError, match=r"^it ended \d times in a row: .* for --actor_jobs"):
            program.restart("it ended", "--actor_jobs", healthy)


def test_the_program_is_of_this_checkout_wherever_it_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "scalable_agent_popart.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(child_program, "_COMMAND", "import scalable_agent_popart")
    monkeypatch.chdir(tmp_path)
    assert Program(print, None).child.wait() == 0


def _print(number: int) -> int:
    print("nobody reads this", file=sys.stderr)
    return number


def test_the_program_outlives_the_reader_of_what_it_prints() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stderr = os.dup(2)
    os.dup2(writer, 2)
    try:
        program = Program(_print, 9, TF_CPP_MIN_LOG_LEVEL="0")  # It does not load TensorFlow.
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(writer)
    assert program.child.wait() == 128 + 9

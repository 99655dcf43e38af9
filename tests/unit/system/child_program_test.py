"""A program in a child process: how often it is started again."""

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

"""The owner of a population's workers: what it makes of how they end."""

import json
import signal
from pathlib import Path

import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population import train
from scalable_agent_popart.population.directory import Event
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system import child_program
from scalable_agent_popart.system.program import exit_code

_BEGIN = """
import os, signal, sys
from scalable_agent_popart.system import supervisor
connection, _ = supervisor.begin()

def fail(message, code):
    connection.sendall(message)
    sys.exit(code)

def when_asked(*end):
    signal.signal(signal.SIGTERM, lambda *_: end[0](*end[1:]))
    os.kill(os.getppid(), signal.SIGTERM)  # As a user does.
    signal.pause()
"""


def _train(monkeypatch: pytest.MonkeyPatch, directory: Path, program: str) -> int | None:
    monkeypatch.setattr(child_program, "_COMMAND", _BEGIN + program)
    monkeypatch.setattr(train, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(child_program, "_MAX_RESTARTS_IN_A_ROW", 2)
    (directory / "member-00").mkdir(exist_ok=True)
    (directory / "member-00" / "metrics.jsonl").write_text('{"frames": 40}\n')
    flags = {"mode": "pbt", "population_size": 2, "level_name": "catch5", "pbt_places": 2}
    return train.train_population(Config.from_flags({**flags, "logdir": str(directory)}), {})


def test_workers_end_when_they_are_done_or_are_asked_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory := tmp_path / "my runs").mkdir()
    start = Event(0, 0, None, None, None, False, None, {"epsilon": 0.1})
    line, path = json.dumps(start._asdict()) + "\n", directory / "member-00" / "lineage.jsonl"
    assert _train(monkeypatch, directory, f"open({str(path)!r}, 'w').write({line!r})") is None
    end = capsys.readouterr().err
    assert "member 0 starts with epsilon 0.1" in end.splitlines(), "on a line of its own"
    assert end.endswith(f"report on it with --mode=report --runs='{directory}'\n")
    assert "saved" not in end
    assert _train(monkeypatch, directory, "when_asked(sys.exit, 143)") == signal.SIGTERM
    assert "saved at 40 frames" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "message", "code"),
    [
        ('fail(b"disk full", 1)', "^disk full$", 1),
        ('fail(b"no such game", 2)', "^no such game$", 2),
        ("1 / 0", "ended with exit code 1; the same command resumes", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed 3 times in a row", 2),
        ('when_asked(fail, b"disk full", 1)', "^disk full$", 1),
        ("when_asked(os.kill, os.getpid(), signal.SIGKILL)", "ended by signal 9; the same", 1),
    ],
)
def test_a_worker_that_fails_ends_the_population_with_its_message_and_code(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    program: str,
    message: str,
    code: int,
) -> None:
    with pytest.raises(UserError, match=message) as error:
        _train(monkeypatch, tmp_path, program)
    assert exit_code(error.value) == code
    assert "saved" not in capsys.readouterr().err

"""Actor jobs that a learner starts: they are started again when they die, and ended."""

from pathlib import Path

import pytest

from scalable_agent_popart import factory
from scalable_agent_popart.distributed import actor_processes
from scalable_agent_popart.distributed.actor_processes import ActorProcesses
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system import child_program, cores
from tests.fakes.programs import is_alive, wait_until

_BEGIN = """
import os, signal, sys, time
from scalable_agent_popart.system import supervisor
connection, (_, config) = supervisor.begin()
with open(f"{config.logdir}/starts", "a") as file:
    print(os.getpid(), config.task, config.learner_address, config.actor_jobs, file=file)
"""


def start(monkeypatch: pytest.MonkeyPatch, directory: Path, program: str) -> ActorProcesses:
    monkeypatch.setattr(child_program, "_COMMAND", _BEGIN + program)
    monkeypatch.setattr(actor_processes, "_FIRST_PAUSE_SECONDS", 0.01)
    flags = {"level_name": "catch5", "actor_jobs": 2, "logdir": str(directory)}
    jobs = ActorProcesses(Config.from_flags(flags), "127.0.0.1:7")
    jobs.start()
    return jobs


def starts(directory: Path) -> list[list[str]]:
    path = directory / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_jobs_are_numbered_and_end_with_their_owner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs = start(monkeypatch, tmp_path, "time.sleep(1000)")
    wait_until(lambda: len(starts(tmp_path)) == 2)
    jobs.attend()
    jobs.close(finished=False)
    assert sorted(settings for _, *settings in starts(tmp_path)) == [
        ["0", "127.0.0.1:7", "0"],
        ["1", "127.0.0.1:7", "0"],
    ]
    assert not any(is_alive(int(process)) for process, *_ in starts(tmp_path))


@pytest.mark.parametrize(("asked", "threads"), [(0, 5), (7, 7)])
def test_jobs_share_the_cores_and_follow_the_rule_for_threads(
    monkeypatch: pytest.MonkeyPatch, asked: int, threads: int
) -> None:
    monkeypatch.setattr(factory, "_MIN_ACTORS_PER_THREAD", 4)
    flags = {"level_name": "catch5", "actor_jobs": 2, "actor_threads": asked}
    for num_cores, num_actors in ((100, 20), (10, 1000)):
        monkeypatch.setattr(cores, "num_cores", lambda number=num_cores: number)
        jobs = ActorProcesses(Config.from_flags({**flags, "num_actors": num_actors}), "")
        assert jobs._configs[0].actor_threads == threads


@pytest.mark.parametrize(
    ("end", "message", "num_starts"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "1 was ended by signal 9, 3 times in a row", 3),
        ('connection.sendall(b"disk full"); sys.exit(1)', r"has failed \(disk full\), 3 times", 3),
        ('connection.sendall(b"no such game"); sys.exit(2)', "^no such game$", 1),
    ],
)
def test_a_job_that_dies_is_started_again_unless_it_cannot_play_and_at_last_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str, message: str, num_starts: int
) -> None:
    monkeypatch.setattr(child_program, "_MAX_RESTARTS_IN_A_ROW", 2)
    jobs = start(monkeypatch, tmp_path, f"time.sleep(0 if config.task else 1000); {end}")
    with pytest.raises(UserError, match=message):
        wait_until(lambda: jobs.attend() is not None)
    jobs.close(finished=False)
    assert [task for _, task, *_ in starts(tmp_path)].count("1") == num_starts


def test_jobs_may_end_by_themselves_once_the_learner_has_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = f"time.sleep(0.5); open('{tmp_path}/whole', 'a').write('+')"
    start(monkeypatch, tmp_path, program).close(finished=True)
    assert (tmp_path / "whole").read_text() == "++"

"""Whole runs of a learner and actor jobs, in threads of one process and in processes."""

import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from scalable_agent_popart.distributed import actor_side, learner_side
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.training import trainer
from tests.fakes.programs import DEADLINE_SECONDS, Programs, children, is_alive, metrics, wait_until


def test_an_actor_job_plays_for_a_learner_until_that_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_side, "_FAREWELL_SECONDS", 0.0)
    # Only a process's main thread can handle signals.
    no_signal = contextlib.nullcontext(SimpleNamespace(signal_number=None))
    monkeypatch.setattr(actor_side, "StopOnSignal", lambda: no_signal)
    monkeypatch.setattr(actor_side, "progress_bar", bar := mock.MagicMock())
    sizes = {"num_actors": 10, "actor_threads": 2, "batch_size": 4, "unroll_length": 10}
    where = {"level_name": "catch5", "logdir": str(tmp_path), **sizes}
    ended: list[int | None] = []
    for frames in (2000, 2400):  # A finished run resumes with more frames.
        where["total_environment_frames"] = frames
        role = {"job_name": "actor", "task": 3, "precision": "bfloat16"}
        # A job that sees the run directory waits for a learner without a limit.
        actor = Config.from_flags({**where, **role, "learner_timeout_hours": 1e-9})
        job = threading.Thread(target=lambda: ended.append(actor_side.run_actor_job(actor, True)))  # noqa: B023
        job.start()
        role = {"learner_address": "localhost:0", "log_seconds": 0.1, "precision": "float32"}
        trainer.train(Config.from_flags({**where, **role}), parts=learner_side.RemoteParts())
        job.join(DEADLINE_SECONDS)
    assert ended == [None, None]
    shown = mock.call(10, "", desc="making environments", leave=False, disable=False)
    assert bar.call_args_list == [shown] * 2
    assert actor_side.run_actor_job(actor) is None, "one that comes too late ends as well"
    lines = metrics(tmp_path)
    assert lines[-1]["frames"] == 2400
    assert {line["precision"] for line in lines} == {"float32"}
    assert all(line["policy_lag"] < 100 for line in lines)


def test_a_learner_starts_actor_jobs_and_ends_them(programs: Programs, tmp_path: Path) -> None:
    flags = {"actor_jobs": 2, "num_actors": 10, "batch_size": 4, "log_seconds": 0.1}
    flags |= {"level_name": "catch5", "total_environment_frames": 3000}
    learner = programs.run(**flags, logdir=tmp_path)
    wait_until(lambda: bool(metrics(tmp_path)), learner)
    jobs = children(learner.pid)
    assert len(jobs) == 2
    assert learner.wait(DEADLINE_SECONDS) == 0, learner.communicate()[1]
    wait_until(lambda: not any(map(is_alive, jobs)))
    assert metrics(tmp_path)[-1]["frames"] >= 3000

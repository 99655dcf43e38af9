"""Real processes that are killed, interrupted and started again."""

import json
import random
import signal
from pathlib import Path

import pytest

from scalable_agent_popart import factory
from scalable_agent_popart.runs.checkpoints import Checkpoints, saved_frames
from scalable_agent_popart.runs.config import Config
from tests.fakes.programs import DEADLINE_SECONDS, Programs, metrics, read_log, wait_until
from tests.fakes.report_text import read_report

_TINY = {"level_name": "catch5", "use_popart": True, "num_actors": 10}
_TINY |= {"batch_size": 4, "unroll_length": 10}


def saved(logdir: Path) -> int:
    """Returns the frames of a run's newest checkpoint; 0 if there is none."""
    return saved_frames(logdir / "checkpoints") or 0


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_killed_runs_resume_from_the_last_checkpoint(programs: Programs, logdir: Path) -> None:
    chance, settings = random.Random(0), {**_TINY, "logdir": str(logdir)}
    frames_before = 0
    for _ in range(3):
        # Checkpoints are written all the time, so that some kills fall into the writing.
        process = programs.run(**settings, checkpoint_seconds=1e-9, log_seconds=1e-9)
        goal = frames_before + chance.randrange(1000, 3000)
        wait_until(lambda goal=goal: saved(logdir) >= goal, process)
        process.kill()
        process.wait()
        config = Config.from_flags(settings)
        learner = factory.make_learner(config, factory.make_rollout_spec(config))
        assert Checkpoints(logdir / "checkpoints", learner=learner).restore()
        assert int(learner.frames) == saved(logdir) >= frames_before
        frames_before = saved(logdir)

    process = programs.run(**settings, total_environment_frames=frames_before + 200)
    assert process.wait(DEADLINE_SECONDS) == 0
    recorded = [line["frames"] for line in metrics(logdir)]
    assert recorded == sorted(set(recorded))  # They never go backwards, and none comes twice.
    first_after = next(frame for frame in recorded if frame > frames_before)
    assert first_after == frames_before + 40  # One batch further.
    assert read_log(logdir / "episodes.jsonl")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_before_the_process_leaves(
    programs: Programs, logdir: Path, number: signal.Signals
) -> None:
    process = programs.run(**_TINY, logdir=logdir, checkpoint_seconds=1e9, log_seconds=1e-9)
    wait_until(lambda: len(metrics(logdir)) >= 5, process)
    before = metrics(logdir)[-1]["frames"]
    process.send_signal(number)
    _, output = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    assert saved(logdir) == metrics(logdir)[-1]["frames"] >= before
    expected = f"saved at {saved(logdir):,} frames in {logdir}/checkpoints"
    assert output.splitlines()[-1].startswith(expected)


def test_a_run_is_tested_and_reported_while_it_trains(
    programs: Programs, logdir: Path, tmp_path: Path
) -> None:
    training = programs.run(**_TINY, logdir=logdir, checkpoint_seconds=1, log_seconds=0.1)
    wait_until(lambda: saved(logdir) > 0, training)
    before = saved(logdir)
    test = programs.run(mode="test", logdir=logdir, test_num_episodes=4)
    assert test.wait(DEADLINE_SECONDS) == 0
    result = json.loads((logdir / "evaluation.json").read_text())
    assert before <= result["frames"] <= saved(logdir)
    wait_until(lambda: saved(logdir) > result["frames"], training)  # It still trains.
    report = programs.run(mode="report", runs=logdir, report_dir=tmp_path / "out")
    assert report.wait(DEADLINE_SECONDS) == 0
    assert training.poll() is None
    assert str(logdir) in read_report(tmp_path / "out")


def test_training_shows_its_progress_and_nothing_else(
    programs: Programs, logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    process = programs.run(**_TINY, logdir=logdir, total_environment_frames=800)
    shown = [line for line in process.communicate(timeout=DEADLINE_SECONDS)[1].splitlines() if line]
    assert process.returncode == 0
    loading, start, *progress = shown
    assert loading.endswith("loading TensorFlow")
    assert "5 tasks of Catch-5" in start
    assert progress
    assert [line for line in progress if "frames" not in line] == []

"""Real processes that are killed, interrupted and started again."""

import json
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.runs.checkpoints import Checkpoints
from scalable_agent_popart.runs.config import Config
from tests.fakes.programs import DEADLINE_SECONDS, Programs, metrics, wait_until
from tests.fakes.report_text import read_report

SETTINGS = {
    "level_name": "catch5",
    "use_popart": True,
    "num_actors": 10,
    "batch_size": 4,
    "unroll_length": 10,
}


class Runs(Programs):
    """Starts training processes in one run directory."""

    def __init__(self, logdir: Path):
        super().__init__()
        self.logdir = logdir

    def start(self, **flags: Any) -> subprocess.Popen[str]:
        return self.run(**{**SETTINGS, "logdir": self.logdir, **flags})


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path / "run")
    yield runs
    runs.close()


def saved(logdir: Path) -> tuple[int, np.ndarray]:
    """Returns frames and shift of the newest checkpoint; (0, zeros) if there is none."""
    newest = tf.train.latest_checkpoint(str(logdir / "checkpoints"))
    if newest is None:
        return 0, np.zeros(5)
    reader = tf.train.load_checkpoint(newest)
    return (
        int(reader.get_tensor("learner/frames/.ATTRIBUTES/VARIABLE_VALUE")),
        reader.get_tensor("learner/head/shift/.ATTRIBUTES/VARIABLE_VALUE"),
    )


def test_killed_runs_resume_from_the_last_checkpoint(runs: Runs) -> None:
    chance = random.Random(0)
    frames_before = 0
    for _ in range(3):
        # Checkpoints are written all the time, so that some kills fall into the writing.
        process = runs.start(checkpoint_seconds=1e-9, log_seconds=1e-9)
        goal = frames_before + chance.randrange(1000, 3000)
        wait_until(lambda goal=goal: saved(runs.logdir)[0] >= goal, process)
        process.kill()
        process.wait()
        frames, shift = saved(runs.logdir)
        assert frames >= frames_before

        config = Config.from_flags({**SETTINGS, "logdir": str(runs.logdir)})
        learner = factory.make_learner(config, factory.make_rollout_spec(config))
        assert Checkpoints(runs.logdir / "checkpoints", learner=learner).restore()
        assert int(learner.frames) == frames
        np.testing.assert_array_equal(learner.head.shift, shift)
        frames_before = frames

    process = runs.start(total_environment_frames=frames_before + 200)
    assert process.wait(DEADLINE_SECONDS) == 0
    recorded = [line["frames"] for line in metrics(runs.logdir)]
    assert recorded == sorted(set(recorded))  # They never go backwards, and none comes twice.
    first_after = next(frame for frame in recorded if frame > frames_before)
    assert first_after == frames_before + 40  # One batch further.
    for line in (runs.logdir / "episodes.jsonl").read_text().splitlines():
        json.loads(line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_before_the_process_leaves(runs: Runs, number: signal.Signals) -> None:
    process = runs.start(checkpoint_seconds=1e9, log_seconds=1e-9)
    wait_until(lambda: len(metrics(runs.logdir)) >= 5, process)
    before = metrics(runs.logdir)[-1]["frames"]
    process.send_signal(number)
    _, output = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    frames = saved(runs.logdir)[0]
    assert frames == metrics(runs.logdir)[-1]["frames"] >= before
    told = f"saved at {frames:,} frames in {runs.logdir}/checkpoints; the same command resumes"
    assert output.splitlines()[-1] == told


def test_a_run_is_tested_and_reported_while_it_trains(runs: Runs, tmp_path: Path) -> None:
    training = runs.start(checkpoint_seconds=1, log_seconds=0.1)
    wait_until(lambda: saved(runs.logdir)[0] > 0, training)
    before = saved(runs.logdir)[0]
    test = runs.run(mode="test", logdir=runs.logdir, test_num_episodes=4)
    assert test.wait(DEADLINE_SECONDS) == 0
    result = json.loads((runs.logdir / "evaluation.json").read_text())
    assert before <= result["frames"] <= saved(runs.logdir)[0]
    wait_until(lambda: saved(runs.logdir)[0] > result["frames"], training)  # It still trains.
    report = runs.run(mode="report", runs=runs.logdir, report_dir=tmp_path / "out")
    assert report.wait(DEADLINE_SECONDS) == 0
    assert training.poll() is None
    assert str(runs.logdir) in read_report(tmp_path / "out")
    training.terminate()
    _, output = training.communicate(timeout=DEADLINE_SECONDS)
    assert training.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in output


def test_training_shows_its_progress_and_nothing_else(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    process = runs.start(total_environment_frames=800)
    shown = [line for line in process.communicate(timeout=DEADLINE_SECONDS)[1].splitlines() if line]
    assert process.returncode == 0
    loading, what, *progress = shown
    assert loading.endswith("loading TensorFlow")
    assert "5 tasks of Catch-5" in what
    assert progress
    assert [line for line in progress if "frames" not in line] == []

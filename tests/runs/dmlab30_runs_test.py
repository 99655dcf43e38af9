"""Whole runs on DeepMind Lab's levels, each a process that plays the stand-in."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl import flags

from scalable_agent_popart import factory, scores, suites
from scalable_agent_popart.config import Config
from scalable_agent_popart.suites import process_pool
from scalable_agent_popart.training.local_actors import LocalActors
from tests.runs.experiment_test import fails, lines, run, saved
from tests.unit.suites.process_pool_test import is_alive, wait_until

_ROOT = Path(__file__).resolve().parents[2]
SMALL = {"height": 12, "width": 16, "network": "shallow", "unroll_length": 5, "batch_size": 6}
SHORT = {"*": {"episode_frames": 60}}  # Games of 15 agent steps.

StandIn = Callable[..., None]


@pytest.fixture(autouse=True, scope="module")
def _parsed_flags() -> None:
    flags.FLAGS(["experiment.py"])


def engine_files(tmp_path: Path) -> list[Path]:
    """What processes and engines have left behind."""
    temporary = tmp_path / "temporary"
    return [*temporary.glob("environment_processes_*"), *temporary.glob("dmlab_temp_folder_*")]


def test_thirty_levels_are_trained_and_tested(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in(**SHORT)
    logdir = tmp_path / "run"
    settings = {**SMALL, "logdir": str(logdir), "use_popart": True, "dataset_path": "dummy"}
    run(
        level_name="dmlab30",
        level_cache_dir=str(tmp_path / "cache"),
        total_environment_frames=12_000,
        **settings,
    )
    metrics = lines(logdir / "metrics.jsonl")[-1]
    suite = suites.resolve("dmlab30")
    assert tuple(metrics["shift"]) == tuple(metrics["scale"]) == suite.tasks
    assert metrics["environment_restarts"] == 0
    assert "restarts" not in metrics
    episodes = lines(logdir / "episodes.jsonl")
    assert {line["episode_frames"] for line in episodes} == {60}
    assert len({line["task"] for line in episodes}) > 15
    assert list((tmp_path / "cache").iterdir())

    run(mode="test", test_num_episodes=2, logdir=str(logdir))
    result = json.loads((logdir / "evaluation.json").read_text())
    assert list(result["tasks"]) == [suite.test_version(task) for task in suite.tasks]
    assert list(result["train"]["tasks"]) == list(suite.test_versions)
    by_level = {**result["tasks"], **result["train"]["tasks"]}
    for task, reference in suite.reference_scores.items():
        for level in {task, suite.test_version(task)}:
            played = by_level[level]
            assert played["episodes"] == len(played["returns"]) == 2
            mean = np.mean(played["returns"])
            assert played["normalised"] == pytest.approx(scores.normalise(mean, reference))
    for column, levels in (
        (result["aggregate"], result["tasks"]),
        (result["train"]["aggregate"], suite.tasks),
    ):
        capped = [min(100.0, by_level[level]["normalised"]) for level in levels]
        assert column["mean_capped"] == pytest.approx(np.mean(capped))
    assert not engine_files(tmp_path)


def test_other_levels_have_returns_but_no_score(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in(**SHORT)
    logdir = tmp_path / "run"
    settings = {**SMALL, "logdir": str(logdir), "level_name": "lt_chasm", "num_actors": 3}
    run(**settings, action_set="impala", total_environment_frames=600)
    assert lines(logdir / "metrics.jsonl")[-1]["tasks_scored"] == 0
    run(mode="test", test_num_episodes=1, logdir=str(logdir))
    result = json.loads((logdir / "evaluation.json").read_text())
    assert result["tasks"]["lt_chasm"]["normalised"] is None
    assert result["tasks"]["lt_chasm"]["mean_return"] == result["tasks"]["lt_chasm"]["returns"][0]
    assert set(result["aggregate"].values()) == {None}


def test_a_run_keeps_its_action_set(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SMALL, "logdir": str(tmp_path / "run"), "level_name": "lt_chasm", "num_actors": 2}
    run(**settings, total_environment_frames=240)
    message = fails(capsys, **settings, action_set="impala", total_environment_frames=480)
    assert "--action_set was popart and is impala" in message


def batches_of(config: Config, num_batches: int, enough: Callable[[Counter], bool]) -> Counter:
    """Rollouts by task in at least so many batches, and until there are enough."""
    spec = factory.make_rollout_spec(config)
    learner = factory.make_learner(config, spec)
    tasks: Counter = Counter()
    taken = 0
    with LocalActors(config, spec, learner) as pool:
        while taken < num_batches or not enough(tasks):
            batch = pool.next_batch()
            if batch is not None:
                taken += 1
                tasks.update(config.suite.tasks[i] for i in batch.task_id.numpy())
    return tasks


def test_every_level_takes_part_though_one_is_slow_to_reset(stand_in: StandIn) -> None:
    slow = "explore_goal_locations_large"
    stand_in(**{"*": {"reset_seconds": 0.01}, slow: {"reset_seconds": 1.0}})
    config = Config.from_flags({**SMALL, "level_name": "dmlab30", "dataset_path": "dummy"})
    tasks = batches_of(config, 200, lambda tasks: tasks[slow] >= 15)
    assert set(tasks) == set(config.suite.tasks)
    others = [count for task, count in tasks.items() if task != slow]
    assert min(others) > 0.5 * np.mean(others)


def test_training_goes_on_when_a_level_dies_again_and_again(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_FIRST_DELAY_SECONDS", 1e-3)
    stand_in(lt_chasm={"exit_after_steps": 40, "exit_exactly": True})
    settings = {**SMALL, "logdir": str(tmp_path), "level_name": "lt_chasm,rooms_watermaze"}
    frames = 4 * 30 * 80
    run(**settings, num_actors=4, total_environment_frames=frames, log_seconds=0.1)
    metrics = lines(tmp_path / "metrics.jsonl")
    assert metrics[-1]["frames"] == frames
    restarts = [line.get("restarts", {}) for line in metrics]
    assert all(set(by_task) <= {"lt_chasm"} for by_task in restarts)
    assert restarts[-1]["lt_chasm"] == metrics[-1]["environment_restarts"] >= 2
    counts = [line["environment_restarts"] for line in metrics]
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"exit_on_reset": True}, "lt_chasm ended with exit code 1, the last of 3 in a row"),
        ({"exit_after_steps": 2, "exit_exactly": True}, "Stand-in ends its process after 2 steps"),
        ({"raise_on_step": 2}, "RuntimeError: Stand-in raises after 2 steps"),
    ],
)
def test_a_level_that_cannot_be_kept_going_ends_the_run_in_one_line(
    stand_in: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    behaviour: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setattr(process_pool, "_FIRST_DELAY_SECONDS", 1e-3)
    monkeypatch.setattr(process_pool, "_MOST_DEATHS_IN_A_ROW", 2)
    stand_in(lt_chasm=behaviour)
    settings = {**SMALL, "logdir": str(tmp_path / "run"), "level_name": "lt_chasm"}
    assert message in fails(capsys, **settings, num_actors=2)
    assert not engine_files(tmp_path)


def test_what_was_learned_is_saved_when_a_level_is_lost(
    stand_in: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(process_pool, "_MOST_DEATHS_IN_A_ROW", 0)
    stand_in(lt_chasm={"exit_after_steps": 100, "exit_exactly": True})
    settings = {**SMALL, "logdir": str(tmp_path), "level_name": "lt_chasm", "num_actors": 2}
    message = fails(capsys, **settings, checkpoint_seconds=1e9, log_seconds=1e9)
    assert "Stand-in ends its process after 100 steps" in message
    frames = "learner/frames/.ATTRIBUTES/VARIABLE_VALUE"
    assert saved(tmp_path)[frames] == lines(tmp_path / "metrics.jsonl")[-1]["frames"] > 120


def test_a_run_goes_on_and_is_tested_where_its_images_have_moved(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(**SHORT)
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    for image in ("0001.png", "2400.png"):
        (old / image).touch()
    level_name = "psychlab_continuous_recognition"
    settings = {**SMALL, "logdir": str(tmp_path / "run"), "level_name": level_name, "num_actors": 2}
    run(**settings, dataset_path=str(old), total_environment_frames=240)
    old.rename(new)
    run(**settings, dataset_path=str(new), total_environment_frames=480)
    new.rename(old)
    again = {"mode": "test", "logdir": str(tmp_path / "run"), "test_num_episodes": 1}
    assert f"--dataset_path={new} is no directory" in fails(capsys, **again)
    run(**again, dataset_path=str(old))


def children_of(process: int) -> set[int]:
    """Processes that play a level for another."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == process and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_and_no_file_outlives_a_run(
    stand_in: StandIn, tmp_path: Path, number: signal.Signals
) -> None:
    stand_in(lt_chasm={"reset_seconds": 0.2})
    settings = {**SMALL, "logdir": tmp_path / "run", "level_name": "lt_chasm,rooms_watermaze"}
    settings |= {"num_actors": 6, "log_seconds": 1e-9}
    temporary = tmp_path / "temporary"
    process = subprocess.Popen(
        [sys.executable, "experiment.py", *(f"--{k}={v}" for k, v in settings.items())],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: (metrics.exists() and len(metrics.read_bytes()) > 0) or bool(process.poll()))
    assert process.poll() is None
    children = children_of(process.pid)
    assert len(children) == 6
    assert list(temporary.glob("environment_processes_*/*/baselab")), "engines have files"
    process.send_signal(number)
    process.wait(60)
    wait_until(lambda: not any(map(is_alive, children)))
    if number == signal.SIGKILL:
        wait_until(lambda: not engine_files(tmp_path))
    else:
        assert saved(tmp_path / "run")
        assert not engine_files(tmp_path)


def test_without_the_module_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = fails(capsys, level_name="dmlab30", logdir=str(tmp_path / "run"))
    assert "deepmind_lab" in message
    assert "docs/users/build.md" in message
    assert not (tmp_path / "run").exists()


def test_a_test_of_a_level_that_never_finishes_an_episode_ends(
    stand_in: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(process_pool, "_FIRST_DELAY_SECONDS", 1e-3)
    settings = {**SMALL, "logdir": str(tmp_path / "run"), "level_name": "lt_chasm"}
    run(**settings, num_actors=1, actor_threads=1, total_environment_frames=240)
    stand_in(lt_chasm={"exit_after_steps": 20, "exit_exactly": True})
    message = fails(capsys, mode="test", logdir=str(tmp_path / "run"), test_num_episodes=1)
    assert "lost more than 8 times before it could finish an episode" in message

"""Whole runs on DeepMind Lab's levels, each a process that plays the stand-in."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from scalable_agent_popart import scores, suites
from scalable_agent_popart.suites import process_pool
from tests.fakes.main_program import run
from tests.fakes.programs import metrics
from tests.runs.experiment_test import saved

SMALL = {"height": 12, "width": 16, "network": "shallow", "unroll_length": 5, "batch_size": 6}

StandIn = Callable[..., None]


@pytest.fixture(autouse=True)
def _quick_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process_pool, "_FIRST_PAUSE_SECONDS", 1e-3)
    yield
    left = list((tmp_path / "temporary").glob("environment_processes_*"))
    assert not left, "processes and engines leave nothing behind"


def test_levels_are_trained_and_tested(stand_in: StandIn, tmp_path: Path) -> None:
    held_out_task, other = "rooms_collect_good_objects_train", "lt_chasm"
    stand_in(**{"*": {"episode_frames": 40}})  # Games of 10 agent steps.
    logdir = tmp_path / "run"
    settings = {**SMALL, "level_name": f"{held_out_task},{other}", "logdir": str(logdir)}
    settings |= {"level_cache_dir": str(tmp_path / "cache"), "num_actors": 4, "use_popart": True}
    run(**settings, total_environment_frames=600)
    last = metrics(logdir)[-1]
    assert tuple(last["shift"]) == tuple(last["scale"]) == (held_out_task, other)
    assert (last["environment_restarts"], last["tasks_scored"]) == (0, 1)
    episodes = (logdir / "episodes.jsonl").read_text().splitlines()
    assert {json.loads(line)["episode_frames"] for line in episodes} == {40}
    assert list((tmp_path / "cache").iterdir())

    run(mode="test", logdir=str(logdir), test_num_episodes=2)
    result = json.loads((logdir / "evaluation.json").read_text())
    suite = suites.resolve("dmlab30")
    held_out = suite.test_versions[held_out_task]
    assert list(result["tasks"]) == [held_out, other]
    assert list(result["train"]["tasks"]) == [held_out_task]
    assert result["tasks"][other]["normalised"] is None
    for level, column in ((held_out, result), (held_out_task, result["train"])):
        played = column["tasks"][level]
        assert played["episodes"] == len(played["returns"]) == 2
        score = scores.normalise(np.mean(played["returns"]), suite.reference_scores[held_out_task])
        assert played["normalised"] == pytest.approx(score)
        assert column["aggregate"]["mean_capped"] == pytest.approx(min(100.0, score))


def test_a_level_that_raises_ends_the_run_and_what_was_learned_is_saved(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "_MAX_RESTARTS_IN_A_ROW", 0)
    stand_in(lt_chasm={"raise_on_step": 100})
    settings = {**SMALL, "logdir": str(tmp_path), "level_name": "lt_chasm", "num_actors": 2}
    with pytest.raises(SystemExit, match="RuntimeError: Stand-in raises after 100 steps"):
        run(**settings, checkpoint_seconds=1e9, log_seconds=1e9)
    assert saved(tmp_path) == metrics(tmp_path)[-1]["frames"] > 120

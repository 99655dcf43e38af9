"""Testing agents: starts, films and reports, on the real emulator."""

import csv
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from environments import Lockstep, StepOutput
from scalable_agent_popart import suites
from scalable_agent_popart.config import Config
from scalable_agent_popart.evaluation import evaluate as evaluation
from scalable_agent_popart.evaluation import evaluator
from scalable_agent_popart.rollouts import AgentOutput
from scalable_agent_popart.suites.atari import emulator as atari_emulator
from scalable_agent_popart.suites.atari import starts as atari_starts
from tests.fakes import main_program
from tests.fakes.counting_environment import EPISODE_STEPS, CountingEnvironments

_ROOT = Path(__file__).resolve().parents[3]
_SMALL = {"num_actors": 4, "batch_size": 4, "network": "shallow", "total_environment_frames": 640}


def _test(logdir: Path, **given: Any) -> dict[str, Any]:
    main_program.run(mode="test", logdir=str(logdir), **given)
    return json.loads((logdir / "evaluation.json").read_text())


class _Still:
    """A policy that always chooses action 0; notes how many environments it acts in."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def forget(self, ids: np.ndarray) -> None:
        del ids

    def act(self, ids: np.ndarray, env_output: StepOutput) -> AgentOutput:
        assert len(ids) == len(env_output.reward)
        self.sizes.append(len(ids))
        return AgentOutput(np.zeros(len(ids), np.int32), np.zeros((len(ids), 2), np.float32))


def test_a_game_is_not_played_on_once_all_its_copies_are_through() -> None:
    pool = Lockstep(CountingEnvironments(np.array([0, 0])), CountingEnvironments(np.array([1])))
    policy = _Still()
    returns = evaluation.play(pool, policy, [2, 1, 4], lambda ready: None)
    alone = Lockstep(CountingEnvironments(np.array([1])))
    assert [len(own) for own in returns] == [2, 1, 4]
    assert returns[2] == evaluation.play(alone, _Still(), [4], lambda ready: None)[0]
    # The second copy plays on, uncounted, as long as the first does.
    assert policy.sizes == [3] * 2 * EPISODE_STEPS + [1] * 2 * EPISODE_STEPS


def test_an_atari_agent_is_tested_from_both_starts_filmed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(atari_emulator, "MAX_FRAMES_PER_GAME", 160)  # Games of 40 agent steps.
    run, starts = tmp_path / "run", tmp_path / "starts"
    main_program.run(level_name="pong,boxing", use_popart=True, logdir=str(run), **_SMALL)

    random = _test(run, test_num_episodes=3)
    assert (random["starts"], random["frames"]) == ("noop", 640)
    assert {len(task["returns"]) for task in random["tasks"].values()} == {3}

    human = {"starts": "human", "human_starts_dir": str(starts)}
    with pytest.raises(SystemExit) as missing:
        _test(run, **human)
    assert str(missing.value.code).startswith("error: ")
    assert "record_starts" in str(missing.value.code)
    _record(starts)
    result = _test(run, **human, test_num_episodes=7, record_video=True)
    assert result["starts"] == "human"
    with open(run / "evaluation.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for game, task in result["tasks"].items():
        assert len(task["returns"]) == 7
        assert [float(row["episode_return"]) for row in rows if row["level"] == game] == task[
            "returns"
        ]
        with av.open(run / "videos" / f"{game}.mp4") as film:
            assert len(list(film.decode(video=0))) > 40
    # Neither test is lost to a report, which has a column for each.
    main_program.run(mode="report", runs=[str(run)], report_dir=str(tmp_path / "out"))
    for column, tested, episodes in (("noop", random, "3"), ("human", result, "7")):
        path = tmp_path / "out" / "tables" / f"atari57-2-tasks-table-1-{column}.csv"
        with open(path, newline="") as file:
            row = next(csv.DictReader(file))
        assert (row["agent"], row["column"], row["source"]) == ("PopArt-IMPALA", column, "test")
        assert row["episodes"] == episodes
        assert float(row["score"]) == pytest.approx(tested["aggregate"]["median"])


def _record(starts: Path) -> None:
    generator = np.random.default_rng(1)
    options = suites.EnvironmentOptions(4, 84, 84, "full", training=False)
    for game in ("pong", "boxing"):
        recorded = atari_starts.record_starts(
            game, lambda _: int(generator.integers(18)), 5, 2, seed=1, options=options
        )
        recorded.write(starts)


def test_starts_are_recorded_from_a_runs_policy(tmp_path: Path) -> None:
    run, starts = tmp_path / "run", tmp_path / "starts"
    main_program.run(level_name="pong,boxing", logdir=str(run), **_SMALL)
    command = [sys.executable, "tools/record_starts.py", f"--logdir={run}", "--level_name=boxing"]
    command += [f"--human_starts_dir={starts}", "--num_games=1", "--num_starts=20"]
    subprocess.run(command, cwd=_ROOT, check=True)
    assert len(atari_starts.read_starts(starts, "boxing").states) == 20


def test_the_policy_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    main_program.run(
        level_name="catch5", use_popart=True, logdir=str(run), **_SMALL | {"num_actors": 5}
    )
    refreshed = []
    refresh = evaluation.Policy.refresh

    def note(self: evaluation.Policy) -> int:
        refreshed.append(self)
        return refresh(self)

    monkeypatch.setattr(evaluation.Policy, "refresh", note)
    result = _test(run, test_num_episodes=5)
    assert {len(task["returns"]) for task in result["tasks"].values()} == {5}
    assert len(refreshed) == 1


def test_later_tests_take_newer_weights_and_trace_nothing_anew(tmp_path: Path) -> None:
    flags = {"level_name": "catch5", "logdir": str(tmp_path), "use_lstm": True}
    small = _SMALL | {"num_actors": 5}
    main_program.run(**flags, **small)
    config = Config.from_flags({**flags, "mode": "test", "test_num_episodes": 3})
    tester = evaluation.Tester(config)
    first = tester.test()
    num_traces = tester.num_traces
    # Frozen: the same weights play the same games.
    assert tester.test()["tasks"] == first["tasks"]
    main_program.run(**flags, **small | {"total_environment_frames": 1280})
    newer = tester.test()
    assert newer["frames"] > first["frames"]
    assert newer["tasks"] == evaluation.evaluate(config)["tasks"]
    assert tester.num_traces == num_traces > 0


def test_the_evaluators_tests_are_all_made_by_one_tester(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, frames, names = [], iter((100, 200)), itertools.count()

    class Tester:
        def __init__(self, config: Config):
            made.append(config)

        def test(self) -> dict[str, Any]:
            return {"frames": next(frames), "starts": "noop", "aggregate": {}, "tasks": {}}

    monkeypatch.setattr(evaluation, "Tester", Tester)
    monkeypatch.setattr(evaluator, "newest_checkpoint", lambda directory: f"ckpt-{next(names)}")
    monkeypatch.setattr(evaluator, "frames_of", lambda checkpoint: -5)
    evaluator.follow(
        Config.from_flags(
            {"level_name": "catch5", "logdir": str(tmp_path), "total_environment_frames": 200}
        )
    )
    assert len(made) == 1
    assert len((tmp_path / "evaluations.jsonl").read_text().splitlines()) == 2

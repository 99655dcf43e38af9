"""Testing agents: who plays how long, with which weights, and from which starts."""

import itertools
import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import av
import numpy as np
import pytest
import tensorflow as tf
import tqdm
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import scalable_agent_popart
from environments import EnvironmentLostError, EpisodeCounter, Lockstep, Ready, StepOutput
from scalable_agent_popart import factory
from scalable_agent_popart.agent.agent import Agent
from scalable_agent_popart.evaluation import evaluate
from scalable_agent_popart.evaluation.videos import VideoRecorder
from scalable_agent_popart.rollouts import AgentOutput
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import RunDirectory
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.suites.atari import emulator, starts
from scalable_agent_popart.system.terminal import progress_bar
from tests.fakes import main_program
from tests.fakes.counting_environment import EPISODE_STEPS, CountingEnvironments
from tests.fakes.programs import metrics, read_log, run_python
from tests.fakes.uneven_environments import UnevenEnvironments

_TASKS = ("pong", "boxing")
_SMALL = {"num_actors": 4, "batch_size": 4, "network": "shallow", "total_environment_frames": 640}


@pytest.fixture
def tester(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Stands in for testers, and for the looks at a run's checkpoints, which have no pause."""
    for name in ("Tester", "saved_frames"):
        monkeypatch.setattr(evaluate, name, mock.Mock())
    monkeypatch.setattr(evaluate, "_POLL_SECONDS", 0)
    return evaluate.Tester.return_value


def _still_policy() -> mock.Mock:
    """Makes a policy that always chooses action 0."""

    def act(ids: np.ndarray, env_output: StepOutput) -> AgentOutput:
        return AgentOutput(np.zeros_like(env_output.reward, np.int32), np.zeros((len(ids), 2)))

    return mock.Mock(**{"act.side_effect": act})


def test_each_environment_plays_its_quota_and_rests_when_its_group_has(tmp_path: Path) -> None:
    pool = Lockstep(CountingEnvironments(np.array([0, 0])), CountingEnvironments(np.array([1])))
    policy = _still_policy()
    returns = evaluate.play(pool, policy, [2, 1, 4], VideoRecorder(tmp_path, {}), _TASKS)
    # The reward of step n is n modulo 5.
    episodes = np.reshape(np.arange(1, 4 * EPISODE_STEPS + 1) % 5, (4, EPISODE_STEPS)).sum(axis=1)
    assert returns == [[*episodes[:2]], [*episodes[:1]], [*episodes]]
    # The second copy plays on, uncounted, as long as the first does.
    sizes = [len(call.args[0]) for call in policy.act.call_args_list]
    assert sizes == [3] * 2 * EPISODE_STEPS + [1] * 2 * EPISODE_STEPS


@pytest.mark.parametrize(
    ("minutes_per_step", "lines"), [(10, [1, 2, 4]), (5, [2, 4]), (10 / (EPISODE_STEPS + 1), [])]
)
def test_tasks_whose_episodes_do_not_end_are_named_ever_more_rarely(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    minutes_per_step: float,
    lines: list[int],
) -> None:
    clock = itertools.count(step=60 * minutes_per_step)
    monkeypatch.setattr(evaluate, "monotonic", clock.__next__)
    pool = Lockstep(*(CountingEnvironments(np.array([task, task])) for task in (0, 1)))
    # The first environment has met its quota and its task has not.
    evaluate.play(pool, _still_policy(), [0, 1, 1, 1], VideoRecorder(tmp_path, {}), _TASKS)
    assert capsys.readouterr().err.splitlines()[:-1] == [
        f"pong, boxing: no episode has ended for {minutes_per_step * step:.0f} minutes, and the "
        f"longest has {step - 1} agent steps; the test waits for the end"
        for step in lines
    ]


def test_lost_environments_begin_anew_and_are_forgotten(tmp_path: Path) -> None:
    pool, policy = UnevenEnvironments(np.zeros(2), lost=0.02), _still_policy()
    returns = evaluate.play(pool, policy, [20, 20], VideoRecorder(tmp_path, {}), _TASKS)
    assert pool.restarts.max() > evaluate._MAX_RESTARTS, "but not within an episode"
    forgotten = np.concatenate([call.args[0] for call in policy.forget.call_args_list])
    assert np.bincount(forgotten).tolist() == (1 + pool.restarts).tolist()
    in_turn = [13.0, 17.0, 11.0, 15.0, 14.0]  # Episodes' returns, again and again.
    for returns_of_environment in returns:
        turns = [in_turn.index(value) for value in returns_of_environment]
        assert len(turns) == 20
        assert all(new in (0, (old + 1) % 5) for old, new in itertools.pairwise([4, *turns]))


def test_environments_that_start_one_by_one_are_counted_until_all_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "progress_bar", bar := mock.MagicMock())
    pool = UnevenEnvironments(np.zeros(3), lost=0.0)
    evaluate.play(pool, _still_policy(), [1] * 3, VideoRecorder(tmp_path, {}), _TASKS)
    calls = bar.return_value.__enter__.return_value.set_description.call_args_list
    shown = dict.fromkeys(call.args[0] for call in calls)  # Two are ready at once.
    assert list(shown) == ["2 of 3 environments ready", None]


def test_an_environment_that_is_lost_too_often_ends_the_test(tmp_path: Path) -> None:
    pool = UnevenEnvironments(np.zeros(1), lost=0.1)  # The episode would end at last.
    with pytest.raises(EnvironmentLostError, match="more than 8 times before it could finish"):
        evaluate.play(pool, _still_policy(), [1], VideoRecorder(tmp_path, {}), _TASKS)
    assert pool.restarts.tolist() == [9]


def test_an_atari_agent_is_tested_from_both_starts_and_filmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "MAX_FRAMES_PER_GAME", 2000)
    bars: list[tqdm.tqdm] = []

    def show(*given: Any, **how: Any) -> tqdm.tqdm:
        bars.append(progress_bar(*given, **how))
        return bars[-1]

    monkeypatch.setattr(evaluate, "progress_bar", show)
    run, recorded = tmp_path / "run", tmp_path / "starts"

    def test(**given: Any) -> dict[str, Any]:
        main_program.run(mode="test", logdir=str(run), **given)
        return json.loads((run / "evaluation.json").read_text())

    trained = {"level_name": "breakout", "use_popart": True, "pixel_control": True}
    main_program.run(**trained, logdir=str(run), **_SMALL)
    assert all(line["pixel_control_loss"] > 0 for line in metrics(run))
    random = test(test_num_episodes=2)
    assert (random["starts"], random["frames"]) == ("noop", 640)
    human = {"starts": "human", "human_starts_dir": str(recorded)}
    with pytest.raises(SystemExit, match=r"^error: .*record_starts"):
        test(**human)
    given = [f"--logdir={run}", "--level_name=breakout", f"--human_starts_dir={recorded}"]
    tool = run_python("tools/record_starts.py", *given, "--num_games=1", "--num_starts=20")
    assert tool.returncode == 0, tool.stderr
    assert len(starts.read_starts(recorded, "breakout")) == 20
    films = {"record_video": True, "video_policy": True}
    result = test(**human, test_num_episodes=5, **films)
    assert result["starts"] == "human"
    assert len(result["tasks"]["breakout"]["returns"]) == 5
    made, films_made, started, _ = [[(bar.n, bar.total) for bar in bars[i::4]] for i in range(4)]
    assert made == started == [(2, 2), (4, 4)]
    assert films_made == [(0, 0), (0, 1)], "human starts are not filmed in colour"
    with av.open(run / "videos" / "breakout.mp4") as film:
        frames = np.array([each.to_ndarray(format="rgb24") for each in film.decode(video=0)])
    assert len(frames) > 40
    # The picture, both maps and the policy.
    _, change, max_q, policy = np.split(frames, [336, 336 + 344, 336 + 2 * 344], axis=2)
    assert policy.shape[2] == 8 + 256
    assert all(maps[1:].std(axis=0).max() > 1 for maps in (change, max_q)), "they never change"
    opened = Run.open(run)
    config = opened.config.for_test({"mode": "test", **films})
    tester = evaluate.Tester(opened, config)
    new = [variable.numpy() for variable in tester.view.q_head.variables]
    assert tester.restore() == 640
    restored = zip(new, tester.view.q_head.variables, strict=True)
    assert any((before != variable).numpy().any() for before, variable in restored)
    image = np.random.default_rng(0).integers(256, size=(1, 84, 84, 1)).astype(np.uint8)
    output = EpisodeCounter(1).start(image)
    _, (play,) = tester.view.look(Ready(np.arange(1), output, np.ones(1, bool)), ["breakout"])
    agent = scalable_agent_popart.load(str(run))
    assert play.value == pytest.approx(agent.value(image, "breakout")[0])
    np.testing.assert_allclose(play.probabilities, agent.policy(image)[0], rtol=1e-5)


def test_later_tests_take_newer_weights_and_trace_nothing_anew(tmp_path: Path) -> None:
    flags = {"level_name": "catch5", "logdir": str(tmp_path), "use_lstm": True}
    main_program.run(**flags, **_SMALL | {"num_actors": 5})
    config = Config.from_flags({**flags, "mode": "test", "test_num_episodes": 3})
    with (
        mock.patch.object(Agent, "step", autospec=True, side_effect=Agent.step) as steps,
        mock.patch.object(factory, "make_environments", wraps=factory.make_environments) as made,
    ):
        run = Run.open(tmp_path)
        tester = evaluate.Tester(run, config)
        first = tester.test()
        for task, result in first["tasks"].items():  # A game of catch_10 is worth 10 or -10.
            scale = float(task.removeprefix("catch_"))
            assert np.abs(result["returns"]).tolist() == pytest.approx([scale] * 3)
        assert tester.test()["tasks"] == first["tasks"]  # The same weights play the same games.
        evaluate.Tester(run, config.with_flags({"seed": 2})).test()
    assert steps.call_count == 2, "traced once a tester"
    assert [call.args[0].training for call in made.call_args_list] == [False] * 3
    seeds = [call.args[-1].generate_state(4).tolist() for call in made.call_args_list]
    assert seeds[0] == seeds[1] != seeds[2]
    main_program.run(**flags, **_SMALL | {"num_actors": 5, "total_environment_frames": 1280})
    newer = tester.test()
    assert newer["frames"] > first["frames"]
    assert newer["tasks"] == evaluate.Tester(run, config).test()["tasks"]


def test_a_signal_ends_a_test_that_waits_for_an_environment(
    tmp_path: Path, tester: mock.Mock
) -> None:
    RunDirectory(tmp_path).record(Config.from_flags({"level_name": "catch5"}))
    tester.test.side_effect = lambda: signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        main_program.run(mode="test", logdir=str(tmp_path))
    assert end.value.code == 128 + signal.SIGTERM


def test_the_evaluator_tests_each_newer_checkpoint_up_to_the_runs_end(
    tmp_path: Path, tester: mock.Mock
) -> None:
    tasks = {"catch_1": {"mean_return": 0.5}, "catch_10": {"mean_return": math.inf}}
    result = {"starts": "noop", "aggregate": {"mean": 1.5, "median": None}, "tasks": tasks}
    tester.test.side_effect = [{**result, "frames": n} for n in (100, 200)]
    evaluate.saved_frames.side_effect = [None, 100, 100, None, 200]
    given = {"level_name": "catch5", "logdir": str(tmp_path), "total_environment_frames": 200}
    # A disk was full in the middle of a line.
    (tmp_path / "evaluations.jsonl").write_text('{"frames": 50}\n{"frames": 1')
    config = Config.from_flags(given)
    evaluate.follow(Run.check(config), config)
    evaluate.Tester.assert_called_once()
    assert evaluate.saved_frames.call_count == 5, "nothing is tested twice"
    lines = read_log(tmp_path / "evaluations.jsonl")
    assert [line["frames"] for line in lines] == [50, 100, 200]
    assert lines[1]["mean_return"] == {"catch_1": 0.5, "catch_10": None}
    curves = EventAccumulator(str(tmp_path / "evaluator")).Reload()
    returns = {"evaluation_return/catch_1", "evaluation_return/catch_10"}
    assert set(curves.Tags()["tensors"]) == {"evaluation/mean", *returns}
    for tag, value in (("evaluation/mean", 1.5), ("evaluation_return/catch_1", 0.5)):
        points = [(each.step, tf.make_ndarray(each.tensor_proto)) for each in curves.Tensors(tag)]
        assert points == [(100, value), (200, value)]


@pytest.mark.parametrize("saved", [None, 100])
def test_an_evaluator_whose_learner_is_gone_ends_as_actor_jobs_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tester: mock.Mock, saved: int | None
) -> None:
    tester.test.side_effect = [{"frames": 100, "starts": "noop", "aggregate": {}, "tasks": {}}]
    evaluate.saved_frames.side_effect = [saved] * 9
    given = {"level_name": "catch5", "logdir": str(tmp_path), "checkpoint_seconds": 1e-9}
    config = Config.from_flags({**given, "learner_timeout_hours": 1e-12})
    evaluate.follow(Run.check(config), config)
    assert (
        "the evaluator ends, as if the run were over: there was no newer checkpoint in "
        f"{tmp_path}/checkpoints for 1e-12 hours (--learner_timeout_hours)"
    ) in caplog.messages


def test_a_level_that_tests_several_tasks_is_played_once() -> None:
    config = Config.from_flags({"level_name": "catch_1,catch_10,catch_100"})
    shared = dict.fromkeys(("catch_1", "catch_10"), "catch_100")
    config = replace(config, suite=replace(config.suite, test_versions=shared))
    tester = evaluate.Tester(mock.Mock(config=config), config)
    assert list(tester._played.tasks) == ["catch_100", "catch_1", "catch_10"]

"""Whole runs with pixel control: trained, resumed, tested and filmed."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import tensorflow as tf
import tree

from environments import Lockstep, Ready, StepOutput
from scalable_agent_popart import factory
from scalable_agent_popart.acting.policy import Policy
from scalable_agent_popart.evaluation.videos import VideoRecorder
from scalable_agent_popart.learning import pixel_control
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import AgentOutput
from scalable_agent_popart.runs.checkpoints import Checkpoints
from scalable_agent_popart.runs.directory import RunDirectory
from tests.fakes.main_program import run

TINY = {
    "level_name": "cluttered_catch",
    "pixel_control": True,
    "num_actors": 4,
    "batch_size": 4,
    "unroll_length": 10,
    "total_environment_frames": 400,
}
_LOST_AT = 6  # Which step of a film an environment is lost before, and begins again.


def refusal(**given: Any) -> str:
    """The one line that these flags are refused with."""
    with pytest.raises(SystemExit) as error:
        run(**given)
    message = str(error.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def metrics(logdir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (logdir / "metrics.jsonl").read_text().splitlines()]


def kernels_of_the_head(logdir: Path) -> dict[str, np.ndarray]:
    """What the newest checkpoint holds of the shape of its last deconvolution, by name."""
    reader = tf.train.load_checkpoint(str(logdir / "checkpoints"))
    shapes = reader.get_variable_to_shape_map()
    return {n: reader.get_tensor(n) for n, shape in shapes.items() if shape == [4, 4, 4, 32]}


def film_size(path: Path) -> tuple[int, int]:
    """Width and height of a video, and that it can be read."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    return frames[0].width, frames[0].height


def test_gradients_of_each_task_are_measured_beside_pixel_control(tmp_path: Path) -> None:
    run(**TINY, log_task_gradients=True, logdir=str(tmp_path))
    for name in ("policy_gradient_norm", "total_gradient_norm"):
        norms = metrics(tmp_path)[0][name]
        assert norms
        assert all(norm > 0 for norm in norms.values())


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ({}, "Pixel-IMPALA"),
        ({"use_popart": True, "use_lstm": True}, "Pixel-PopArt-IMPALA"),
    ],
)
def test_agents_train_resume_and_are_filmed(
    tmp_path: Path, agent: dict[str, Any], name: str
) -> None:
    logdir = str(tmp_path)
    run(**TINY, **agent, logdir=logdir)
    assert json.loads((tmp_path / "config.json").read_text())["agent"] == name
    assert all(line["pixel_control_loss"] > 0 for line in metrics(tmp_path))
    before = kernels_of_the_head(tmp_path)
    assert len(before) == 3  # Itself, and what the optimiser keeps of it.

    more = {"total_environment_frames": 800, "learning_rate": 1e-9, "allow_changes": True}
    run(**{**TINY, **more}, **agent, logdir=logdir)
    assert metrics(tmp_path)[-1]["frames"] == 800
    assert math.isfinite(metrics(tmp_path)[-1]["total_loss"])
    for variable, kernel in kernels_of_the_head(tmp_path).items():
        if "_optimiser" not in variable:  # Gone on with, as far as such small steps go.
            np.testing.assert_allclose(kernel, before[variable], rtol=0, atol=1e-6)
            assert np.abs(kernel).mean() > 1e-3

    run(mode="test", logdir=logdir, test_num_episodes=2, record_video=True)
    width, height = film_size(tmp_path / "videos" / "cluttered_catch.mp4")
    assert width > 2.5 * height  # The picture and both maps.


@pytest.mark.parametrize("before", [False, True])
def test_a_run_cannot_be_continued_with_or_without_it(tmp_path: Path, before: bool) -> None:
    given = {**TINY, "logdir": str(tmp_path)}
    run(**{**given, "pixel_control": before})
    message = refusal(**{**given, "pixel_control": not before})
    assert f"--pixel_control was {before} and is {not before}" in message
    message = refusal(mode="test", logdir=str(tmp_path), pixel_control=not before)
    assert f"--pixel_control was {before} and is {not before}" in message


def test_images_that_are_too_small_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    given = {**TINY, "level_name": "catch5", "num_actors": 5, "logdir": str(tmp_path / "run")}
    message = refusal(**given)
    for expected in ("--pixel_control", "32x32", "catch5", "10x5"):
        assert expected in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pixel_control_cost", -0.1),
        ("pixel_control_discount", 1.1),
        ("pixel_control_discount", -0.1),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, name: str, value: float) -> None:
    assert f"--{name}" in refusal(**TINY, **{name: value}, logdir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


class Film:
    """What a film's environment has shown, what the policy did, and the maps beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.outputs: list[StepOutput] = []
        self.maps: list[Mapping[str, np.ndarray]] = []
        self.actions = [0]  # The action before each step.
        self._received = 0
        act, receive = Policy.act, Lockstep.receive

        def note_action(policy: Policy, ids: np.ndarray, output: StepOutput) -> AgentOutput:
            answer = act(policy, ids, output)
            self.actions.append(int(answer.action[0]))
            return answer

        def lose_once(pool: Lockstep, seconds: float) -> Ready:
            self._received += 1
            if self._received == _LOST_AT + 1:
                pool.start()
                self.actions[-1] = 0  # The one on the way never arrived.
            return receive(pool, seconds)

        def note_maps(
            recorder: VideoRecorder, ids: np.ndarray, output: StepOutput, maps: Mapping
        ) -> None:
            assert ids.tolist() == [0]
            self.outputs.append(tree.map_structure(np.copy, output))
            self.maps.append(maps)

        monkeypatch.setattr(Policy, "act", note_action)
        monkeypatch.setattr(Lockstep, "receive", lose_once)
        monkeypatch.setattr(VideoRecorder, "watch", note_maps)


def restored(logdir: Path) -> Learner:
    """The learner as it was saved."""
    directory = RunDirectory(str(logdir))
    config = directory.read_config()
    learner = factory.make_learner(config, factory.make_rollout_spec(config))
    assert Checkpoints(directory.checkpoints, learner=learner).restore()
    return learner


def test_maps_are_those_of_the_checkpoints_head_for_the_policys_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"num_actors": 2, "batch_size": 2, "total_environment_frames": 400}
    agent = {"pixel_control": True, "use_lstm": True, "precision": "float32"}
    run(level_name="cluttered_catch", logdir=str(tmp_path), **settings, **agent)
    with monkeypatch.context() as patch:
        film = Film(patch)
        run(mode="test", logdir=str(tmp_path), test_num_episodes=3, record_video=True)

    # [K, 1, ...]
    steps = tree.map_structure(lambda *each: tf.constant(np.stack(each)), *film.outputs)
    num_steps = len(film.outputs)
    assert num_steps > 2 * _LOST_AT
    actions = tf.constant(film.actions[:num_steps])[:, tf.newaxis]
    learner = restored(tmp_path)
    features = learner.agent.unroll(actions, steps, learner.agent.initial_state(1)).features
    expected = pixel_control.max_values(learner.q_head(features))  # [K, 1, rows, columns]
    shown = np.stack([maps["max Q"] for maps in film.maps])
    np.testing.assert_allclose(shown, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 1e-3

    changes = pixel_control.cell_rewards(steps.observation, steps.info.episode_end).numpy()
    changes[_LOST_AT - 1] = 0  # What it showed before is no more.
    shown = np.stack([maps["change"] for maps in film.maps])
    np.testing.assert_array_equal(shown[0], 0)
    np.testing.assert_allclose(shown[1:], changes, rtol=1e-6)
    assert (changes > 0).any()

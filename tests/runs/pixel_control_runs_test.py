"""Whole runs with pixel control: trained, resumed, tested and filmed."""

import json
import shutil
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
from scalable_agent_popart.config import Config
from scalable_agent_popart.evaluation.pixel_control_view import PixelControlView
from scalable_agent_popart.learning import pixel_control
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.rollouts import AgentOutput
from scalable_agent_popart.runs.checkpoints import Checkpoints
from scalable_agent_popart.runs.directory import RunDirectory
from tests.fakes.main_program import run

_TINY = {
    "level_name": "cluttered_catch",
    "pixel_control": True,
    "num_actors": 2,
    "batch_size": 2,
    "unroll_length": 10,
    "total_environment_frames": 400,
    "use_popart": True,
    "use_lstm": True,
    "precision": "float32",
    "log_task_gradients": True,
}
_LOST_AT = 6  # The step before which the filmed environment is lost, and begins again.


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run, which tests may read."""
    path = tmp_path_factory.mktemp("pixel_control") / "run"
    run(**_TINY, logdir=str(path))
    return path


def _refusal(**given: Any) -> str:
    """Returns the one line that these flags are refused with."""
    with pytest.raises(SystemExit, match=r"^error: [^\n]*$") as error:
        run(**given)
    return str(error.value.code)


def _metrics(logdir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (logdir / "metrics.jsonl").read_text().splitlines()]


def _last_deconvolution(logdir: Path) -> dict[str, np.ndarray]:
    """Reads what the newest checkpoint holds of the head's last kernel, by name."""
    reader = tf.train.load_checkpoint(str(logdir / "checkpoints"))
    shapes = reader.get_variable_to_shape_map()
    return {n: reader.get_tensor(n) for n, shape in shapes.items() if shape == [4, 4, 4, 32]}


def test_an_agent_trains_and_resumes(trained: Path, tmp_path: Path) -> None:
    assert json.loads((trained / "config.json").read_text())["agent"] == "Pixel-PopArt-IMPALA"
    assert all(line["pixel_control_loss"] > 0 for line in _metrics(trained))
    for name in ("policy_gradient_norm", "total_gradient_norm"):
        norms = _metrics(trained)[0][name]
        assert norms
        assert all(norm > 0 for norm in norms.values())
    before = _last_deconvolution(trained)
    assert len(before) == 3  # Itself, and the optimiser's two variables for it.

    shutil.copytree(trained, tmp_path / "longer")
    more = {"total_environment_frames": 800, "learning_rate": 1e-9, "allow_changes": True}
    run(**_TINY | more, logdir=str(tmp_path / "longer"))
    assert _metrics(tmp_path / "longer")[-1]["frames"] == 800
    assert np.isfinite(_metrics(tmp_path / "longer")[-1]["total_loss"])
    for variable, kernel in _last_deconvolution(tmp_path / "longer").items():
        if "_optimiser" not in variable:  # It hardly moves in such small steps.
            np.testing.assert_allclose(kernel, before[variable], rtol=0, atol=1e-6)
            assert np.abs(kernel).mean() > 1e-3


@pytest.mark.parametrize("before", [False, True])
def test_a_run_cannot_be_continued_or_tested_with_the_other_setting(
    tmp_path: Path, before: bool
) -> None:
    given = {"level_name": "cluttered_catch", "logdir": str(tmp_path)}
    directory = RunDirectory(str(tmp_path))
    directory.record(Config.from_flags({**given, "pixel_control": before}))
    for mode in ("train", "test"):
        message = _refusal(**given, mode=mode, pixel_control=not before)
        assert f"--pixel_control was {before} and is {not before}" in message


def test_impossible_settings_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    too_small = {"level_name": "catch5", "num_actors": 5}
    for given, words in (
        (too_small, ("--pixel_control", "32x32", "catch5", "10x5")),
        ({"pixel_control_cost": -0.1}, ("--pixel_control_cost",)),
        ({"pixel_control_discount": 1.1}, ("--pixel_control_discount",)),
    ):
        message = _refusal(**_TINY | given, logdir=str(tmp_path / "run"))
        assert all(word in message for word in words)
    assert not (tmp_path / "run").exists()


class _Film:
    """Records what a filmed environment shows, what the policy does, and the maps beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.outputs: list[StepOutput] = []
        self.maps: list[dict[str, np.ndarray]] = []
        self.actions = [0]  # The action before each step.
        act, receive, maps = Policy.act, Lockstep.receive, PixelControlView.maps
        num_received = 0

        def record_action(policy: Policy, ids: np.ndarray, output: StepOutput) -> AgentOutput:
            answer = act(policy, ids, output)
            self.actions.append(int(answer.action[0]))
            return answer

        def lose_once(pool: Lockstep, seconds: float) -> Ready:
            nonlocal num_received
            num_received += 1
            if num_received == _LOST_AT + 1:
                pool.start()
                self.actions[-1] = 0  # The one on the way never arrived.
            return receive(pool, seconds)

        def record_maps(view: PixelControlView, ready: Ready) -> dict[str, np.ndarray]:
            assert ready.ids.tolist() == [0]
            self.outputs.append(tree.map_structure(np.copy, ready.output))
            self.maps.append(maps(view, ready))
            return self.maps[-1]

        monkeypatch.setattr(Policy, "act", record_action)
        monkeypatch.setattr(Lockstep, "receive", lose_once)
        monkeypatch.setattr(PixelControlView, "maps", record_maps)


def _restored(logdir: Path) -> Learner:
    """Makes the learner as it was saved."""
    directory = RunDirectory(str(logdir))
    config = directory.read_config()
    learner = factory.make_learner(config, factory.make_rollout_spec(config))
    assert Checkpoints(directory.checkpoints, learner=learner).restore()
    return learner


def test_films_show_the_maps_of_the_checkpoints_head_for_the_policys_inputs(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        film = _Film(patch)
        run(mode="test", logdir=str(trained), test_num_episodes=3, record_video=True)
    with av.open(str(trained / "videos" / "cluttered_catch.mp4")) as container:
        frame = next(container.decode(video=0))
    assert frame.width > 2.5 * frame.height  # The picture and both maps.

    # [K, 1, ...]
    steps = tree.map_structure(lambda *each: tf.constant(np.stack(each)), *film.outputs)
    num_steps = len(film.outputs)
    assert num_steps > 2 * _LOST_AT
    actions = tf.constant(film.actions[:num_steps])[:, tf.newaxis]
    learner = _restored(trained)
    features = learner.agent.unroll(actions, steps, learner.agent.initial_state(1)).features
    expected = pixel_control.max_values(learner.q_head(features))  # [K, 1, rows, columns]
    shown = np.stack([maps["max Q"] for maps in film.maps])
    np.testing.assert_allclose(shown, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 1e-3

    changes = pixel_control.cell_rewards(steps.observation, steps.info.episode_end).numpy()
    changes[_LOST_AT - 1] = 0  # The image before it is forgotten.
    shown = np.stack([maps["change"] for maps in film.maps])
    np.testing.assert_array_equal(shown[0], 0)
    np.testing.assert_allclose(shown[1:], changes, rtol=1e-6)
    assert (changes > 0).any()

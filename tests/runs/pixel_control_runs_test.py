"""Whole runs with pixel control: trained, resumed, tested and filmed."""

import json
import shutil
from pathlib import Path

import av
import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart.evaluation import evaluate
from scalable_agent_popart.runs.run import Run
from tests.fakes.main_program import run
from tests.fakes.programs import metrics

_TINY = {"level_name": "cluttered_catch", "pixel_control": True, "use_popart": True}
_TINY |= {"use_lstm": True, "log_task_gradients": True, "precision": "float32"}
_TINY |= {"num_actors": 2, "batch_size": 2, "unroll_length": 10, "total_environment_frames": 400}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run, which tests may read."""
    path = tmp_path_factory.mktemp("pixel_control") / "run"
    run(**_TINY, logdir=str(path))
    return path


def _last_deconvolution(logdir: Path) -> dict[str, np.ndarray]:
    """Reads what the newest checkpoint holds of the head's last kernel, by name."""
    reader = tf.train.load_checkpoint(str(logdir / "checkpoints"))
    shapes = reader.get_variable_to_shape_map()
    return {n: reader.get_tensor(n) for n, shape in shapes.items() if shape == [4, 4, 4, 32]}


def test_an_agent_trains_and_resumes(trained: Path, tmp_path: Path) -> None:
    assert json.loads((trained / "config.json").read_text())["agent"] == "Pixel-PopArt-IMPALA"
    assert all(line["pixel_control_loss"] > 0 for line in metrics(trained))
    for name in ("policy_gradient_norm", "total_gradient_norm"):
        assert min(metrics(trained)[0][name].values()) > 0
    before = _last_deconvolution(trained)
    assert len(before) == 3  # The optimiser has two variables for the kernel.

    longer = Path(shutil.copytree(trained, tmp_path / "longer"))
    more = {"total_environment_frames": 440, "learning_rate": 1e-9, "allow_changes": True}
    run(**_TINY | more, logdir=str(longer))
    assert metrics(longer)[-1]["frames"] == 440
    assert np.isfinite(metrics(longer)[-1]["total_loss"])
    for variable, kernel in _last_deconvolution(longer).items():
        if "_optimiser" not in variable:  # It hardly moves in such small steps.
            np.testing.assert_allclose(kernel, before[variable], rtol=0, atol=1e-6)
            assert np.abs(kernel).mean() > 1e-3


def test_films_show_maps_of_the_checkpoints_head_next_to_the_picture(trained: Path) -> None:
    run(mode="test", logdir=str(trained), test_num_episodes=3, record_video=True)
    with av.open(str(trained / "videos" / "cluttered_catch.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    height, width, _ = frames[0].shape
    assert width > 2.5 * height  # The picture and both maps.
    change, max_q = (np.array(frames)[:, :, -width // 3 * k :][:, :, : width // 4] for k in (2, 1))
    for maps in (change, max_q):
        assert maps[1:].std(axis=0).max() > 1  # They change from step to step.
    given = {"mode": "test", "record_video": True}
    opened = Run.open(trained)
    saved = evaluate.SavedPolicy(opened, opened.config.for_test(given), 1)
    assert saved.restore() == 400
    (kernel,) = (v for v in saved.view.q_head.trainable_variables if v.shape == [4, 4, 4, 32])
    name = next(name for name in _last_deconvolution(trained) if "_optimiser" not in name)
    np.testing.assert_array_equal(kernel, _last_deconvolution(trained)[name])

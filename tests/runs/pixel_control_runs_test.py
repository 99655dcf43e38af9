"""A whole run with pixel control: trained, tested and filmed."""

import json
from pathlib import Path

import av
import numpy as np

from scalable_agent_popart.evaluation import evaluate
from scalable_agent_popart.runs.run import Run
from tests.fakes.main_program import run
from tests.fakes.programs import metrics
from tests.runs.population_runs_test import read_checkpoint

_TINY = {"level_name": "cluttered_catch", "pixel_control": True, "use_popart": True}
_TINY |= {"use_lstm": True, "num_actors": 2, "batch_size": 2, "unroll_length": 10}


def test_an_agent_is_trained_tested_and_filmed_with_maps_next_to_the_picture(
    tmp_path: Path,
) -> None:
    run(**_TINY, total_environment_frames=400, logdir=str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["agent"] == "Pixel-PopArt-IMPALA"
    assert all(line["pixel_control_loss"] > 0 for line in metrics(tmp_path))
    saved = read_checkpoint(tmp_path / "checkpoints")
    kernels = {name: v for name, v in saved.items() if np.shape(v) == (4, 4, 4, 32)}
    assert len(kernels) == 3  # The optimiser has two variables for the head's last kernel.

    run(mode="test", logdir=str(tmp_path), test_num_episodes=3, record_video=True)
    with av.open(str(tmp_path / "videos" / "cluttered_catch.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    height, width, _ = frames[0].shape
    assert width > 2.5 * height  # The picture and both maps.
    change, max_q = (np.array(frames)[:, :, -width // 3 * k :][:, :, : width // 4] for k in (2, 1))
    for maps in (change, max_q):
        assert maps[1:].std(axis=0).max() > 1  # They change from step to step.
    given = {"mode": "test", "record_video": True}
    opened = Run.open(tmp_path)
    policy = evaluate.SavedPolicy(opened, opened.config.for_test(given), 1)
    assert policy.restore() == 400
    kernel = next(v for v in policy.view.q_head.trainable_variables if v.shape == [4, 4, 4, 32])
    name = next(name for name in kernels if "_optimiser" not in name)
    np.testing.assert_array_equal(kernel, kernels[name])

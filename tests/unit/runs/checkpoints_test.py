"""Checkpoints bring back every variable; an interrupted write harms none."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.errors import FAILS_AGAIN, UserError
from scalable_agent_popart.runs.checkpoints import Checkpoints, saved_frames
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.system.program import exit_code


@pytest.fixture
def learner() -> tf.train.Checkpoint:
    """Two variables of a learner."""
    frames, num_updates = (tf.Variable(0, dtype=tf.int64) for _ in range(2))
    return tf.train.Checkpoint(frames=frames, num_updates=num_updates)


def _save(directory: Path, learner: tf.train.Checkpoint, *frames: int) -> Checkpoints:
    """Saves a checkpoint at each of these frames."""
    checkpoints = Checkpoints(directory, learner=learner)
    for number in frames:
        learner.frames.assign(number)
        checkpoints.save()
    return checkpoints


def _restored_frames(checkpoints: Checkpoints, learner: tf.train.Checkpoint) -> int:
    learner.frames.assign(-1)
    assert checkpoints.restore()
    return int(learner.frames)


def test_weights_statistics_optimiser_and_frames_come_back(tmp_path: Path) -> None:
    # A mean square from zero counts its steps.
    flags = {"level_name": "cluttered_catch", "pixel_control": True, "initial_mean_square": 0}
    config = Config.from_flags({**flags, "use_popart": True, "use_lstm": True, "batch_size": 2})
    learner = factory.make_learner(config, factory.make_rollout_spec(config))
    for i, variable in enumerate(learner.variables):
        values = np.arange(variable.shape.num_elements()) % 13 + i + 1
        variable.assign(tf.cast(tf.reshape(values, variable.shape), variable.dtype))
    names = [variable.name for variable in learner.variables]
    for part in ("shift", "second_moment", "mean_square", "num_steps", "momentum", "q_head"):
        assert any(part in name for name in names), part
    before = [variable.numpy() for variable in learner.variables]
    assert not Checkpoints(tmp_path / "here", learner=learner).restore(), "there is none yet"
    Checkpoints(tmp_path / "here", learner=learner).save()
    (tmp_path / "here").rename(tmp_path / "moved")
    for variable in learner.variables:
        variable.assign(tf.zeros_like(variable))
    assert Checkpoints(tmp_path / "moved", learner=learner).restore()
    for variable, value in zip(learner.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value, err_msg=variable.name)


def test_the_newest_few_are_kept_also_of_an_older_version_and_copies_of_other_names(
    tmp_path: Path, learner: tf.train.Checkpoint
) -> None:
    """TensorFlow's manager wrote the older ones, and named the newest in a file."""
    older = tf.train.Checkpoint(learner=learner)
    manager = tf.train.CheckpointManager(older, str(tmp_path), 3, checkpoint_name="ckpt")
    for _ in range(9):
        manager.save()
    copy = tmp_path / "ckpt-3-backup.index"
    copy.touch()
    checkpoints = _save(tmp_path, learner, 5, 6)
    assert copy.exists()
    names = sorted(path.stem for path in tmp_path.glob("ckpt-*.*") if path != copy)
    assert names == ["ckpt-10", "ckpt-10", "ckpt-11", "ckpt-11", "ckpt-9", "ckpt-9"]
    assert _restored_frames(checkpoints, learner) == saved_frames(tmp_path) == 6
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-11")


def test_of_two_at_the_same_frames_the_newer_is_restored(
    tmp_path: Path, learner: tf.train.Checkpoint
) -> None:
    checkpoints = Checkpoints(tmp_path, learner=learner)
    for updates in range(10):
        learner.num_updates.assign(updates)
        checkpoints.save()
    assert checkpoints.restore(0)
    assert int(learner.num_updates) == 9


@pytest.mark.parametrize("ending", [".data-00000-of-00001", ".index"])
def test_an_interrupted_write_leaves_the_one_before_it_in_force(
    tmp_path: Path, learner: tf.train.Checkpoint, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    def rename(file: Path, target: Path) -> None:
        if file.suffix == ending:  # The disk is full, or the process is killed.
            raise OSError(errno.ENOSPC, "full")
        os.rename(file, target)

    checkpoints = _save(tmp_path, learner, 7)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(UserError, match="no checkpoint could be written") as error:
            checkpoints.save()
    assert exit_code(error.value) != FAILS_AGAIN, "there may be room later"
    assert _restored_frames(checkpoints, learner) == saved_frames(tmp_path) == 7
    (tmp_path / f"unfinished{ending}").write_bytes(b"half a")
    _save(tmp_path, learner, 8)
    assert _restored_frames(checkpoints, learner) == 8


def test_other_variables_are_refused(tmp_path: Path, learner: tf.train.Checkpoint) -> None:
    Checkpoints(tmp_path, learner=learner, count=tf.Variable(1)).save()
    for objects in (
        {"learner": learner, "another": tf.Variable(1)},
        {"learner": learner, "count": tf.Variable([1, 1])},
    ):
        with pytest.raises(UserError, match="another program or version"):
            Checkpoints(tmp_path, **objects).restore()

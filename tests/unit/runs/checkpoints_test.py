"""Checkpoints bring back every variable; missing and damaged ones are told from a new run."""

import errno
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.errors import FAILS_AGAIN, UserError, exit_code
from scalable_agent_popart.learning.learner import Learner
from scalable_agent_popart.runs.checkpoints import Checkpoints, restore_at, saved_frames
from scalable_agent_popart.runs.config import Config


def make_learner(**given: object) -> Learner:
    """A small learner with a value of its own in every variable."""
    config = Config.from_flags({"level_name": "catch5", "batch_size": 2, **given})
    learner = factory.make_learner(config, factory.make_rollout_spec(config))
    for i, variable in enumerate(learner.variables):
        values = np.arange(variable.shape.num_elements()) % 13 + i + 1
        variable.assign(tf.cast(tf.reshape(values, variable.shape), variable.dtype))
    return learner


@pytest.fixture(scope="module")
def learner() -> Learner:
    return make_learner()


def spoil(learner: Learner) -> None:
    for variable in learner.variables:
        variable.assign(tf.zeros_like(variable))


def test_weights_statistics_optimiser_and_frames_come_back(tmp_path: Path) -> None:
    learner = make_learner(use_popart=True, use_lstm=True)
    names = [variable.name for variable in learner.variables]
    for part in ("shift", "second_moment", "mean_square", "momentum", "frames", "num_updates"):
        assert any(part in name for name in names), part
    before = [variable.numpy() for variable in learner.variables]
    assert not Checkpoints(tmp_path / "here", learner=learner).restore(), "there is none yet"
    Checkpoints(tmp_path / "here", learner=learner).save()
    (tmp_path / "here").rename(tmp_path / "moved")
    spoil(learner)
    # A tester reads the policy alone.
    saved = tf.train.Checkpoint(agent=learner.agent)
    assert Checkpoints(tmp_path / "moved", learner=saved).restore()
    assert not np.any(learner.head.weights)
    assert np.any(learner.agent.trainable_variables[0])
    assert Checkpoints(tmp_path / "moved", learner=learner).restore()
    for variable, value in zip(learner.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value, err_msg=variable.name)


def test_the_newest_few_are_kept(tmp_path: Path, learner: Learner) -> None:
    checkpoints = Checkpoints(tmp_path, learner=learner)
    for frames in range(5):
        learner.frames.assign(frames)
        checkpoints.save()
    assert sorted(p.stem for p in tmp_path.glob("*.index")) == ["ckpt-3", "ckpt-4", "ckpt-5"]
    spoil(learner)
    assert Checkpoints(tmp_path, learner=learner).restore()
    assert int(learner.frames) == 4


def test_a_run_whose_newest_was_deleted_has_the_frames_that_it_resumes_from(
    tmp_path: Path, learner: Learner
) -> None:
    checkpoints = Checkpoints(tmp_path, learner=learner)
    for frames in (7, 8):
        learner.frames.assign(frames)
        checkpoints.save()
    for path in tmp_path.glob("ckpt-2.*"):  # Restoring it advises this if it is damaged.
        path.unlink()
    assert checkpoints.restore()
    assert saved_frames(tmp_path) == int(learner.frames) == 7


def test_a_foreign_file_of_names_reaches_no_checkpoints_of_other_runs(
    tmp_path: Path, learner: Learner
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "run"
    for directory, frames in ((path, (1, 2)), (victim, (3, 4, 5))):
        checkpoints = Checkpoints(directory, learner=learner)
        for number in frames:
            learner.frames.assign(number)
            checkpoints.save()
    before = {file: file.read_bytes() for file in victim.iterdir()}
    entry = 'all_model_checkpoint_paths: "{}" all_model_checkpoint_timestamps: 9e9\n'
    named = ["../victim/ckpt-1", f"{victim}/ckpt-2", "../v*/ckpt-?", "ckpt-*", f"{victim}/ckpt-3"]
    oldest, newest = "".join(map(entry.format, named[:4])), entry.format(named[4])
    state = path / "checkpoint"
    state.write_text(oldest + state.read_text() + newest)
    assert saved_frames(path) == 2
    resumed = Checkpoints(path, learner=learner)
    assert resumed.restore()
    assert int(learner.frames) == 2
    for _ in range(3):
        resumed.save()
    assert {file: file.read_bytes() for file in victim.iterdir()} == before
    assert sorted(file.stem for file in path.glob("*.index")) == ["ckpt-3", "ckpt-4", "ckpt-5"]


def test_of_two_at_the_same_frames_the_newer_is_restored(
    tmp_path: Path, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, learner=learner)
    for updates in range(10):
        learner.frames.assign(7)
        learner.num_updates.assign(updates)
        checkpoints.save()
    names = ["ckpt-10.index", "ckpt-9.index"]  # Folders list their files in any order.
    monkeypatch.setattr(Path, "glob", lambda *_: [tmp_path / name for name in names])
    restore_at(tmp_path, 7, learner=learner)
    assert int(learner.num_updates) == 9


def test_an_interrupted_write_leaves_the_one_before_it_in_force(
    tmp_path: Path, learner: Learner
) -> None:
    """A killed process leaves parts of the next checkpoint, not yet named."""
    learner.frames.assign(7)
    Checkpoints(tmp_path, learner=learner).save()
    for name in ("ckpt-2.data-00000-of-00001", "ckpt-2.index", "checkpoint.tmp123"):
        (tmp_path / name).write_bytes(b"half a")
        spoil(learner)
        assert Checkpoints(tmp_path, learner=learner).restore()
        assert int(learner.frames) == 7
    learner.frames.assign(8)
    again = Checkpoints(tmp_path, learner=learner)
    again.save()
    spoil(learner)
    assert again.restore()
    assert int(learner.frames) == 8


def test_lost_checkpoints_are_not_taken_for_a_new_run(tmp_path: Path, learner: Learner) -> None:
    checkpoints = Checkpoints(tmp_path, learner=learner)
    checkpoints.save()
    checkpoints.save()
    state = (tmp_path / "checkpoint").read_bytes()
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(UserError, match="names the newest checkpoint"):
        Checkpoints(tmp_path, learner=learner).restore()
    for damaged in (b"", b"\xff"):  # A machine that lost its power may leave an empty file.
        (tmp_path / "checkpoint").write_bytes(damaged)
        for read in (checkpoints.restore, lambda: saved_frames(tmp_path)):
            with pytest.raises(UserError, match=r"checkpoint is damaged.*give another --logdir"):
                read()
    (tmp_path / "checkpoint").write_bytes(state)
    for path in tmp_path.glob("ckpt-*"):
        path.unlink()
    with pytest.raises(UserError, match="are gone"):
        Checkpoints(tmp_path, learner=learner).restore()


def test_other_variables_missing_ones_and_places_that_cannot_be_written_are_refused(
    tmp_path: Path, learner: Learner
) -> None:
    Checkpoints(tmp_path, learner=learner, count=tf.Variable(1)).save()
    for objects in (
        {"learner": make_learner(use_popart=True)},
        {"learner": learner, "another": tf.Variable(1)},
        {"learner": learner, "count": tf.Variable(1.0)},
    ):
        with pytest.raises(UserError, match="another program or version"):
            Checkpoints(tmp_path, **objects).restore()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="no checkpoint could be written") as error:
        Checkpoints(tmp_path / "file", learner=learner).save()
    assert exit_code(error.value) != FAILS_AGAIN, "there may be room meanwhile"


def test_a_file_system_that_fails_is_no_damage(
    tmp_path: Path, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpoints(tmp_path, learner=learner).save()
    # TensorFlow reports ESTALE without its number, so only the text shows that it may pass.
    error = tf.errors.OpError(None, None, f"{tmp_path}/{300 * 'x'}; Stale file handle", 2)
    with monkeypatch.context() as patched:
        patched.setattr(tf.train.Checkpoint, "restore", mock.Mock(side_effect=error))
        with pytest.raises(UserError, match=r"cannot be read .*repeat") as raised:
            Checkpoints(tmp_path, learner=learner).restore()
    assert exit_code(raised.value) != FAILS_AGAIN
    monkeypatch.setattr(Path, "read_bytes", mock.Mock(side_effect=OSError(errno.EIO, "away")))
    with pytest.raises(UserError, match=r"checkpoint cannot be read \(away\)") as raised:
        Checkpoints(tmp_path, learner=learner).restore()
    assert exit_code(raised.value) != FAILS_AGAIN


def test_only_a_damaged_checkpoint_that_has_another_before_it_may_be_deleted(
    tmp_path: Path, learner: Learner
) -> None:
    checkpoints = Checkpoints(tmp_path, learner=learner)
    checkpoints.save()
    (tmp_path / "ckpt-1.index").write_bytes(b"")
    with pytest.raises(UserError, match=r"damaged.*give another --logdir"):
        checkpoints.restore()
    (tmp_path / "ckpt-1.index").unlink()
    checkpoints.save()
    (tmp_path / "ckpt-2.index").write_bytes(b"")
    with pytest.raises(UserError, match=r"damaged.*delete .*ckpt-2.* to resume from ckpt-1"):
        checkpoints.restore()

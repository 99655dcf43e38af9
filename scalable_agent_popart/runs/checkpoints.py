"""Checkpoints: all that a killed run needs to resume as if nothing had happened."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import tensorflow as tf

from scalable_agent_popart.errors import ANOTHER_LOGDIR, PassingError, UnsavedError, UserError
from scalable_agent_popart.runs.directory import explained, write_atomically

_KEPT = 3
_NAME = re.compile(r"ckpt-\d+", re.ASCII)
# TensorFlow loses the number of a file system's error, and its message ends with one of these. Its
# readers' other errors mean that a checkpoint's content is damaged or a file is missing.
_FILE_SYSTEM_ERRORS = {os.strerror(number) for number in errno.errorcode.keys() - {errno.ENOENT}}
_FRAMES = "learner/frames/.ATTRIBUTES/VARIABLE_VALUE"


class Checkpoints:
    """The newest checkpoints of one run.

    TensorFlow writes each file under another name first, and last the one that names the newest
    checkpoint. So a write that is cut off leaves the checkpoint before it in force.
    """

    def __init__(self, directory: Path, **objects: Any):
        """Names the trackable objects to save; a reader may name fewer than the writer."""
        self._directory = directory
        self._checkpoint = tf.train.Checkpoint(**objects)
        self._manager: tf.train.CheckpointManager | None = None

    def restore(self) -> bool:
        """Returns whether it restored the newest checkpoint; raises UserError if that is bad."""
        checkpoints = self._newest_first()
        if not checkpoints:
            return False
        newest, *older = checkpoints
        delete = f"delete {newest}.* to resume from {Path(older[0]).name}" if older else ""
        _restore(self._checkpoint, newest, delete or f"give {ANOTHER_LOGDIR}")
        return True

    def save(self) -> str:
        """Writes a checkpoint and removes the oldest; returns its path or raises UnsavedError."""
        try:
            if self._manager is None:
                self._keep_plain_names()
                self._manager = tf.train.CheckpointManager(
                    self._checkpoint, str(self._directory), _KEPT, checkpoint_name="ckpt"
                )
            return self._manager.save()
        except (OSError, tf.errors.OpError) as error:
            message = (
                f"no checkpoint could be written to {self._directory} ({_message(error)[:300]})"
            )
            advice = "make room, and the same command resumes from the last one"
            raise UnsavedError(f"{message}; {advice}") from error

    def _keep_plain_names(self) -> None:
        """Rewrites the file of names, by which TensorFlow's manager deletes old checkpoints.

        Another user's file may name paths of other runs, and patterns.
        """
        if names := [Path(path).name for path in reversed(self._newest_first())]:
            lines = [f'model_checkpoint_path: "{names[-1]}"']
            lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
            # The manager would forget names without times, and never delete their checkpoints.
            lines += [f"all_model_checkpoint_timestamps: {i + 1}" for i in range(len(names))]
            write_atomically(self._directory / "checkpoint", "\n".join(lines) + "\n")

    def _newest_first(self) -> list[str]:
        """Returns the paths of the checkpoints of which any file is left."""
        names_newest, names = self._directory / "checkpoint", _read_names(self._directory)
        if names is None:
            # The first one alone was cut off before it was named.
            if any(path.stem != "ckpt-1" for path in self._directory.glob("ckpt-*.index")):
                message = "which names the newest checkpoint, is damaged or missing"
                raise UserError(f"{names_newest}, {message}; give {ANOTHER_LOGDIR}")
            return []
        left = [str(self._directory / n) for n in names if any(self._directory.glob(f"{n}.*"))]
        if not left:
            advice = f"bring them back or give {ANOTHER_LOGDIR}"
            raise UserError(f"the checkpoints that {names_newest} names are gone; {advice}")
        return left


def _read_names(directory: Path) -> list[str] | None:
    """Reads the checkpoints' names, newest first; None if nothing has them; raises UserError."""
    path = directory / "checkpoint"
    with explained(path, f"give {ANOTHER_LOGDIR}"):
        path.read_bytes()  # TensorFlow would take an unreadable file for a missing one.
        if state := tf.train.get_checkpoint_state(str(directory)):
            names = [Path(path).name for path in reversed(state.all_model_checkpoint_paths)]
            return list(filter(_NAME.fullmatch, names))
    return None


def restore_at(directory: Path, frames: int | None, **objects: Any) -> None:
    """Restores the newest checkpoint, or the one at so many `frames`; raises UserError."""
    if frames is None:
        if not Checkpoints(directory, **objects).restore():
            raise UserError(f"there is no checkpoint in {directory}; train first")
        return
    paths = [str(path.with_suffix("")) for path in directory.glob("ckpt-*.index")]
    # A comparison in a population leaves two at the same frames, of which the newer counts.
    kept = {_frames_of(path): path for path in sorted(paths, key=lambda path: (len(path), path))}
    if frames not in kept:
        known = ", ".join(f"{own:,}" for own in sorted(own for own in kept if own is not None))
        message = f"there is no checkpoint at {frames:,} frames in {directory}"
        raise UserError(f"{message}; there are those at {known or 'none'}")
    load(kept[frames], **objects)


def load(checkpoint: str, **objects: Any) -> None:
    """Restores objects by name from a checkpoint of another run; raises as `restore` does."""
    _restore(tf.train.Checkpoint(**objects), checkpoint, "nothing of it is taken")


def saved_frames(directory: Path) -> int | None:
    """Returns a run's environment frames at its newest checkpoint, or None; raises UserError."""
    for name in _read_names(directory) or ():
        if os.path.exists(directory / f"{name}.index"):
            return _frames_of(str(directory / name))
    return None


def _frames_of(checkpoint: str) -> int | None:
    try:
        return int(tf.train.load_checkpoint(checkpoint).get_tensor(_FRAMES))
    except (tf.errors.OpError, ValueError):  # It has just been removed.
        return None


def _restore(objects: tf.train.Checkpoint, checkpoint: str, advice: str) -> None:
    try:
        objects.restore(checkpoint).expect_partial().assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        message = f"is of another program or version ({_message(error)[:300]})"
        raise UserError(f"checkpoint {checkpoint} {message}; give {ANOTHER_LOGDIR}") from error
    except Exception as error:  # Damaged bytes can surface anywhere in the reader.
        text = _message(error)
        if text.rpartition("; ")[2] in _FILE_SYSTEM_ERRORS:  # It may pass.
            message = f"cannot be read ({text[:300]}); fix that and repeat"
            raise PassingError(f"checkpoint {checkpoint} {message}") from error
        message = f"is damaged ({text[:300]}); {advice}"
        raise UserError(f"checkpoint {checkpoint} {message}") from error


def _message(error: Exception) -> str:
    """Returns an error's first line, without TensorFlow's names of graph nodes."""
    text = re.sub(r"\{\{.*?\}\} ?| \[Op:.*", "", str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__

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
_INDEX = re.compile(r"ckpt-\d+\.index", re.ASCII)
# TensorFlow loses the number of a file system's error, and its message ends with one of these. Its
# readers' other errors mean that a checkpoint's content is damaged or a file is missing.
_FILE_SYSTEM_ERRORS = {os.strerror(number) for number in errno.errorcode.keys() - {errno.ENOENT}}
_FRAMES = "learner/frames/.ATTRIBUTES/VARIABLE_VALUE"


class Checkpoints:
    """The newest checkpoints of one run: `ckpt-1`, `ckpt-2` and so on.

    A checkpoint exists once its index has its name, which is the last step of writing. So a write
    that is cut off leaves the checkpoint before it in force.
    """

    def __init__(self, directory: Path, **objects: Any):
        """Names the trackable objects to save; a reader may name fewer than the writer."""
        self._directory = directory
        self._checkpoint = tf.train.Checkpoint(**objects)

    def restore(self, frames: int | None = None) -> bool:
        """Returns whether it restored the newest checkpoint, or the one at so many `frames`.

        Raises UserError if the checkpoint is bad, or if there is none at these frames.
        """
        checkpoints = _newest_first(self._directory)
        if frames is not None:
            # A comparison in a population leaves two at the same frames, of which the newer counts.
            by_frames = {_frames_of(path): path for path in reversed(checkpoints)}
            if frames not in by_frames:
                known = ", ".join(f"{each:,}" for each in by_frames if each is not None)
                message = f"there is no checkpoint at {frames:,} frames in {self._directory}"
                raise UserError(f"{message}; there are those at {known or 'none'}")
            checkpoints = [by_frames[frames]]
        if checkpoints:
            newest, *older = checkpoints
            delete = f"delete {newest}.* to resume from {older[0].name}" if older else ""
            _restore(self._checkpoint, newest, delete or f"give {ANOTHER_LOGDIR}")
        return bool(checkpoints)

    def save(self) -> str:
        """Writes a checkpoint and removes the oldest; returns its path or raises UnsavedError."""
        older = _newest_first(self._directory)
        path = self._directory / f"ckpt-{_number(older[0]) + 1 if older else 1}"
        try:
            self._checkpoint.write(str(self._directory / "unfinished"))
            for file in sorted(self._directory.glob("unfinished.*")):  # The index is the last.
                file.rename(path.with_suffix(file.suffix))
            # TensorFlow's tools look up the newest checkpoint there.
            newest = f'model_checkpoint_path: "{path.name}"\n'
            write_atomically(self._directory / "checkpoint", newest)
            for old in older[_KEPT - 1 :]:
                for file in sorted(self._directory.glob(f"{old.name}.*"), reverse=True):
                    file.unlink(missing_ok=True)
        except (OSError, tf.errors.OpError) as error:
            message = f"no checkpoint could be written to {self._directory}"
            advice = "make room, and the same command resumes from the last one"
            raise UnsavedError(f"{message} ({_message(error)[:300]}); {advice}") from error
        return str(path)


def _newest_first(directory: Path) -> list[Path]:
    """Lists the paths of checkpoints, without the files' endings."""
    paths: list[Path] = []
    with explained(directory):  # Users may keep copies of other names there.
        paths = [p.with_suffix("") for p in directory.iterdir() if _INDEX.fullmatch(p.name)]
    return sorted(paths, key=_number, reverse=True)


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("ckpt-"))


def load(checkpoint: str | Path, **objects: Any) -> None:
    """Restores objects by name from a checkpoint of another run; raises as `restore` does."""
    _restore(tf.train.Checkpoint(**objects), checkpoint, "nothing of it is taken")


def saved_frames(directory: Path) -> int | None:
    """Returns a run's environment frames at its newest checkpoint, or None; raises UserError."""
    checkpoints = _newest_first(directory)
    return _frames_of(checkpoints[0]) if checkpoints else None


def _frames_of(checkpoint: Path) -> int | None:
    try:
        return int(tf.train.load_checkpoint(str(checkpoint)).get_tensor(_FRAMES))
    except (tf.errors.OpError, ValueError):  # A writer has just removed the file.
        return None


def _restore(objects: tf.train.Checkpoint, checkpoint: str | Path, advice: str) -> None:
    try:
        objects.read(str(checkpoint)).expect_partial().assert_existing_objects_matched()
    except Exception as error:  # Damaged bytes can surface anywhere in the reader.
        text, kind, problem = _message(error), UserError, "is damaged"
        if isinstance(error, AssertionError | ValueError | tf.errors.InvalidArgumentError):
            problem, advice = "is of another program or version", f"give {ANOTHER_LOGDIR}"
        elif text.rpartition("; ")[2] in _FILE_SYSTEM_ERRORS:
            kind, problem, advice = PassingError, "cannot be read", "fix that and repeat"
        raise kind(f"checkpoint {checkpoint} {problem} ({text[:300]}); {advice}") from error


def _message(error: Exception) -> str:
    """Returns an error's first line, without TensorFlow's names of graph nodes."""
    text = re.sub(r"\{\{.*?\}\} ?| \[Op:.*", "", str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__

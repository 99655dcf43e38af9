"""A run as others open it, and as training begins it: whether its directory may serve.

It knows TensorFlow only once a checkpoint is asked for, since reports do without.
"""

import contextlib
import importlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable_agent_popart.errors import ANOTHER_LOGDIR, UserError
from scalable_agent_popart.runs.config import SAME, Config, describe_differences, refuse_pattern
from scalable_agent_popart.runs.directory import (
    Record,
    RunDirectory,
    explained,
    is_population,
    is_run,
    lock,
    runs_in,
)
from scalable_agent_popart.runs.json_lines import read_lines
from scalable_agent_popart.settings import Use

if TYPE_CHECKING:
    from scalable_agent_popart.runs.checkpoints import Checkpoints

_MAX_NEARBY = 3  # A message names so many runs.


@dataclass(frozen=True)
class Run:
    """A run: its files, and its record as of the last start."""

    directory: RunDirectory
    record: Record

    @classmethod
    def find(cls, logdir: str | Path) -> "Run | None":
        """Returns the run in a directory, if there is one; raises UserError if it is unreadable."""
        if is_population(logdir):
            message = f"{logdir} holds a population, not a run: give one of its members, such as"
            raise UserError(f"{message} --logdir={Path(logdir) / 'member-00'}")
        directory = RunDirectory(logdir)
        record = directory.read_record()
        return cls(directory, record) if record else None

    @classmethod
    def open(cls, logdir: str | Path) -> "Run":
        """Returns as `find`; raises UserError, which names runs nearby, if there is none."""
        if run := cls.find(logdir):
            return run
        path = Path(logdir)
        parent = os.path.normpath(path / os.pardir)
        nearby = [parent] if is_run(parent) else runs_in(str(path))
        advice = f"give {' or '.join(nearby[:_MAX_NEARBY])}" if nearby else "train first"
        raise UserError(f"there is no run in {path}; {advice}")

    @classmethod
    def open_initial(cls, config: Config) -> "Run":
        """Opens the run of `--init_from`.

        Raises UserError if there is none, if it has no checkpoint, or if its network differs.
        """
        refuse_pattern(config.init_from, "init_from")
        try:
            run = cls.open(config.init_from)
        except UserError as error:
            raise UserError(f"--init_from: {error}") from error
        if not run.directory.has_checkpoint:
            raise UserError(f"--init_from={config.init_from} holds a run without a checkpoint")
        if differences := config.differences(run.config, Use.TORSO):
            message = f"--init_from={config.init_from} differs: {describe_differences(differences)}"
            raise UserError(f"{message}; {SAME}, or another run's directory")
        return run

    @classmethod
    @contextlib.contextmanager
    def begin(cls, config: Config) -> Iterator["Run"]:
        """Locks a run's directory to train it; raises InUseError, or UserError as `check`."""
        cls.check(config)
        with lock(Path(config.logdir)):
            yield cls.check(config)  # Another process may have trained it before the lock was free.

    @classmethod
    def check(cls, config: Config) -> "Run":
        """Returns the run that `config` trains, new or not, or raises UserError; writes nothing."""
        run = cls.find(config.logdir)
        directory = run.directory if run else RunDirectory(config.logdir)
        begins, path = not directory.has_checkpoint, directory.path
        if config.init_from and begins:
            cls.open_initial(config)
        if run is None:
            logs = directory.metrics, directory.episodes, directory.checkpoints
            for file in (*logs, *path.glob("events.out.tfevents.*")):
                if file.exists():
                    message = f"{path} holds {file.name} but no config.json"
                    raise UserError(f"{message}, so its origin is unknown; give {ANOTHER_LOGDIR}")
        # Also before the first checkpoint, a directory belongs to the run that it was made for.
        elif differences := config.differences(run.config, Use.RESUME):
            message = f"{path} holds another run: {describe_differences(differences)}"
            raise UserError(f"{message}; {SAME} or {ANOTHER_LOGDIR}")
        changes = config.differences(run.config, Use.RESUME_UNASKED) if run else {}
        if changes and not config.allow_changes and not begins:
            flags = describe_differences(changes)
            message = f"the run in {path} was last trained with other flags: {flags}"
            advice = f"{ANOTHER_LOGDIR}, or --allow_changes to resume with these"
            raise UserError(f"{message}; give the same flags, {advice}")
        lines: list[Any] = []
        if begins:
            with explained(directory.metrics):
                lines = list(itertools.islice(read_lines(directory.metrics), 2))
        if len(lines) == 2:  # A checkpoint comes before the second line.
            message = f"{path} holds logs but no checkpoints, so training would begin again"
            advice = f"bring the checkpoints back or give {ANOTHER_LOGDIR}"
            raise UserError(f"{message} and overwrite them; {advice}")
        nearest = next(p for p in (path, *path.absolute().parents) if os.path.exists(p))
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"--logdir={path} cannot be written to; allow it or give another")
        return run or cls(directory, Record(config))

    @property
    def config(self) -> Config:
        return self.record.config

    def checkpoints(self, **objects: Any) -> "Checkpoints":
        """Returns the run's checkpoints of these trackable objects, by their names there."""
        module = importlib.import_module("scalable_agent_popart.runs.checkpoints")
        checkpoints: Checkpoints = module.Checkpoints(self.directory.checkpoints, **objects)
        return checkpoints

    def restore(self, frames: int | None = None, **objects: Any) -> None:
        """Restores the newest checkpoint, or the one at so many `frames`; raises UserError."""
        if not self.checkpoints(**objects).restore(frames):
            raise UserError(f"there is no checkpoint in {self.directory.checkpoints}; train first")

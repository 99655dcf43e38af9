"""A run as others open it, and as training begins it: whether its directory may serve."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scalable_agent_popart.errors import ANOTHER_LOGDIR, UserError
from scalable_agent_popart.runs.config import Config, describe_differences, refuse_pattern
from scalable_agent_popart.runs.directory import (
    Record,
    RunDirectory,
    is_population,
    is_run,
    lock,
    runs_in,
)
from scalable_agent_popart.settings import SETTINGS

_MAX_NEARBY = 3  # A message names so many runs.
# All jobs share these settings, which say nothing about the network. Weights fit another network
# only if the other settings are equal that jobs share.
_OTHERS = {"level_name", "unroll_length", "num_action_repeats", "action_set"}
_SAME_NETWORK = [name for name in SETTINGS if SETTINGS[name].shared and name not in _OTHERS]
_SAME_SUITE = ("num_channels", "stacks_frames", "has_instructions")


@dataclass(frozen=True)
class Run:
    """A run that was trained: its files, and its record as of the last start."""

    directory: RunDirectory
    record: Record

    @classmethod
    def open(cls, logdir: str | Path) -> "Run":
        """Opens a run; raises UserError, which names runs nearby, if there is none."""
        _refuse_population(logdir)
        directory = RunDirectory(logdir)
        if (record := directory.read_record()) is not None:
            return cls(directory, record)
        parent = os.path.normpath(directory.path / os.pardir)
        nearby = [parent] if is_run(parent) else runs_in(str(directory.path))
        advice = f"give {' or '.join(nearby[:_MAX_NEARBY])}" if nearby else "train first"
        raise UserError(f"there is no run in {directory.path}; {advice}")

    @property
    def config(self) -> Config:
        return self.record.config


def exists(logdir: str) -> bool:
    """Returns whether there is a run or a population; raises UserError if it cannot be read."""
    return is_population(logdir) or RunDirectory(logdir).read_config() is not None


def resumed(config: Config) -> Config | None:
    """Returns the recorded configuration of the run that a job of `config` resumes, if any.

    Before the run's first checkpoint a learner begins anew, whatever the record says.
    """
    directory = RunDirectory(config.logdir)
    begins = config.job_name == "learner" and not directory.has_checkpoint
    return None if begins else directory.read_config()


@contextlib.contextmanager
def begin(config: Config) -> Iterator[RunDirectory]:
    """Locks a run's directory to train it; raises InUseError, or UserError as `check`."""
    check(config)
    with lock(Path(config.logdir)):
        yield check(config)  # Another process may have trained it before the lock was free.


def check(config: Config) -> RunDirectory:
    """Returns where `config` trains; raises UserError if it cannot. Nothing is written."""
    _refuse_population(config.logdir)
    directory = RunDirectory(config.logdir)
    path, previous = directory.path, directory.read_config()
    begins = not directory.has_checkpoint  # The run has learned nothing yet.
    if config.init_from and begins:
        open_initial(config)
    if previous is not None:
        if differences := config.differences(previous):
            same = "same flags" if differences[0].startswith("--") else "suite as it was"
            message = f"{path} holds another run: {'; '.join(differences)}"
            raise UserError(f"{message}; give the {same} or {ANOTHER_LOGDIR}")
        changes = config.refused_changes(previous)
        if changes and not config.allow_changes and not begins:
            message = f"the run in {path} was last trained with other flags: {'; '.join(changes)}"
            advice = f"{ANOTHER_LOGDIR}, or --allow_changes to resume with these"
            raise UserError(f"{message}; give the same flags, {advice}")
    events = path.glob("events.out.tfevents.*")
    for file in (directory.metrics, directory.episodes, directory.checkpoints, *events):
        if previous is None and file.exists():
            message = f"{path} holds {file.name} but no config.json, so its origin is unknown"
            raise UserError(f"{message}; give {ANOTHER_LOGDIR}")
    nearest = next(p for p in (path, *path.absolute().parents) if os.path.exists(p))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"--logdir={path} cannot be written to; allow it or give another")
    return directory


def open_initial(config: Config) -> Run:
    """Opens the run of `--init_from`.

    Raises UserError if there is none, if it has no checkpoint, or if its network differs.
    """
    refuse_pattern(config.init_from, "init_from")
    try:
        run = Run.open(config.init_from)
    except UserError as error:
        raise UserError(f"--init_from: {error}") from error
    if not run.directory.has_checkpoint:
        raise UserError(f"--init_from={config.init_from} holds a run without a checkpoint")
    configs, suites = (run.config, config), (run.config.suite, config.suite)
    values = [(f"--{name}", *(getattr(each, name) for each in configs)) for name in _SAME_NETWORK]
    values += [(name, *(getattr(suite, name) for suite in suites)) for name in _SAME_SUITE]
    if differences := describe_differences(values):
        message = f"--init_from={config.init_from} differs: {'; '.join(differences)}"
        raise UserError(f"{message}; give the same flags, or another run's directory")
    return run


def _refuse_population(path: str | Path) -> None:
    if is_population(path):
        message = f"{path} holds a population, not a run: give one of its members, such as"
        raise UserError(f"{message} --logdir={Path(path) / 'member-00'}")

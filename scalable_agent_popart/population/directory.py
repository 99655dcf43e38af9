"""Files that the members of a population leave for each other.

A population's directory holds `population.json`, the flags that all members share, written by the
first member under `lock`. It also holds the members' run directories, `member-00` and so on. A
member writes only to its own, which also has

  lineage.jsonl             a line at the start, and one for each comparison with another member
  fitness.json              the member's last publication
  snapshots/snapshot-N.*    the checkpoint that earned this fitness, and the one before
  incoming/                 a copy of another member's checkpoint, while it is loaded

Readers never see a part. `fitness.json` is replaced once the snapshot that it names is complete,
and a snapshot is removed only after its successor is in place.
"""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scalable_agent_popart.errors import ANOTHER_LOGDIR, UserError
from scalable_agent_popart.runs.config import SAME, Config, Use, describe_differences
from scalable_agent_popart.runs.directory import (
    POPULATION_FILE,
    RunDirectory,
    explained,
    lock,
    write_atomically,
)
from scalable_agent_popart.runs.json_lines import read_lines
from scalable_agent_popart.runs.run import Run


class Published(NamedTuple):
    """The publication of a member, for others to compare with and to copy."""

    comparison: int  # its number, from 1
    frames: int  # environment frames of the member's run
    fitness: float  # mean capped human-normalised score, in percent
    episodes: int  # number of those that earned the fitness
    checkpoint: str  # path of the weights that earned the fitness, without the files' endings


class Event(NamedTuple):
    """A line of `lineage.jsonl`: the start, or a comparison and its outcome."""

    comparison: int  # its number, from 1; 0 is the start
    frames: int  # environment frames of the member's run
    fitness: float | None  # the member's; None at the start, and if training had diverged
    partner: int | None  # None if no other member had published anything
    partner_fitness: float | None  # the published one; None if it could not be read
    copied: bool  # weights, statistics, optimiser and hyperparameters are the partner's
    source_frames: int | None  # the partner's frames at the copied checkpoint
    hyperparameters: Mapping[str, float]  # by flag, from here on
    started_over: bool = False  # training had diverged, and nobody could be copied

    def describe(self, member: int) -> str:
        """Returns in one line what happened to the member of this number."""
        values = ", ".join(f"{name} {value:.3g}" for name, value in self.hyperparameters.items())
        if not self.comparison:
            return f"member {member} starts with {values}"
        state = "diverged" if self.fitness is None else f"fitness {self.fitness:.1f}"
        if self.started_over:
            other = "starts over"
        elif self.partner is None:
            other = "nobody to compare with"
        elif self.partner_fitness is None:
            other = f"member {self.partner} could not be read"
        else:
            what = "copies" if self.copied else "compared with"
            other = f"{what} member {self.partner} ({self.partner_fitness:.1f})"
        return f"member {member} at {self.frames:,} frames: {state}, {other}; now {values}"


class MemberDirectory(RunDirectory):
    """A member's run directory."""

    def __init__(self, path: str | Path):
        super().__init__(path)
        self.lineage = self.path / "lineage.jsonl"
        self._fitness = self.path / "fitness.json"
        self._snapshots = self.path / "snapshots"
        self._incoming = self.path / "incoming"

    def published(self) -> Published | None:
        """Returns what was published last, if anything; raises UserError if it is damaged."""
        with explained(self._fitness, "delete it, and the member publishes again"):
            record = json.loads(self._fitness.read_text())  # Older ones have more.
            published = Published(**{name: record[name] for name in Published._fields})
            return published._replace(checkpoint=str(self._snapshots / published.checkpoint))
        return None

    def publish(self, record: Published) -> None:
        """Publishes a fitness, with a copy of the checkpoint that earned it."""
        before = self.published()
        in_force = Path(before.checkpoint).name if before else ""
        name = f"snapshot-{record.comparison}"
        if name == in_force:  # The run had returned to an older checkpoint.
            name += "-again"
        _copy(Path(record.checkpoint), self._snapshots / name)
        write_atomically(self._fitness, {**record._asdict(), "checkpoint": name})
        for file in self._snapshots.glob("snapshot-*"):
            if file.stem not in (name, in_force):
                file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def fetch(self, source: Published) -> Iterator[str]:
        """Lends a copy of another's checkpoint; raises FileNotFoundError if it was replaced."""
        checkpoint = self._incoming / "checkpoint"
        try:
            _copy(Path(source.checkpoint), checkpoint)
            yield str(checkpoint)
        except OSError as error:
            if error.errno == errno.ESTALE:  # NFS says so of a file that is gone.
                raise FileNotFoundError(source.checkpoint) from error
            raise
        finally:
            shutil.rmtree(self._incoming, ignore_errors=True)

    def read_lineage(self) -> list[Event]:
        """Reads the whole lines written so far; raises UserError if they are damaged."""
        with explained(self.lineage):
            return [Event(**record) for record in read_lines(self.lineage)]
        return []


class PopulationDirectory:
    """The directory of a population, and the flags that its members share."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._settings = self.path / POPULATION_FILE

    def member(self, number: int) -> MemberDirectory:
        return MemberDirectory(self.path / f"member-{number:02d}")

    def read_config(self) -> Config | None:
        """Reads the flags that the population was begun with, as `Run.find`."""
        with explained(self._settings):
            return Config.from_record(json.loads(self._settings.read_text()))
        return None

    def check(self, config: Config) -> Config | None:
        """Returns as `read_config`; raises UserError if members of `config` cannot train here."""
        if (self.path / "config.json").exists():
            raise UserError(f"{self.path} holds a run, not a population; give {ANOTHER_LOGDIR}")
        if config.init_from:
            Run.open_initial(config)
        begun = self.read_config()
        uses = Use.RESUME | Use.RESUME_UNASKED
        if begun and (differences := config.differences(begun, uses)):
            message = f"{self.path} holds another population: {describe_differences(differences)}"
            raise UserError(f"{message}; {SAME} or {ANOTHER_LOGDIR}")
        return begun

    def join(self, config: Config) -> None:
        """Begins the population if no member has; raises as `check`."""
        self.check(config)  # A run's directory would have a lock, too.
        with lock(self.path, waits=True):  # The first one that begins decides.
            if self.check(config) is None:
                write_atomically(self._settings, config.record)

    def member_config(self, config: Config, number: int, start: Mapping[str, Any]) -> Config:
        """Makes a member's configuration from the population's and the member's start."""
        logdir = str(self.member(number).path)
        # Seeds differ also among populations with neighbouring seeds.
        seed = config.seed * config.population_size + number
        flags = {**start, "logdir": logdir, "seed": seed, "pbt_member": number, "pbt_places": 1}
        return dataclasses.replace(config, **flags)


def _copy(checkpoint: Path, target: Path) -> None:
    """Copies a checkpoint's files to disk; raises FileNotFoundError if index or data is missing."""
    files = sorted(checkpoint.parent.glob(f"{checkpoint.name}.*"))
    if not {".index", ".data"} <= {file.suffix.partition("-")[0] for file in files}:
        raise FileNotFoundError(str(checkpoint))
    target.parent.mkdir(exist_ok=True)
    for file in files:
        copy = target.parent / file.name.replace(checkpoint.name, target.name, 1)
        copy.unlink(missing_ok=True)  # A member that is reading it keeps the old content.
        shutil.copyfile(file, copy)
        with open(copy, "rb") as written:
            os.fsync(written.fileno())

"""The run directory of a population's member, with what it publishes and what it takes from others.

An ordinary run directory, in which there are also

  lineage.jsonl             a line at the start, and one for each comparison with another member
  fitness.json              what the member published last
  snapshots/snapshot-N.*    the checkpoint that earned this fitness, and the one before
  diverged                  what the member knows of its divergence, if that ever happened
  incoming/                 a copy of another's checkpoint, while it is loaded

Nobody copies a part of anything: `fitness.json` is replaced as a whole, once all of the snapshot
that it names is there, and a snapshot is removed only after the next one has taken its place.
"""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.directory import DAMAGE, RunDirectory, write_atomically

# How often a file is opened that was replaced meanwhile.
_MOST_LOOKS = 5


@dataclass(frozen=True)
class Published:
    """What others can know, and take, of a member.

    Attributes:
      member: its number.
      comparison: the number, from 1, of the comparison with another member that it was for.
      frames: of the member's run.
      fitness: mean capped human-normalised score, in percent.
      episodes: that it is the score of.
      mean_returns: raw, by task.
      hyperparameters: flag to value.
      checkpoint: of the weights that the fitness is of; without the files' endings.
    """

    member: int
    comparison: int
    frames: int
    fitness: float
    episodes: int
    mean_returns: Mapping[str, float]
    hyperparameters: Mapping[str, float]
    checkpoint: str


class Event(NamedTuple):
    """A line of `lineage.jsonl`: the start, or a comparison and what came of it.

    Attributes:
      comparison: its number, from 1; the start is 0.
      frames: of the member's run.
      fitness: the member's; None at the start, and where training had diverged.
      partner: the member it was compared with; None if no other had published anything.
      partner_fitness: what that had published; None if it could not be read.
      copied: whether weights, statistics, optimiser and hyperparameters are now the partner's.
      source_frames: of the partner's run, at the checkpoint that was copied; else None.
      started_over: whether weights and hyperparameters were drawn anew, since training had diverged
        and nobody could be copied.
      hyperparameters: flag to value, from here on.
    """

    comparison: int
    frames: int
    fitness: float | None
    partner: int | None
    partner_fitness: float | None
    copied: bool
    source_frames: int | None
    hyperparameters: Mapping[str, float]
    started_over: bool = False

    def describe(self, member: int) -> str:
        """What happened, for people."""
        values = ", ".join(f"{name} {value:.3g}" for name, value in self.hyperparameters.items())
        if not self.comparison:
            return f"member {member} starts with {values}"
        own = "diverged" if self.fitness is None else f"fitness {self.fitness:.1f}"
        verb = "copies" if self.copied else "compared with"
        if self.started_over:
            other = "starts over"
        elif self.partner is None:
            other = "nobody to compare with"
        elif self.partner_fitness is None:
            other = f"member {self.partner} could not be read"
        else:
            other = f"{verb} member {self.partner} ({self.partner_fitness:.1f})"
        return f"member {member} at {self.frames:,} frames: {own}, {other}; now {values}"


class MemberDirectory(RunDirectory):
    """A member's run directory.

    Attributes:
      lineage: path of `lineage.jsonl`.
      divergence: path of a file that says that the run diverged, and after how many comparisons;
        with another number it is out of date.
    """

    def __init__(self, path: str):
        super().__init__(path)
        self.lineage = self.path / "lineage.jsonl"
        self.divergence = self.path / "diverged"
        self._fitness = self.path / "fitness.json"
        self._snapshots = self.path / "snapshots"
        self._incoming = self.path / "incoming"

    def published(self) -> Published | None:
        """What the member published last, if anything.

        Raises:
          UserError: if it is damaged.
        """
        try:
            record = Published(**json.loads(read_text(self._fitness)))
            return dataclasses.replace(
                record,
                fitness=float(record.fitness),
                checkpoint=str(self._snapshots / record.checkpoint),
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DAMAGE as error:
            raise UserError(
                f"{self._fitness} is damaged ({error}); delete it, and the member publishes anew"
            ) from error

    def publish(self, record: Published) -> None:
        """Makes a fitness known, with a copy of the checkpoint that earned it.

        Raises:
          FileNotFoundError: if there is no such checkpoint.
        """
        before = self.published()
        in_force = Path(before.checkpoint).name if before else ""
        checkpoint = Path(record.checkpoint)
        name = f"snapshot-{record.comparison}"
        if name == in_force:  # The run went back to an older checkpoint, and comes here again.
            name += "-again"
        self._snapshots.mkdir(exist_ok=True)
        for file in _files(checkpoint):
            target = self._snapshots / file.name.replace(checkpoint.name, name, 1)
            target.unlink(missing_ok=True)  # Of a member that died before it made this known.
            _duplicate(file, target)
        write_atomically(
            self._fitness, dataclasses.asdict(dataclasses.replace(record, checkpoint=name))
        )
        kept = {name, in_force}
        for file in self._snapshots.glob("snapshot-*"):
            if file.stem not in kept:
                file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def fetch(self, source: Published) -> Iterator[str]:
        """A whole copy of another member's checkpoint, for as long as it is entered.

        Raises:
          FileNotFoundError: if it is gone, in favour of a newer one.
        """
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(exist_ok=True)
        checkpoint = Path(source.checkpoint)
        try:
            for file in _files(checkpoint):
                try:
                    shutil.copyfile(file, self._incoming / file.name)
                except OSError as error:
                    if error.errno != errno.ESTALE:
                        raise
                    raise FileNotFoundError(source.checkpoint) from error  # As NFS says it.
            yield str(self._incoming / checkpoint.name)
        finally:
            shutil.rmtree(self._incoming, ignore_errors=True)

    def read_lineage(self) -> list[Event]:
        """The events so far; a line that is being written is left out.

        Raises:
          UserError: if a line is damaged.
        """
        try:
            *lines, _ = read_text(self.lineage).split("\n")
            return [Event(**json.loads(line)) for line in lines]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except DAMAGE as error:
            raise UserError(
                f"{self.lineage} is damaged ({error}); delete the damaged line and repeat"
            ) from error


def _files(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint: its index, and its data.

    Raises:
      FileNotFoundError: if any is missing.
    """
    files = sorted(checkpoint.parent.glob(f"{checkpoint.name}.*"))
    if not {".index", ".data"} <= {file.suffix.partition("-")[0] for file in files}:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(checkpoint))
    return files


def _duplicate(file: Path, target: Path) -> None:
    """A second name for a file that is never written again, or a copy where there are no links."""
    try:
        os.link(file, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(file, target)
    with open(target, "rb") as written:  # Before anything names it.
        os.fsync(written.fileno())


def read_text(path: Path) -> str:
    """A file's content, which others may be replacing."""
    for _ in range(_MOST_LOOKS):
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            if error.errno != errno.ESTALE:  # As NFS says of a file that was replaced.
                raise
    return path.read_text(encoding="utf-8")

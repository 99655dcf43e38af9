"""A run's directory: its files, the record of its configuration, its lock, and how it is found."""

import contextlib
import csv
import dataclasses
import fcntl
import glob
import importlib.metadata
import io
import itertools
import json
import os
import platform
import subprocess
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from scalable_agent_popart.errors import ANOTHER_LOGDIR, InUseError, UserError
from scalable_agent_popart.runs import json_lines
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.json_lines import DAMAGE
from scalable_agent_popart.settings import SETTINGS, Use

POPULATION_FILE = "population.json"  # Only a population has the file; runs are in folders below.
_PACKAGES = ("tensorflow", "dm-sonnet", "tensorflow-probability", "ale-py", "numpy")


@dataclass(frozen=True)
class Change:
    """A change of flags that shape learning, with which a run was resumed."""

    frames: int  # of the run, when it was resumed
    changed: Mapping[str, Sequence[Any]]  # flag to its values before and from then on
    git_revision: str | None = None  # of the program, from then on


@dataclass(frozen=True)
class Record:
    """The contents of a `config.json`, as of the run's last start."""

    config: Config
    history: tuple[Change, ...] = ()  # oldest first
    device: str = ""  # in words; empty if it is not known
    git_revision: str | None = None
    # The whole file, as JSON.
    content: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def flag(self, name: str, frames: int) -> Any:
        """Returns the value that a flag had when the run came to so many frames."""
        for change in self.history:
            if frames <= change.frames and name in change.changed:
                return change.changed[name][0]
        return getattr(self.config, name)


class RunDirectory:
    """Paths and configuration of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"  # The learner's log.
        self.episodes = self.path / "episodes.jsonl"  # A line for each finished game.
        self.checkpoints = self.path / "checkpoints"
        self.evaluation = self.path / "evaluation.json"  # The newest result of `--mode=test`.
        self.evaluations = self.path / "evaluations"  # All results of `--mode=test`.
        self.evaluations_log = self.path / "evaluations.jsonl"  # The results of an evaluator job.
        self.videos = self.path / "videos"  # Films of `--record_video`, see `film_path`.
        self._config_path = self.path / "config.json"

    def read_record(self) -> Record | None:
        """Reads `config.json` if there is one; raises UserError."""
        with explained(self._config_path):
            record = json.loads(self._config_path.read_text())
            history = tuple(Change(**entry) for entry in record.get("history", ()))
            config, device = Config.from_record(record), describe_device(record.get("device"))
            return Record(config, history, device, record.get("git_revision"), record)
        return None

    @property
    def has_checkpoint(self) -> bool:
        """Returns whether the run has learned and saved something."""
        return any(self.checkpoints.glob("ckpt-*.index"))

    def record(
        self, config: Config, frames: int = 0, device: Mapping[str, Any] | None = None
    ) -> None:
        """Writes `config.json`, and in it changes of flags that shape learning from `frames` on."""
        previous, revision = self.read_record(), git_revision()
        history: list[Change] = []
        if previous is not None:
            # With the flags of later changes nothing was learned.
            history = [change for change in previous.history if change.frames < frames]
            flags = {name: previous.flag(name, frames) for name in SETTINGS}
            then = dataclasses.replace(previous.config, **flags)
            if frames and (changed := config.differences(then, Use.HISTORY)):
                history.append(Change(frames, changed, revision))
        versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
        record = {
            "agent": config.agent_name,
            **config.record,
            "versions": {"python": platform.python_version(), **versions},
            "git_revision": revision,
            "device": device,
            "history": [dataclasses.asdict(change) for change in history],
        }
        write_atomically(self._config_path, record)

    def prepare_evaluation(self, films: bool) -> None:
        """Raises UserError if an evaluation, or its films, could not be written."""
        try:
            # Another user may have made the folders.
            for folder in (self.path, self.evaluations, *[self.videos] * films):
                folder.mkdir(exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            message = f"{self.path} cannot be written to ({error}), and a test writes there"
            raise UserError(message) from error

    def write_evaluation(self, summary: Mapping[str, Any]) -> None:
        """Keeps an evaluation as JSON and its returns as CSV, and makes it the newest one."""
        self.evaluations.mkdir(exist_ok=True)
        starts, frames = summary["starts"], summary["frames"]
        paths = (self.evaluations / f"{starts}-{frames}-{i}.json" for i in itertools.count(1))
        kept = next(path for path in paths if not path.exists())
        tasks = {**summary["tasks"], **summary.get("train", {"tasks": {}})["tasks"]}
        writer = csv.writer(table := io.StringIO())
        writer.writerow(("starts", "frames", "level", "episode", "episode_return"))
        for level, result in tasks.items():
            returns = enumerate(result["returns"], start=1)
            writer.writerows((starts, frames, level, i, value) for i, value in returns)
        for path in (kept, self.evaluation):  # Another evaluation may replace the newest meanwhile.
            write_atomically(path.with_suffix(".csv"), table.getvalue())
            write_atomically(path, summary)


def lock(path: Path, waits: bool = False) -> IO[str]:
    """Locks a run or a population until the returned file is closed; raises UserError.

    A lock that another process has is waited for, or otherwise raises InUseError.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = open(path / "lock", "a")  # noqa: SIM115 - the caller closes the file.
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        return file
    except BlockingIOError as error:
        message = f"another process trains in {path}; stop it or give {ANOTHER_LOGDIR}"
        raise InUseError(message) from error
    except OSError as error:  # Lustre has locks only if it is mounted with -o flock.
        message = f"--logdir={path} cannot be written to or locked ({error})"
        raise UserError(message) from error


@contextlib.contextmanager
def explained(path: Path, advice: str = f"give {ANOTHER_LOGDIR}") -> Iterator[None]:
    """Ends a block that reads a missing file, and raises UserError if one cannot be read.

    `system.program.exit_code` sees by the cause whether it may pass. The advice is for damaged
    content.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); fix that and repeat") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except DAMAGE as error:
        raise UserError(f"{path} is damaged or not of this program ({error}); {advice}") from error


def write_atomically(path: Path, content: Any) -> None:
    """Writes text, or a record as JSON, so that readers see all of it or still the old file."""
    text = content if isinstance(content, str) else json_lines.to_json(content, indent=2) + "\n"
    # Several writers have a file each, though processes of two containers may share a number.
    temporary = path.with_suffix(f".{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # The file is left only if a step failed.


def describe_device(device: Mapping[str, Any] | None) -> str:
    """Describes a device of a run's record in words; empty if it is not known."""
    if not device:
        return ""
    cores = f"{device['cores']} core{'s' * (device['cores'] > 1)}"
    return ", ".join([*device["gpus"], f"{cores} of {device['processor']}"])


def git_revision() -> str | None:
    """Describes the checkout that this is part of, whoever owns it; None if it is installed."""
    checkout = Path(__file__).resolve().parents[2]
    # Without the option, git would describe a checkout around the installation.
    command = ["git", f"--git-dir={checkout / '.git'}", f"--work-tree={checkout}", "describe"]
    command += ["--always", "--dirty"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        quiet = subprocess.DEVNULL
        return subprocess.check_output(command, stderr=quiet, text=True, timeout=10).strip()
    return os.environ.get("GIT_REVISION") or None  # An image knows what it was built from.


def film_path(videos: Path, level: str) -> Path:
    """Returns where the film of a level is, in a run's directory of films."""
    return videos / f"{level.replace('/', '_')}.mp4"


def find_runs(names: Iterable[str]) -> Iterator[str]:
    """Yields directories of runs and populations for their names, folders of them, and patterns.

    A path that exists is taken literally, whatever characters it has. A name without any run is
    yielded unchanged, so that the reader complains about it. Raises UserError if nothing has it.
    """
    for name in names:
        paths = [name] if os.path.exists(name) else sorted(glob.glob(name))
        if not paths:
            message = f"--runs names {name}, which does not exist"
            raise UserError(f"{message}; correct it or leave it out")
        yield from [run for path in paths for run in runs_in(path)] or [name]


def runs_in(path: str) -> list[str]:
    """Lists the runs and populations in a folder, or only the path if that is one itself."""
    inside = sorted(glob.glob(os.path.join(glob.escape(path), "*")))
    return [path] if is_run(path) else list(filter(is_run, inside))


def is_run(path: str) -> bool:
    """Returns whether a path is that of a run or of a population."""
    return os.path.exists(f"{path}/config.json") or is_population(path)


def is_population(path: str | Path) -> bool:
    """Returns whether a directory is a population's; not if it cannot be looked into."""
    return os.path.exists(os.path.join(path, POPULATION_FILE))  # `Path.exists` may raise.

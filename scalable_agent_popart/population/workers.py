"""All members of a population on this machine, as many at a time as it has places.

A place is a process that trains members in turns (`Worker.take_turns`). This process starts
the places, starts those again that are killed, and shows how far the population is. Nothing
depends on it: places save and end when it does, and the same command goes on.
"""

import contextlib
import ctypes
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import tqdm

from scalable_agent_popart import errors
from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.system import tensorflow_import
from scalable_agent_popart.system.signals import StopOnSignal, show_saved

_PLACE = "from scalable_agent_popart.population.workers import take_place; take_place()"
_POLL_SECONDS = 0.5
# Deaths of a place in a row, each before it was so old or before any member came further.
_MOST_DEATHS = 8
_HEALTHY_SECONDS = 60.0
# How long places may take to save and end when they are asked to.
_GRACE_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1  # From Linux's prctl.h.
# Bytes at the end of a log that are sure to hold its last line.
_TAIL = 2**17


class _Task(NamedTuple):
    """What a place is told through its standard input."""

    config: Config
    start: Mapping[str, float]
    parent: int  # process
    last_words: int  # file descriptor


class _Place(NamedTuple):
    """A place as its parent sees it."""

    process: subprocess.Popen
    last_words: int  # file descriptor
    since: float
    frames: int  # Of all members together, when it was started.
    quick_deaths: int  # Of the processes before it, in a row.


def train(config: Config, start: Mapping[str, float]) -> int | None:
    """Trains all members to their end.

    Args:
      config: the population's.
      start: flag to value of hyperparameters that are not to be drawn at the start.

    Returns:
      None at the end, or the number of the signal that asked to stop; all is saved either way.

    Raises:
      UserError: if a place fails, or is killed again and again.
    """
    population = PopulationDirectory(config.logdir)
    with StopOnSignal() as stop, _View(config, population) as view:
        with _Places(config, start) as places:
            while places.taken and stop.signal_number is None:
                time.sleep(_POLL_SECONDS)
                view.refresh()
                places.look_after(view.frames)
        view.refresh()
    if stop.signal_number is not None:
        show_saved(view.frames, population.path)
    return stop.signal_number


class _Places:
    """The processes; all of them have ended when it is left."""

    def __init__(self, config: Config, start: Mapping[str, float]):
        self._config = config
        self._start = start
        self._places: list[_Place] = []

    def __enter__(self) -> "_Places":
        try:
            for _ in range(min(self._config.pbt_places, self._config.population_size)):
                self._places.append(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for place in self._places:
            place.process.terminate()
        end = time.monotonic() + _GRACE_SECONDS
        try:
            for place in self._places:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    place.process.wait(max(0.0, end - time.monotonic()))
        finally:  # Also at a second Ctrl-C, which does not wait.
            for place in self._places:
                place.process.kill()
                place.process.wait()
                os.close(place.last_words)

    @property
    def taken(self) -> bool:
        """Whether anyone trains."""
        return bool(self._places)

    def look_after(self, frames: int) -> None:
        """Takes leave of places that are done, and starts those again that were killed.

        Args:
          frames: how far all members together are.
        """
        for place in list(self._places):
            code = place.process.poll()
            if code is None:
                continue
            self._places.remove(place)
            with open(place.last_words, encoding="utf-8") as words:
                message = words.read()
            if message:
                raise UserError(message)
            if code == 0:
                continue
            if code < 0 or code > 128:
                young = time.monotonic() - place.since < _HEALTHY_SECONDS
                in_vain = young or frames <= place.frames
                self._places.append(self._open(frames, place.quick_deaths + 1 if in_vain else 0))
            else:
                raise UserError(f"a process that trains members ended with exit code {code}")

    def _open(self, frames: int = 0, quick_deaths: int = 0) -> _Place:
        if quick_deaths == _MOST_DEATHS:
            raise UserError(
                f"a process that trains members was killed {_MOST_DEATHS} times in a row soon "
                "after its start: is there too little memory for --pbt_places="
                f"{self._config.pbt_places}?"
            )
        ours, theirs = os.pipe()
        path = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(
            [sys.executable, "-c", _PLACE],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=(theirs,),
            start_new_session=True,  # Ctrl-C is for this process, which asks the others.
        )
        os.close(theirs)
        assert process.stdin
        with contextlib.suppress(BrokenPipeError), process.stdin:
            pickle.dump(_Task(self._config, self._start, os.getpid(), theirs), process.stdin)
        return _Place(process, ours, time.monotonic(), frames, quick_deaths)


def take_place() -> None:
    """A place's life: trains members until none is left, a signal comes or its parent is gone."""
    task: _Task = pickle.load(sys.stdin.buffer)
    os.set_inheritable(task.last_words, False)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != task.parent:  # Gone already.
        sys.exit(128 + signal.SIGTERM)
    tensorflow_import.import_quietly()
    from scalable_agent_popart.population.worker import Worker  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415

    hardware.prepare_process()
    try:
        for signal_number in Worker(task.config, task.start).take_turns():
            if signal_number is not None:
                sys.exit(128 + signal_number)
    except Exception as error:
        line = errors.explain(error)
        if line is None:
            raise
        os.write(task.last_words, line.encode())
        sys.exit(1)


class _View:
    """How far the population is, on the terminal.

    Attributes:
      frames: of all members together.
    """

    def __init__(self, config: Config, population: PopulationDirectory):
        numbers = range(config.population_size)
        self._total = config.population_size * config.total_environment_frames
        self._members = {number: population.member(number) for number in numbers}
        self._frames = dict.fromkeys(numbers, 0)
        self._seen = dict.fromkeys(numbers, 0)
        for number, member in self._members.items():
            with contextlib.suppress(UserError, OSError):
                self._seen[number] = len(member.read_lineage())
        self._fitness: dict[int, float] = {}
        self.frames = 0

    def __enter__(self) -> "_View":
        terminal = sys.stderr.isatty()
        self._count()
        self._progress = tqdm.tqdm(
            total=self._total,
            initial=self.frames,
            desc="members start",
            unit=" frames",
            unit_scale=True,
            mininterval=0.5 if terminal else 10.0,
            dynamic_ncols=terminal,
            smoothing=0.05,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.close()

    def refresh(self) -> None:
        """Looks what is new in the members' directories, and passes over what cannot be read."""
        self._count()
        for number, member in self._members.items():
            with contextlib.suppress(UserError, OSError):
                events = member.read_lineage()
                for event in events[self._seen[number] :]:
                    self._progress.write(event.describe(number), file=sys.stderr)
                self._seen[number] = len(events)
                if published := member.published():
                    self._fitness[number] = published.fitness
        if self._fitness:
            best = f"{max(self._fitness.values()):.1f}"
            shown = {"best fitness": best, "of": len(self._fitness)}
            self._progress.set_postfix(shown, refresh=False)
        if self.frames > self._progress.n:
            self._progress.set_description(refresh=False)
        self._progress.update(self.frames - self._progress.n)

    def _count(self) -> None:
        for number, member in self._members.items():
            self._frames[number] = _last_frames(member.metrics) or self._frames[number]
        self.frames = sum(self._frames.values())


def _last_frames(metrics: Path) -> int | None:
    """Environment frames in the last whole line of a log; None if there is none to be read."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            *lines, _ = file.read().split(b"\n")
        return int(json.loads(lines[-1])["frames"])
    except (OSError, ValueError, LookupError, TypeError):
        return None

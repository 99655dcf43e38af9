"""Trains all members of a population on this machine, as many at a time as it has places.

The process that a user starts loads no TensorFlow. It starts workers, processes that train members
(see `member.take_turns`), restarts those that are killed, and shows the population's progress.
Workers save and end when it does, and the same command resumes.
"""

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Mapping

from scalable_agent_popart.errors import FAILS_AGAIN, PassingError, UserError
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.json_lines import last_frames
from scalable_agent_popart.system import child_program, supervisor
from scalable_agent_popart.system.signals import StopOnSignal
from scalable_agent_popart.system.terminal import progress_bar, show_saved

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 120.0  # Workers may take so long to save and end when they are asked to.
_WHAT = "a process that trains members"


def train_population(config: Config, start: Mapping[str, float]) -> int | None:
    """Trains all members to their end, or until a signal asks to stop, whose number it returns.

    `start` gives hyperparameters that are then not sampled. Raises UserError if workers fail, even
    when they save and end.
    """
    workers: list[_Worker] = []
    with StopOnSignal() as stop, contextlib.closing(_Progress(config)) as progress:
        try:
            for _ in range(min(config.pbt_places, config.population_size)):
                workers.append(_Worker(config, start))
            while workers and stop.signal_number is None:
                time.sleep(_POLL_SECONDS)
                progress.refresh()
                workers = [worker for worker in workers if not worker.is_done(progress.frames)]
        finally:
            for worker in workers:
                worker.child.send_signal(signal.SIGTERM)
            supervisor.end([worker.child for worker in workers], _GRACE_SECONDS)
        progress.refresh()
    if stop.signal_number is not None:
        for worker in workers:
            worker.raise_failure()
        show_saved(progress.frames, PopulationDirectory(config.logdir).path)
    else:
        best = f", best fitness {max(progress.fitness):.1f}" if progress.fitness else ""
        report = f"--mode=report --runs={shlex.quote(config.logdir)}"
        print(f"{config.logdir} is finished{best}; report on it with {report}", file=sys.stderr)
    return stop.signal_number


class _Worker(child_program.Program):
    """A process that trains members and is started again if it is killed."""

    def __init__(self, config: Config, start: Mapping[str, float]):
        super().__init__(_train_members, (config, start))
        self._setting = f"--pbt_places={config.pbt_places}"
        self._frames = 0  # All members had so many when this process was started.

    def is_done(self, frames: int) -> bool:
        """Returns whether no member is left to train; restarts the process if it was killed."""
        if (code := self.attend()) is None:
            return False
        if code <= 128:
            self.raise_failure()
            return True
        self.restart(f"{_WHAT} was killed", self._setting, healthy=frames > self._frames)
        self._frames = frames
        return False

    def raise_failure(self) -> None:
        """Raises UserError if the process has failed; a PassingError unless it would fail again."""
        code = self.child.exit_code
        if code in (None, 0, 128 + signal.SIGTERM):
            return
        how = f"{_WHAT} {supervisor.describe_exit(code)}"
        message = self.child.message or f"{how}; the same command resumes from its last checkpoint"
        raise (UserError if code == FAILS_AGAIN else PassingError)(message)


def _train_members(payload: tuple[Config, Mapping[str, float]]) -> int | None:
    """Trains members in a worker until none is left or a signal comes."""
    from scalable_agent_popart.population import member  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415

    hardware.prepare_process(payload[0].gpus)
    return member.take_turns(*payload)


class _Progress:
    """The progress on the terminal: `frames` of all members' logs, and each known `fitness`."""

    def __init__(self, config: Config):
        population = PopulationDirectory(config.logdir)
        self._members = [population.member(number) for number in range(config.population_size)]
        self._num_events = [0] * len(self._members)  # Lines of each lineage that are known.
        self._read()
        total = len(self._members) * config.total_environment_frames
        how = {"initial": self.frames, "unit_scale": True, "smoothing": 0.05}
        self._bar = progress_bar(total, " frames", desc="members start", **how)
        self.close = self._bar.close

    def refresh(self) -> None:
        for news in self._read():
            self._bar.write(news, file=self._bar.fp)
        if self.fitness:
            shown = {"best fitness": f"{max(self.fitness):.1f}", "of": len(self.fitness)}
            self._bar.set_postfix(shown, refresh=False)
        if self.frames > self._bar.n:
            self._bar.set_description(refresh=False)
        self._bar.update(self.frames - self._bar.n)

    def _read(self) -> list[str]:
        """Reads the members' files; returns in lines what has happened to them since."""
        news = []
        for number, member in enumerate(self._members):
            events = member.read_lineage()
            news += [event.describe(number) for event in events[self._num_events[number] :]]
            self._num_events[number] = len(events)
        published = filter(None, (member.published() for member in self._members))
        self.fitness = [each.fitness for each in published]
        self.frames = sum(last_frames(member.metrics) for member in self._members)
        return news

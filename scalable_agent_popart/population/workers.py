"""Trains all members of a population on this machine, as many at a time as there are workers.

This process starts the workers (see `Worker.take_turns`), starts those again that are killed, and
shows how far the population is. Workers save and end when it does, and the same command goes on.
"""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import FAILS_AGAIN, PassingError, UserError
from scalable_agent_popart.population.directory import PopulationDirectory
from scalable_agent_popart.system import child_program, supervisor
from scalable_agent_popart.system.signals import StopOnSignal
from scalable_agent_popart.system.supervisor import Child, Restarts
from scalable_agent_popart.system.terminal import progress_bar, show_saved

_COMMAND = "from scalable_agent_popart.population.workers import work; work()"
_POLL_SECONDS = 0.5
_MAX_RESTARTS_IN_A_ROW = 7
_HEALTHY_SECONDS = 60.0  # The death of an older worker begins a new row if members came further.
_GRACE_SECONDS = 120.0  # How long workers may take to save and end when they are asked to.
_MAX_LINE_BYTES = 2**17  # The end of a log that is sure to hold its last line.


def train_population(config: Config, start: Mapping[str, float]) -> int | None:
    """Trains all members to their end, or until a signal asks to stop, whose number it returns.

    `start` has hyperparameters that are not to be sampled. Raises UserError if workers fail, as
    also when they are asked to save and end.
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
        best = f", best fitness {progress.best:.1f}" if progress.best is not None else ""
        report = f"--mode=report --runs={config.logdir}"
        print(f"{config.logdir} is finished{best}; report on it with {report}", file=sys.stderr)
    return stop.signal_number


class _Worker:
    """A process that trains members, started again where it is killed."""

    def __init__(self, config: Config, start: Mapping[str, float]):
        self._config = config
        self._start = start
        self._restarts = Restarts(max_in_a_row=_MAX_RESTARTS_IN_A_ROW)
        self._open(frames=0)

    def _open(self, frames: int) -> None:
        self._frames = frames  # Of all members, when this process was started.
        command, payload = [sys.executable, "-c", _COMMAND], (self._config, self._start)
        self.child = Child(command, payload, environment=supervisor.python_environment())

    def is_done(self, frames: int) -> bool:
        """Tells whether no member is left to train; starts the process again if it was killed."""
        code = self.child.wait(0)
        if code is None:
            return False
        if code <= 128:
            self.raise_failure()
            return True
        age = time.monotonic() - self.child.began
        if self._restarts.pause(age >= _HEALTHY_SECONDS and frames > self._frames) is None:
            raise UserError(
                f"a process that trains members was killed {self._restarts.deaths} times in a row: "
                f"is there too little memory for --pbt_places={self._config.pbt_places}?"
            )
        self._open(frames)
        return False

    def raise_failure(self) -> None:
        """Raises UserError if the process has ended otherwise than it should.

        It is a PassingError unless the process has said that it would fail again.
        """
        code = self.child.exit_code
        if code is None or code in (0, 128 + signal.SIGTERM):
            return
        how = f"a process that trains members {supervisor.describe_exit(code)}; the same command "
        message = self.child.message or f"{how}goes on from its last checkpoint"
        raise (UserError if code == FAILS_AGAIN else PassingError)(message)


def work() -> None:
    """Trains members, in a worker, until none is left, a signal comes or the parent is gone."""
    child_program.run(_take_turns)


def _take_turns(payload: tuple[Config, Mapping[str, float]]) -> Iterator[int | None]:
    from scalable_agent_popart.population.worker import Worker  # noqa: PLC0415
    from scalable_agent_popart.system import hardware  # noqa: PLC0415

    hardware.prepare_process(payload[0].gpus)
    yield from Worker(*payload).take_turns()


class _Progress:
    """The population's progress on the terminal: `frames` are those of all members' logs."""

    def __init__(self, config: Config):
        size = config.population_size
        population = PopulationDirectory(config.logdir)
        self._members = [population.member(number) for number in range(size)]
        self._member_frames = [0] * size
        self._num_events = [0] * size  # Those of the lineage that are known.
        self._fitness: dict[int, float] = {}
        for number, member in enumerate(self._members):
            with contextlib.suppress(UserError, OSError):
                self._num_events[number] = len(member.read_lineage())
        self._count()
        self._bar = progress_bar(
            size * config.total_environment_frames,
            " frames",
            initial=self.frames,
            desc="members start",
            unit_scale=True,
            smoothing=0.05,
        )

    @property
    def best(self) -> float | None:
        """The highest fitness that a member has published; None before any has."""
        return max(self._fitness.values(), default=None)

    def close(self) -> None:
        self._bar.close()

    def refresh(self) -> None:
        self._count()
        for number, member in enumerate(self._members):
            with contextlib.suppress(UserError, OSError):
                events = member.read_lineage()
                for event in events[self._num_events[number] :]:
                    self._bar.write(event.describe(number), file=self._bar.fp)
                self._num_events[number] = len(events)
                if published := member.published():
                    self._fitness[number] = published.fitness
        if self.best is not None:
            shown = {"best fitness": f"{self.best:.1f}", "of": len(self._fitness)}
            self._bar.set_postfix(shown, refresh=False)
        if self.frames > self._bar.n:
            self._bar.set_description(refresh=False)
        self._bar.update(self.frames - self._bar.n)

    def _count(self) -> None:
        """Reads the frames in the last whole line of each member's log, if there is one."""
        for number, member in enumerate(self._members):
            with contextlib.suppress(ValueError, LookupError, TypeError):
                *lines, _ = supervisor.tail(member.metrics, _MAX_LINE_BYTES).split("\n")
                self._member_frames[number] = int(json.loads(lines[-1])["frames"])
        self.frames = sum(self._member_frames)

"""Trains, tests and reports on all agents of an experiment, each with the same seeds.

  python tools/run_experiment.py --seeds=1,2,3,4,5 --report_dir=report configs/catch5/catch5-*.flags

Each flag file is an agent, and each of its seeds a run of its own, LOGDIR/NAME-SEED, beside it what
it printed. `--places` runs train at a time, each on cores of its own, and are tested at their end.
The same command goes on where it was stopped; what is finished is not done again. A run that fails,
because it diverged for instance, is named and left as it is, and the others go on. Then
`--mode=report` writes its report on all runs. Beside it `runs.json` says what made them: flags,
seeds, frames, time, memory, newest test, packages, revisions and machines; and `logs.tar.xz` has
their logs, without checkpoints, to be reported on again with `--notrain`.

With `--turn_minutes` runs take turns, so that all of them are about equally far at any time.
`--notrain` reports on the runs as they are. Flags after `--` go to every training run. Populations
are not trained this way. Needs Linux.
"""

import collections
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import run_records
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("seeds", ["1"], "Seeds of each agent.")
flags.DEFINE_string("logdir", "runs", "Directory of the runs.")
flags.DEFINE_string("report_dir", None, "Where to write the report.")
flags.DEFINE_integer("places", None, "Runs at a time. Default: one a core.", lower_bound=1)
flags.DEFINE_float(
    "turn_minutes",
    None,
    "How long a run trains before it waits; longer if it has not got on. Default: no turns.",
    lower_bound=0.01,
)
flags.DEFINE_integer("test_num_episodes", None, "Of each level. Default: set by the suite.")
flags.DEFINE_boolean("train", True, "Whether to train and test, or only report.")

_EXPERIMENT = str(Path(__file__).resolve().parents[1] / "experiment.py")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Of a process that was asked to stop: once it has saved everything, or before it had begun.
_STOPPED = (*(128 + number for number in _SIGNALS), *(-number for number in _SIGNALS))


class Run(NamedTuple):
    """One agent and seed."""

    flag_file: Path
    seed: str

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(FLAGS.logdir) / f"{self.flag_file.stem}-{self.seed}"

    @property
    def output(self) -> Path:
        """What its processes printed."""
        return self.path.parent / f"{self.path.name}.log"


class FailedError(Exception):
    """What a user can mend."""


class Trainer:
    """Threads that each train and test one run after the other, on cores of their own."""

    def __init__(self, runs: Sequence[Run], places: int, more_flags: Sequence[str]):
        # Those that are behind come first.
        self._waiting = collections.deque(
            sorted(runs, key=lambda run: run_records.frames(run.path))
        )
        self._more_flags = more_flags
        self._processes: set[int] = set()  # Those that are not waited for yet.
        self._lock = threading.Lock()
        self._ended = threading.Semaphore(0)  # Of the threads.
        self._stopped = False
        self._error: BaseException | None = None
        self._failures: list[str] = []  # A line for each run that cannot go on.
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores[i::places] or cores for i in range(places)]
        self._threads = [threading.Thread(target=self._work, args=[share]) for share in shares]

    def train(self) -> list[str]:
        """Trains and tests all runs; returns a line for each that failed."""
        try:
            for thread in self._threads:
                thread.start()
            for _ in self._threads:
                # A `join` that a signal interrupts takes its thread for dead.
                self._ended.acquire()
        finally:  # Also after a signal.
            self._stop()
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()
        if self._error is not None:
            raise self._error
        return self._failures

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                os.kill(process, signal.SIGTERM)

    def _work(self, cores: Sequence[int]) -> None:
        try:
            os.sched_setaffinity(0, cores)  # Of this thread, and of the processes it starts.
            while (run := self._next()) is not None:
                try:
                    if not self._train(run):
                        self._waiting.append(run)
                    elif not run_records.is_tested(run.path):
                        self._test(run)
                except FailedError as error:
                    print(error, flush=True)
                    self._failures.append(str(error))
        except BaseException as error:
            self._error = error
            self._stop()
        finally:
            self._ended.release()

    def _next(self) -> Run | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting and not self._stopped else None

    def _train(self, run: Run) -> bool:
        """Trains for a turn; returns whether there is nothing left to train."""
        arguments = [f"--flagfile={run.flag_file}", f"--seed={run.seed}", *self._more_flags]
        before, frames = time.monotonic(), run_records.frames(run.path)
        code, memory = self._call(run, [*arguments, f"--logdir={run.path}"], FLAGS.turn_minutes)
        if run_records.frames(run.path) != frames:
            run_records.note_process(run.path, time.monotonic() - before, memory)
        _check(run, code)
        return code == 0

    def _test(self, run: Run) -> None:
        episodes = FLAGS.test_num_episodes
        more = [] if episodes is None else [f"--test_num_episodes={episodes}"]
        code, _ = self._call(run, ["--mode=test", f"--logdir={run.path}", *more])
        _check(run, code)

    def _call(
        self, run: Run, arguments: Sequence[str], minutes: float | None = None
    ) -> tuple[int, int]:
        """Runs a process, for so many minutes; returns its exit code and largest memory, in KiB."""
        print(f"{run.path}: {' '.join(arguments)}", flush=True)
        run.output.parent.mkdir(parents=True, exist_ok=True)
        with open(run.output, "ab") as output:
            with self._lock:
                if self._stopped:
                    return _STOPPED[0], 0
                command = [sys.executable, _EXPERIMENT, *arguments]
                process = subprocess.Popen(command, stdout=output, stderr=output)
                self._processes.add(process.pid)
            self._wait(process.pid, run, minutes)
            with self._lock:  # Until here its number is nobody else's.
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                self._processes.remove(process.pid)
        return process.returncode, usage.ru_maxrss

    def _wait(self, process: int, run: Run, minutes: float | None) -> None:
        """Waits for a process's end, which it is asked for after a turn that got the run on."""
        frames = run_records.frames(run.path)
        ends = os.pidfd_open(process)
        try:
            timeout = None if minutes is None else minutes * 60
            while not select.select([ends], [], [], timeout)[0]:
                if run_records.frames(run.path) > frames:
                    os.kill(process, signal.SIGTERM)  # Nobody else has its number yet.
                    timeout = None
        finally:
            os.close(ends)


def _check(run: Run, code: int) -> None:
    """Raises FailedError if a process of the run ended so."""
    if code not in (0, *_STOPPED):
        raise FailedError(f"{run.path} failed (exit code {code}); see {run.output}")


def _experiment(arguments: Sequence[str]) -> tuple[list[Run], list[str]]:
    """The runs that are asked for, and the flags for all of them."""
    flag_files = [Path(name) for name in arguments if not name.startswith("-")]
    more_flags = [flag for flag in arguments if flag.startswith("-")]
    if not flag_files or not FLAGS.seeds:
        raise FailedError("there is nothing to run: give flag files, and --seeds")
    for path in flag_files:
        if not path.is_file():
            raise FailedError(f"there is no flag file {path}")
        if "--mode=pbt" in path.read_text().split():
            raise FailedError(f"{path} is a population's: train it with experiment.py")
    if any(flag.lstrip("-").startswith(("seed", "logdir")) for flag in more_flags):
        raise FailedError("each run has a seed and a --logdir of its own: give --seeds")
    runs = [Run(path, seed) for seed in FLAGS.seeds for path in flag_files]
    if len({run.path for run in runs}) < len(runs):
        raise FailedError("two runs would have one directory: give each file and each seed once")
    return runs, more_flags


def _report(runs: Sequence[Run]) -> None:
    """Reports on the runs that have begun."""
    begun = [run for run in runs if (run.path / "config.json").is_file()]
    if not begun:
        raise FailedError(f"no run has begun in {FLAGS.logdir}")
    names = ",".join(str(run.path) for run in begun)
    command = ["--mode=report", f"--runs={names}", f"--report_dir={FLAGS.report_dir}"]
    if subprocess.run([sys.executable, _EXPERIMENT, *command], check=False).returncode:
        raise FailedError("the report could not be written")
    records = [{"flag_file": run.flag_file.name, **run_records.describe(run.path)} for run in begun]
    table = {"reported_on": run_records.machine(), "runs": records}
    (Path(FLAGS.report_dir) / "runs.json").write_text(json.dumps(table, indent=1) + "\n")
    run_records.pack_logs([run.path for run in begun], Path(FLAGS.report_dir) / "logs.tar.xz")


def _leave(number: int, frame: object) -> None:
    """Ends the program once, however often it is asked."""
    del frame
    for further in _SIGNALS:
        # Not SIG_IGN, which a process that is just being started would inherit.
        signal.signal(further, lambda number, frame: None)
    sys.exit(128 + number)


def main(argv: list[str]) -> None:
    """Runs everything; a failure is one line and exit code 1."""
    for number in _SIGNALS:
        signal.signal(number, _leave)
    try:
        runs, more_flags = _experiment(argv[1:])
        failures: list[str] = []
        if FLAGS.train:
            places = FLAGS.places or len(os.sched_getaffinity(0))
            failures = Trainer(runs, min(places, len(runs)), more_flags).train()
        try:
            _report(runs)
        except FailedError as error:
            failures.append(str(error))
        if failures:
            raise FailedError("; ".join(failures))
    except FailedError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    flags.mark_flag_as_required("report_dir")
    app.run(main)

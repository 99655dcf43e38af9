"""Trains, tests and reports on all agents of an experiment, each with the same seeds.

  python tools/run_experiment.py --seeds=1,2,3,4,5 --report_dir=report configs/catch5-*.flags

Each flag file is an agent, and each of its seeds a run of its own, LOGDIR/NAME-SEED, beside it what
it printed. `--places` runs train at a time, each on cores of its own, and are tested at their end.
The same command goes on where it was stopped; what is finished is not done again. Then
`--mode=report` writes its report on all runs, and `runs.json` beside it says what made them: flags,
seeds, frames, time, memory, packages and machine.

With `--turn_minutes` runs take turns, so that all of them are about equally far at any time.
`--notrain` reports on the runs as they are. Flags after `--` go to every training run.
"""

import collections
import json
import os
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
flags.DEFINE_integer("places", None, "Runs at a time. Default: one a core.")
flags.DEFINE_float(
    "turn_minutes", None, "How long a run trains before it waits. Default: no turns."
)
flags.DEFINE_integer("test_num_episodes", None, "Of each level. Default: set by the suite.")
flags.DEFINE_boolean("train", True, "Whether to train and test, or only report.")

_EXPERIMENT = str(Path(__file__).resolve().parents[1] / "experiment.py")
# Of a process that was asked to stop: once it has saved everything, or before it had begun.
_STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)


class Run(NamedTuple):
    """One agent and seed."""

    flag_file: Path
    seed: str

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(FLAGS.logdir) / f"{self.flag_file.stem}-{self.seed}"


class FailedError(Exception):
    """A process did not end well."""


class Trainer:
    """Threads that each train and test one run after the other, on cores of their own."""

    def __init__(self, runs: Sequence[Run], places: int, more_flags: Sequence[str]):
        self._waiting = collections.deque(runs)
        self._more_flags = more_flags
        self._processes: set[int] = set()  # Those that are not waited for yet.
        self._lock = threading.Lock()
        self._stopped = False
        self._error: BaseException | None = None
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores[i::places] or cores for i in range(places)]
        self._threads = [threading.Thread(target=self._work, args=[share]) for share in shares]

    def train(self) -> None:
        """Trains and tests all runs.

        Raises:
          FailedError: if one of them fails; the others have saved their checkpoints.
        """
        for thread in self._threads:
            thread.start()
        try:
            for thread in self._threads:
                thread.join()
        finally:  # Also after Ctrl-C.
            self._stop()
            for thread in self._threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                os.kill(process, signal.SIGTERM)

    def _work(self, cores: Sequence[int]) -> None:
        os.sched_setaffinity(0, cores)  # Of this thread, and of the processes that it starts.
        try:
            while (run := self._next()) is not None:
                if not self._train(run):
                    self._waiting.append(run)
                elif not run_records.is_tested(run.path):
                    self._test(run)
        except BaseException as error:
            self._error = error
            self._stop()

    def _next(self) -> Run | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting and not self._stopped else None

    def _train(self, run: Run) -> bool:
        """Trains for a turn; returns whether there is nothing left to train."""
        turn = FLAGS.turn_minutes * 60 if FLAGS.turn_minutes else None
        arguments = [f"--flagfile={run.flag_file}", f"--seed={run.seed}", *self._more_flags]
        before = time.monotonic()
        code, memory = self._call(run, [*arguments, f"--logdir={run.path}"], turn)
        if run.path.is_dir():
            run_records.note_process(run.path, time.monotonic() - before, memory)
        return code == 0

    def _test(self, run: Run) -> None:
        episodes = FLAGS.test_num_episodes
        more = [] if episodes is None else [f"--test_num_episodes={episodes}"]
        self._call(run, ["--mode=test", f"--logdir={run.path}", *more])

    def _call(
        self, run: Run, arguments: Sequence[str], seconds: float | None = None
    ) -> tuple[int, int]:
        """Runs a process, for so many seconds; returns its exit code and largest memory, in KiB."""
        print(f"{run.path}: {' '.join(arguments)}", flush=True)
        output = run.path.with_suffix(".log")
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, "ab") as file:
            with self._lock:
                if self._stopped:
                    return _STOPPED[0], 0
                command = [sys.executable, _EXPERIMENT, *arguments]
                process = subprocess.Popen(command, stdout=file, stderr=file)
                self._processes.add(process.pid)
            timer = threading.Timer(
                threading.TIMEOUT_MAX if seconds is None else seconds,
                lambda: self._interrupt(process.pid),
            )
            timer.start()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            timer.cancel()
            with self._lock:  # Until here its number is nobody else's.
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                self._processes.remove(process.pid)
        if process.returncode not in (0, *_STOPPED):
            raise FailedError(f"{run.path} failed (exit code {process.returncode}); see {output}")
        return process.returncode, usage.ru_maxrss

    def _interrupt(self, process: int) -> None:
        with self._lock:
            if process in self._processes:
                os.kill(process, signal.SIGTERM)


def main(argv: list[str]) -> None:
    """Runs everything; a failure is one line and exit code 1."""
    flag_files = [Path(name) for name in argv[1:] if not name.startswith("-")]
    more_flags = [flag for flag in argv[1:] if flag.startswith("-")]
    missing = [str(path) for path in flag_files if not path.is_file()]
    if missing or not flag_files:
        sys.exit(f"error: no such flag file: {missing[0] if missing else 'none is given'}")
    runs = [Run(path, seed) for seed in FLAGS.seeds for path in flag_files]
    if FLAGS.train:
        places = FLAGS.places or len(os.sched_getaffinity(0))
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        try:
            Trainer(runs, min(places, len(runs)), more_flags).train()
        except FailedError as error:
            sys.exit(f"error: {error}")
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
    _report([run for run in runs if run.path.is_dir()])


def _report(runs: Sequence[Run]) -> None:
    names = ",".join(str(run.path) for run in runs)
    command = ["--mode=report", f"--runs={names}", f"--report_dir={FLAGS.report_dir}"]
    if subprocess.run([sys.executable, _EXPERIMENT, *command], check=False).returncode:
        sys.exit("error: the report could not be written")
    records = [{"flag_file": run.flag_file.name, **run_records.describe(run.path)} for run in runs]
    table = {"machine": run_records.machine(), "runs": records}
    (Path(FLAGS.report_dir) / "runs.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    flags.mark_flag_as_required("report_dir")
    app.run(main)

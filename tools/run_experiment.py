"""Trains, tests and reports on all agents of an experiment, each with the same seeds.

  python tools/run_experiment.py --seeds=1,2,3,4,5 --report_dir=report configs/catch5/catch5-*.flags

Each flag file is an agent, and each of its seeds a run in LOGDIR/NAME-SEED, with what it printed in
a file next to it. `--places` runs train at a time, each on cores of its own if there are as many,
and are tested at their end. The same command resumes what was stopped, and repeats nothing that is
finished. A run that fails is named, and the others continue.

Next to the report are `runs.json`, which lists what made the runs, and `logs.tar.xz`, their logs
without checkpoints. `--notrain` reports on these again, or on runs as they are.

  python tools/run_experiment.py --search_frames=1000000,2000000,4000000 --logdir=runs/search \
    --report_dir=searched configs/atari57_raw/search-*.flags

searches each agent's hyperparameters instead. All agents have the same `--search_settings`, and the
better half of a round takes part in the next. REPORT_DIR gets a flag file of each agent's winner
and `search.csv` with all.

Flags after `--` apply to every training run. A flag file with `--mode=pbt` makes each run a
population, which is scored by its members' training episodes and not tested. Needs Linux.
"""

if __name__ == "__main__":
    import start  # noqa: F401

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import run_records
import search
from absl import flags

from scalable_agent_popart.errors import PassingError, UserError
from scalable_agent_popart.system import program, supervisor, terminal
from scalable_agent_popart.system.cores import num_cores
from scalable_agent_popart.system.signals import StopOnSignal


class _Integers(flags.ListParser):
    """Parses a flag's list of integers, each written as `program.to_integer` reads it."""

    def parse(self, argument: str | list[str]) -> list[Any]:
        return [program.to_integer(text) for text in super().parse(argument)]


FLAGS = flags.FLAGS
flags.DEFINE(_Integers(), "seeds", "1", "Seeds of each agent.")
flags.DEFINE_string("logdir", "runs", "Directory of the runs.")
flags.DEFINE_string("report_dir", None, "Where to write the report.")
_COUNT = program.Integer(1)
flags.DEFINE(_COUNT, "places", None, "Runs at a time. Default: one per core.")
flags.DEFINE(_COUNT, "test_num_episodes", None, "Episodes tested per level. Default: the suite's.")
flags.DEFINE(_Integers(), "search_frames", "", "Frames of each round of a search.")
flags.DEFINE(program.Integer(2), "search_settings", 16, "Settings of each agent to search.")
flags.DEFINE_boolean("train", True, "Whether to train and test, or only report.")

_EXPERIMENT = [sys.executable, str(Path(__file__).resolve().parents[1] / "experiment.py")]
_POLL_SECONDS = 0.1


class PlannedRun(NamedTuple):
    """One agent and seed."""

    flag_file: Path
    seed: int

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(FLAGS.logdir) / f"{self.flag_file.stem}-{self.seed}"


def _process(run: PlannedRun, arguments: Sequence[str], group: int, stop: StopOnSignal) -> str:
    """Trains or tests a run until its process ends, or is asked to by a signal.

    Nothing is started after a signal. Returns why the process failed, or nothing.
    """
    if stop.signal_number:
        return ""
    before, output = run_records.frames(run.path), Path(f"{run.path}.log")
    command = [*arguments, f"--logdir={run.path}"]
    print(f"{run.path}: {' '.join(command)}", flush=True)
    with open(output, "ab") as file:
        child = supervisor.Child([*_EXPERIMENT, *command], output=file, group=group)
    while child.wait(_POLL_SECONDS) is None and not stop.signal_number:
        pass
    child.send_signal(signal.SIGTERM)
    code = child.wait()
    if run_records.frames(run.path) > before:
        seconds = time.monotonic() - child.began
        run_records.record_process(run.path, seconds, child.max_memory_kib)
    if not code or stop.signal_number:
        return ""
    message = f"{run.path} failed (exit code {code}); see {output}"
    print(message, flush=True)
    return message


def _train(
    runs: Sequence[PlannedRun], more_flags: Sequence[str], stop: StopOnSignal, tests: bool
) -> list[str]:
    """Trains all runs, those that are behind first, and with `tests` tests each at its end.

    Returns a line for each run that failed.
    """
    episodes = FLAGS.test_num_episodes
    places = max(1, min(FLAGS.places or num_cores(), len(runs)))
    cores = sorted(os.sched_getaffinity(0))
    free = iter([cores[i::places] if places <= len(cores) else cores for i in range(places)])
    # A thread, and the processes that it starts, keep to the cores of a place.
    pool = ThreadPoolExecutor(places, initializer=lambda: os.sched_setaffinity(0, next(free)))

    def work(run: PlannedRun) -> str:
        """Trains and tests a run; returns why it failed, or nothing."""
        train = [f"--flagfile={run.flag_file}", f"--seed={run.seed}", *more_flags]
        try:
            failure, ends = _process(run, train, group, stop), stop.signal_number or not tests
            if failure or ends or run_records.is_tested(run.path, episodes):
                return failure
            # A test imports only modules that its own flags name.
            given = _values(train)
            test = {"mode": "test", "test_num_episodes": episodes}
            test |= {name: given.get(name) for name in ("level_name", "network")}
            return _process(run, [f"--{n}={v}" for n, v in test.items() if v], group, stop)
        except OSError as error:
            print(failure := f"{run.path} failed ({error})", flush=True)
            return failure

    Path(FLAGS.logdir).mkdir(parents=True, exist_ok=True)
    with supervisor.group() as group, pool:
        in_order = sorted(runs, key=lambda run: run_records.frames(run.path))
        return list(filter(None, pool.map(work, in_order)))


def _search(agents: Sequence[Path], more_flags: Sequence[str], stop: StopOnSignal) -> list[str]:
    """Searches each agent's hyperparameters, until there is a signal.

    Returns a line for each run that failed, which is ranked last.
    """
    folder = Path(FLAGS.report_dir)
    if folder.resolve() in {agent.resolve().parent for agent in agents}:
        raise UserError(f"--report_dir={folder} holds the agents' own flag files: give another")
    given = [_values([f"--flagfile={agent}", *more_flags]) for agent in agents]
    level_name, *others = {values.get("level_name", "") for values in given}
    if others or not level_name:
        raise UserError("the flag files of a search must name the same --level_name")
    settings = search.sample(level_name, FLAGS.search_settings)
    if searched := settings[0].keys() & _values(more_flags).keys():
        raise UserError(f"--{searched.pop()} is searched; leave it out")
    logdir = Path(FLAGS.logdir)
    logdir.mkdir(parents=True, exist_ok=True)
    # These runs remain, by agent and setting, the best first.
    remaining: dict[Path, dict[int, PlannedRun]] = {agent: {} for agent in agents}
    for agent, runs in remaining.items():
        for number, values in enumerate(settings):
            file = logdir / f"{agent.stem}-setting-{number:02d}.flags"
            search.write(agent, values, file, f"Setting {number} of {len(settings)}.")
            runs[number] = PlannedRun(file, search.FIRST_SEED + number)
    rows, failures = [], []
    for frames in sorted(FLAGS.search_frames):
        planned = [run for runs in remaining.values() for run in runs.values()]
        behind = [run for run in planned if run_records.frames(run.path) < frames]
        # Rounds are the beginning of a longer run, in which the learning rate has hardly fallen.
        rounds = [f"--total_environment_frames={frames}", "--learning_rate_schedule=constant"]
        failures += _train(behind, [*more_flags, *rounds], stop, tests=False)
        if stop.signal_number:
            return failures
        for agent, runs in remaining.items():
            try:
                ranked = search.rank(level_name, frames, {n: run.path for n, run in runs.items()})
            except UserError as error:
                raise UserError(f"{agent.stem}: {error}") from error
            rows += [{"agent": agent.stem, **row, **settings[row["setting"]]} for row in ranked]
            better = ranked[: (len(ranked) + 1) // 2]
            remaining[agent] = {row["setting"]: runs[row["setting"]] for row in better}
        folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(folder / "search.csv", index=False, float_format="%.6g")
    for agent, (winner, *_) in remaining.items():
        remark = f"The best of {len(settings)} settings after {frames} frames."
        search.write(agent, settings[winner], folder / agent.name, remark)
        print(f"the best of {agent.stem}: setting {winner}, in {folder / agent.name}")
    return failures


def _values(words: Sequence[str]) -> dict[str, str]:
    """Returns the values of the experiment's flags that these words set, as they are written."""
    words = FLAGS.read_flags_from_files(words)
    return dict(word.lstrip("-").partition("=")[::2] for word in words)


def _plan(arguments: Sequence[str]) -> tuple[list[PlannedRun], list[str]]:
    """Returns the runs that the arguments ask for, and the flags for all of them."""
    flag_files = [Path(name) for name in arguments if not name.startswith("-")]
    more_flags = [flag for flag in arguments if flag.startswith("-")]
    if not flag_files or not FLAGS.seeds:
        raise UserError("there is nothing to run: give flag files, and --seeds")
    for path in flag_files:
        if not path.is_file():
            raise UserError(f"there is no flag file {path}")
    if {"seed", "logdir"} & _values(more_flags).keys():
        raise UserError("each run has a seed and a --logdir of its own: give --seeds")
    for name in ("seeds", "train", "test_num_episodes"):
        if FLAGS.search_frames and FLAGS[name].present:
            raise UserError(f"--{name} means nothing with --search_frames; leave it out")
    runs = [PlannedRun(path, seed) for seed in FLAGS.seeds for path in flag_files]
    if len({run.path for run in runs}) < len(runs):
        raise UserError("two runs would have one directory: give each file and each seed once")
    return runs, more_flags


def _report(runs: Sequence[PlannedRun]) -> str:
    """Reports on the runs that have begun; returns why that failed, or nothing."""
    begun = [run for run in runs if run_records.has_begun(run.path)]
    if not begun:
        return f"no run has begun in {FLAGS.logdir}, where logs may say why"
    # Commas separate the runs in --runs, so a path that has a comma itself must be quoted.
    names = flags.CsvListSerializer(",").serialize([str(run.path) for run in begun])
    folder = Path(FLAGS.report_dir)
    command = ["--mode=report", f"--runs={names}", f"--report_dir={folder}"]
    if subprocess.run([*_EXPERIMENT, *command], check=False).returncode:
        return "the report could not be written"
    records = [{"flag_file": r.flag_file.name, **run_records.describe(r.path)} for r in begun]
    table = {"reported_on": run_records.machine(), "runs": records}
    (folder / "runs.json").write_text(json.dumps(table, indent=1) + "\n")
    run_records.pack_logs([run.path for run in begun], folder / "logs.tar.xz")
    print("next to it: runs.json, what made the runs, and logs.tar.xz, their logs", flush=True)
    return ""


def main(argv: list[str]) -> None:
    """Runs everything."""
    terminal.outlive_terminal()
    for name in ("logdir", "report_dir"):  # The experiment does the same with its own.
        setattr(FLAGS, name, os.path.expanduser(getattr(FLAGS, name)))
    runs, more_flags = _plan(argv[1:])
    with StopOnSignal() as stop:
        if FLAGS.search_frames:
            failures = _search([run.flag_file for run in runs], more_flags, stop)
        else:
            failures = _train(runs, more_flags, stop, tests=True) if FLAGS.train else []
            if not stop.signal_number and (failure := _report(runs)):
                failures.append(failure)
    if stop.signal_number:
        sys.exit(128 + stop.signal_number)
    if failures:
        raise PassingError("; ".join(failures))


if __name__ == "__main__":
    flags.mark_flag_as_required("report_dir")
    program.run(main, FLAGS, OSError)

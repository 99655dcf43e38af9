"""Trains, tests and reports on all agents of an experiment, each with the same seeds.

  python tools/run_experiment.py --seeds=1,2,3,4,5 --report_dir=report configs/catch5/catch5-*.flags

Each flag file is an agent, and each of its seeds a run in LOGDIR/NAME-SEED, with what it printed in
a file next to it. `--places` runs train at a time, each on cores of its own if there are as many,
and are tested at their end. The same command resumes what was stopped, and repeats nothing that is
finished. A run that fails is named and left as it is, and the others continue.

Then `--mode=report` writes its report on all runs. Next to it `runs.json` lists what made them:
flags, seeds, frames, time, memory, newest test, packages, revisions and machines. `logs.tar.xz` has
their logs without checkpoints, and `--notrain` reports on these again, or on runs as they are.

With `--search_frames` each agent's hyperparameters are searched before an experiment, in rounds:

  python tools/run_experiment.py --search_frames=1000000,2000000,4000000 --logdir=runs/search \
    --report_dir=searched configs/atari57_raw/search-*.flags

All agents have the same `--search_settings`, and the better half of a round takes part in the next.
REPORT_DIR gets a flag file of each agent's winner and `search.csv` with all, but no report.

Flags after `--` apply to every training run. A flag file with `--mode=pbt` makes each run a
population, which is scored by its members' training episodes and not tested. Needs Linux.
"""

if __name__ == "__main__":
    import start  # noqa: F401

import collections
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import run_records
import search
from absl import flags

from scalable_agent_popart.errors import PassingError, UserError
from scalable_agent_popart.runs.directory import write_atomically
from scalable_agent_popart.runs.json_lines import DAMAGE
from scalable_agent_popart.system import program, terminal
from scalable_agent_popart.system.cores import num_cores
from scalable_agent_popart.system.supervisor import Group

FLAGS = flags.FLAGS
flags.DEFINE_list("seeds", ["1"], "Seeds of each agent.")
flags.DEFINE_string("logdir", "runs", "Directory of the runs.")
flags.DEFINE_string("report_dir", None, "Where to write the report.")
flags.DEFINE(program.Integer(1), "places", None, "Runs at a time. Default: one per core.")
flags.DEFINE(
    program.Integer(1),
    "test_num_episodes",
    None,
    "Episodes tested of each level. Default: set by the suite.",
)
flags.DEFINE_list("search_frames", [], "Frames of each round of a search for hyperparameters.")
flags.DEFINE(program.Integer(2), "search_settings", 16, "Settings of each agent to search.")
flags.DEFINE_boolean("train", True, "Whether to train and test, or only report.")

_EXPERIMENT = str(Path(__file__).resolve().parents[1] / "experiment.py")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A process that was asked to stop ends with one of these exit codes.
_STOPPED = [128 + number for number in _SIGNALS]
_POLL_SECONDS = 0.1


class PlannedRun(NamedTuple):
    """One agent and seed."""

    flag_file: Path
    seed: str

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(FLAGS.logdir) / f"{self.flag_file.stem}-{self.seed}"

    @property
    def output(self) -> Path:
        """The file of what its processes print."""
        return self.path.parent / f"{self.path.name}.log"


def _process(
    run: PlannedRun,
    arguments: Sequence[str],
    cores: Sequence[int],
    group: Group,
    stops: list[int],
) -> bool:
    """Trains or tests a run on given cores, and waits for the end of its process.

    A signal in `stops` asks the process to end. Returns whether it ended by itself, or raises
    UserError if it failed.
    """
    before = run_records.frames(run.path)
    command = [*arguments, f"--logdir={run.path}"]
    print(f"{run.path}: {' '.join(command)}", flush=True)
    run.output.parent.mkdir(parents=True, exist_ok=True)
    with open(run.output, "ab") as output:
        child = group.start([sys.executable, _EXPERIMENT, *command], output=output)
    try:
        os.sched_setaffinity(child.pid, cores)  # Threads that it starts inherit them.
        while child.wait(_POLL_SECONDS) is None and not stops:
            pass
    finally:  # An error ends it as well.
        child.send_signal(signal.SIGTERM)
        code = child.wait()
        if run_records.frames(run.path) > before:
            seconds = time.monotonic() - child.began
            run_records.record_process(run.path, seconds, child.max_memory_kib)
    if code not in (0, *_STOPPED):
        raise UserError(f"{run.path} failed (exit code {code}); see {run.output}")
    return code == 0


def _train(
    runs: Sequence[PlannedRun],
    more_flags: Sequence[str],
    stops: list[int],
    tests: bool = True,
) -> list[str]:
    """Trains all runs, those that are behind first, and with `tests` tests each at its end.

    Stops once there is a signal in `stops`. Returns a line for each run that failed.
    """
    waiting = collections.deque(sorted(runs, key=lambda run: run_records.frames(run.path)))
    failures: list[str] = []
    test = ["--mode=test"]
    if (num_episodes := FLAGS.test_num_episodes) is not None:
        test.append(f"--test_num_episodes={num_episodes}")
    places = min(FLAGS.places or num_cores(), len(runs))
    cores = sorted(os.sched_getaffinity(0))

    def work(place: int) -> None:
        """Takes one run after the other."""
        own = cores[place::places] if places <= len(cores) else cores
        while not stops:
            try:
                run = waiting.popleft()
            except IndexError:
                return
            train = [f"--flagfile={run.flag_file}", f"--seed={run.seed}", *more_flags]
            try:
                ended = _process(run, train, own, group, stops)
                tests_next = tests and ended and not stops
                if tests_next and not run_records.is_tested(run.path, num_episodes):
                    named = _level_name(run.flag_file, more_flags)
                    ended = _process(run, [*test, *named], own, group, stops)
                if not ended:  # Somebody else has asked this process to end.
                    waiting.append(run)
            except UserError as error:
                print(error, flush=True)
                failures.append(str(error))

    with Group() as group, futures.ThreadPoolExecutor(places) as pool:
        try:
            for place in futures.as_completed([pool.submit(work, i) for i in range(places)]):
                place.result()
        except BaseException:
            stops.append(signal.SIGTERM)  # All are asked to end before any is waited for.
            raise
    return failures


def _search(agents: Sequence[Path], more_flags: Sequence[str], stops: list[int]) -> list[str]:
    """Searches each agent's hyperparameters, until there is a signal in `stops`.

    Returns a line for each run that failed, which is ranked last.
    """
    folder, failures = Path(FLAGS.report_dir), []
    if folder.resolve() in {agent.resolve().parent for agent in agents}:
        raise UserError(f"--report_dir={folder} holds the agents' own flag files: give another")
    table = folder / "search.csv"  # It keeps the rounds that have been ranked.
    known = table.is_file() and table.stat().st_size  # An earlier version may have left it empty.
    rows = pd.read_csv(table, dtype=str).to_dict("records") if known else []
    ranked = collections.Counter((row["agent"], int(row["frames"])) for row in rows)
    if rows and (then := max(ranked.values())) != FLAGS.search_settings:
        message = f"{table} is of --search_settings={then}"
        raise UserError(f"{message}: give as many, or another --report_dir")
    settings, names = {}, {}
    for agent in agents:
        named = _level_name(agent, more_flags)
        if not named:
            raise UserError(f"{agent} names no --level_name")
        names[agent] = named[-1].partition("=")[2]
        settings[agent] = search.sample(names[agent], FLAGS.search_settings)
        for flag in more_flags:
            if flag.lstrip("-").partition("=")[0] in settings[agent][0]:
                raise UserError(f"{flag} is searched; leave it out")
    best = {agent: list(range(FLAGS.search_settings)) for agent in agents}
    for frames in _integers("search_frames"):
        runs: dict[Path, dict[int, PlannedRun]] = {agent: {} for agent in agents}
        for agent, numbers in best.items():
            for number in numbers:
                file = Path(FLAGS.logdir) / f"{agent.stem}-setting-{number:02d}.flags"
                search.write(agent, settings[agent][number], file)
                runs[agent][number] = PlannedRun(file, str(search.FIRST_SEED + number))
        unranked = [agent for agent in agents if (agent.stem, frames) not in ranked]
        trained = [run for agent in unranked for run in runs[agent].values()]
        behind = [run for run in trained if run_records.frames(run.path) < frames]
        # Rounds are the beginning of a longer run, in which the learning rate has hardly fallen.
        rounds = [f"--total_environment_frames={frames}", "--learning_rate_schedule=constant"]
        if behind:
            failures += _train(behind, [*more_flags, *rounds], stops, tests=False)
        if stops:
            return failures
        for agent in unranked:
            paths = {number: run.path for number, run in runs[agent].items()}
            rows += search.rank(agent.stem, names[agent], frames, settings[agent], paths)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(table, pd.DataFrame(rows).to_csv(index=False))
        for agent in agents:
            own = [
                row for row in rows if (row["agent"], int(row["frames"])) == (agent.stem, frames)
            ]
            best[agent] = [int(row["setting"]) for row in own[: (len(own) + 1) // 2]]
    for agent, (winner, *_) in best.items():
        remark = f"The best of {FLAGS.search_settings} settings after {frames} frames."
        search.write(agent, settings[agent][winner], folder / agent.name, remark)
        print(f"the best of {agent.stem}: setting {winner}, in {folder / agent.name}")
    return failures


def _level_name(flag_file: Path, more_flags: Sequence[str]) -> list[str]:
    """Lists the flags that name a run's tasks, which its test needs if a module has them."""
    words = FLAGS.read_flags_from_files([f"--flagfile={flag_file}", *more_flags])
    return [word for word in words if word.lstrip("-").startswith("level_name=")]


def _integers(name: str) -> list[int]:
    """Returns the integers of a flag that is a list of them."""
    texts = getattr(FLAGS, name)
    try:
        return [program.to_integer(text) for text in texts]
    except ValueError as error:
        raise UserError(f"--{name}={','.join(texts)}: {error}") from error


def _experiment(arguments: Sequence[str]) -> tuple[list[PlannedRun], list[str]]:
    """Returns the runs that the arguments ask for, and the flags for all of them."""
    flag_files = [Path(name) for name in arguments if not name.startswith("-")]
    more_flags = [flag for flag in arguments if flag.startswith("-")]
    if not flag_files or not FLAGS.seeds:
        raise UserError("there is nothing to run: give flag files, and --seeds")
    for path in flag_files:
        if not path.is_file():
            raise UserError(f"there is no flag file {path}")
    if any(flag.lstrip("-").startswith(("seed", "logdir")) for flag in more_flags):
        raise UserError("each run has a seed and a --logdir of its own: give --seeds")
    if FLAGS.search_frames:
        for name in ("seeds", "train", "test_num_episodes"):
            if FLAGS[name].present:
                raise UserError(f"--{name} means nothing with --search_frames; leave it out")
        rounds = _integers("search_frames")
        if rounds[0] < 0 or sorted({*rounds}) != rounds:
            raise UserError("--search_frames must be whole numbers, each above the one before")
    seeds = _integers("seeds")
    if max(seeds) >= search.FIRST_SEED:
        raise UserError(f"--seeds from {search.FIRST_SEED} on are those of searches: give others")
    runs = [PlannedRun(path, str(seed)) for seed in seeds for path in flag_files]
    if len({run.path for run in runs}) < len(runs):
        raise UserError("two runs would have one directory: give each file and each seed once")
    return runs, more_flags


def _report(runs: Sequence[PlannedRun]) -> None:
    """Reports on the runs that have begun."""
    begun = [run for run in runs if run_records.has_begun(run.path)]
    if not begun:
        raise UserError(f"no run has begun in {FLAGS.logdir}")
    # Commas separate the runs in --runs, so a path that has a comma itself must be quoted.
    names = flags.CsvListSerializer(",").serialize([str(run.path) for run in begun])
    command = ["--mode=report", f"--runs={names}", f"--report_dir={FLAGS.report_dir}"]
    if subprocess.run([sys.executable, _EXPERIMENT, *command], check=False).returncode:
        raise UserError("the report could not be written")
    records, damaged = {}, []
    for run in begun:
        try:
            about = run_records.describe(run.path)
            records[run.path] = {"flag_file": run.flag_file.name, **about}
        except DAMAGE as error:
            damaged.append(f"{run.path} is left out of runs.json: its files are damaged ({error})")
    table = {"reported_on": run_records.machine(), "runs": list(records.values())}
    (Path(FLAGS.report_dir) / "runs.json").write_text(json.dumps(table, indent=1) + "\n")
    run_records.pack_logs(list(records), Path(FLAGS.report_dir) / "logs.tar.xz")
    print("next to it: runs.json, what made the runs, and logs.tar.xz, their logs", flush=True)
    if damaged:
        raise UserError("; ".join(damaged))


def main(argv: list[str]) -> None:
    """Runs everything."""
    stops: list[int] = []  # These are signals, since a library might lose an exception.
    terminal.outlive_terminal()
    for number in _SIGNALS:
        # Under nohup SIGHUP stays ignored, so that closing the terminal does not end the runs.
        if signal.getsignal(number) == signal.SIG_IGN:
            continue
        signal.signal(number, lambda number, frame: stops.append(number))
    for name in ("logdir", "report_dir"):  # The experiment does the same with its own.
        setattr(FLAGS, name, os.path.expanduser(getattr(FLAGS, name)))
    runs, more_flags = _experiment(argv[1:])
    failures: list[str] = []
    if FLAGS.search_frames:
        failures = _search([run.flag_file for run in runs], more_flags, stops)
    elif FLAGS.train:
        failures = _train(runs, more_flags, stops)
    if not stops and not FLAGS.search_frames:
        try:
            _report(runs)
        except (UserError, OSError) as error:
            failures.append(str(error))
    if stops:
        sys.exit(128 + stops[0])
    if failures:
        raise PassingError("; ".join(failures))


if __name__ == "__main__":
    flags.mark_flag_as_required("report_dir")
    program.run(main, FLAGS, OSError)

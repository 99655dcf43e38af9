"""The tool that runs experiments, with a stand-in for the launch script."""

import contextlib
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from absl import flags

from tests.fakes.programs import (
    DEADLINE_SECONDS,
    ROOT,
    children,
    logged_frames,
    metrics,
    wait_until,
)

_ENDLESS = 10**9
_FIRST_SEED = 1_000_000  # It is the first of those that are a search's alone.


class Experiment:
    """The tool in a folder in which its launch script is the stand-in."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copytree(ROOT / "tools", folder / "tools")
        shutil.copy(ROOT / "tests" / "fakes" / "fake_experiment.py", folder / "experiment.py")

    def flag_file(self, name: str, frames: int = 300, more: str = "") -> str:
        path = self.folder / f"{name}.flags"
        path.write_text(f"--total_environment_frames={frames}\n{more}")
        return str(path)

    def run_path(self, name: str) -> Path:
        return self.folder / "runs" / f"{name}-1"

    def frames(self, name: str) -> int:
        return logged_frames(self.run_path(name))

    def processes(self, name: str) -> list[dict[str, Any]]:
        lines = (self.run_path(name) / "processes.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def reported(self) -> list[dict[str, Any]]:
        return json.loads((self.folder / "report" / "runs.json").read_text())["runs"]

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Starts the tool, and kills it after the test."""
        command = [sys.executable, str(self.folder / "tools" / "run_experiment.py")]
        command += [f"--logdir={self.folder / 'runs'}", f"--report_dir={self.folder / 'report'}"]
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def run(self, *arguments: str, code: int = 0) -> str:
        """Returns what was written to standard error, by a tool that ends with this exit code."""
        with self.running(*arguments) as process:
            _, error = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == code, error
        return error

    def refusal(self, *arguments: str, code: int = 2) -> str:
        """Returns the one line that the tool ends with."""
        (line,) = self.run(*arguments, code=code).splitlines()
        return line

    def any_alive(self) -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if str(self.folder).encode() in path.read_bytes():
                    return True
        return False


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


def test_runs_are_trained_tested_and_reported_on_once(experiment: Experiment) -> None:
    # A test must be given the flag as well, since no module is imported on a record's word.
    own = "--level_name=my_tasks:own"
    files = [experiment.flag_file("first"), experiment.flag_file("second", more=own)]
    for _ in range(2):
        experiment.run("--test_num_episodes=2", *files, "--", "--entropy_cost=0.007")
    for name, tested in (("first", "the run"), ("second", "my_tasks:own")):
        path = experiment.run_path(name)
        assert [line["frames"] for line in metrics(path)] == [100, 200, 300]
        assert (path / "tests").read_text() == f"tested {tested}\n"
        (process,) = experiment.processes(name)
        assert process["memory_kib"] > 1000
    runs = experiment.reported()
    assert [run["flag_file"] for run in runs] == ["first.flags", "second.flags"]
    assert runs[0]["flags"]["entropy_cost"] == "0.007"
    assert runs[0]["test"]["frames"] == 300
    assert runs[0]["largest_memory_mib"] == experiment.processes("first")[0]["memory_kib"] // 1024


def test_a_test_that_was_stopped_or_had_fewer_episodes_is_repeated(experiment: Experiment) -> None:
    file = experiment.flag_file("first")
    (experiment.folder / "runs").mkdir()
    (experiment.folder / "runs" / "terminate").touch()
    for number in (2, 5, 4):
        experiment.run(f"--test_num_episodes={number}", file)
    experiment.run(file)
    assert (experiment.run_path("first") / "tests").read_text() == "tested the run\n" * 3
    assert experiment.reported()[0]["test"]["episodes"] == {"pong": 200}


def test_a_test_of_no_episodes_is_refused_before_anything_trains(experiment: Experiment) -> None:
    told = experiment.refusal("--test_num_episodes=0", experiment.flag_file("first"))
    assert "flag --test_num_episodes=0" in told
    assert not (experiment.folder / "runs").exists()


def test_runs_with_commas_in_their_paths_are_reported_on(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path / "one, two")
    experiment.run(*map(experiment.flag_file, ("first", 'a "third"')))
    runs = [str(experiment.run_path(name)) for name in ("first", 'a "third"')]
    given = (experiment.folder / "report" / "runs").read_text()
    assert flags.ListParser().parse(given) == runs


def test_a_folder_that_cannot_be_written_is_named_in_one_line(experiment: Experiment) -> None:
    file = experiment.flag_file("first")
    assert "/proc/none" in experiment.refusal("--logdir=/proc/none", file)


def test_a_population_is_trained_as_a_run_whose_members_have_the_logs(
    experiment: Experiment,
) -> None:
    endless = experiment.flag_file("pbt", _ENDLESS, "--mode=pbt")
    learns = experiment.run_path("pbt") / "member-02"
    with experiment.running(endless) as process:
        wait_until(lambda: bool(metrics(learns)), process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_SECONDS)
    frames = metrics(learns)[-1]["frames"]
    experiment.run(experiment.flag_file("pbt", frames + 300, "--mode=pbt"))
    (record,) = experiment.reported()
    assert (record["frames"], record["seed"], record["test"]) == (frames + 350, "1", None)
    assert record["median_frames_per_second"] == 10
    seconds = [process["seconds"] for process in experiment.processes("pbt")]
    assert (len(seconds), record["seconds"]) == (2, round(sum(seconds)))
    with tarfile.open(experiment.folder / "report" / "logs.tar.xz") as archive:
        names = [f"member-02/{name}" for name in ("config.json", "metrics.jsonl", "lineage.jsonl")]
        names += ["member-01/metrics.jsonl", "population.json", "processes.jsonl"]
        assert set(archive.getnames()) == {f"pbt-1/{name}" for name in names}
        for name in ("pbt-1/population.json", "pbt-1/member-02/config.json"):
            kept = archive.extractfile(name)
            assert kept is not None
            flags = json.load(kept)["flags"]
            assert flags
            assert "logdir" not in flags


def test_a_run_has_all_revisions_and_machines_that_trained_it(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = experiment.run_path("first")
    path.mkdir(parents=True)
    config = {"agent": "IMPALA", "git_revision": "one", "versions": {}, "flags": {"seed": 1}}
    (path / "config.json").write_text(json.dumps(config))
    older = {"seconds": 1.0, "memory_kib": 1024}
    newer = {"seconds": 1.0, "memory_kib": 2048, "git_revision": "one", "machine": "a"}
    (path / "processes.jsonl").write_text(json.dumps(older) + "\n" + json.dumps(newer) + "\n")
    monkeypatch.setenv("HOME", str(experiment.folder))  # A leading ~ stands for it.
    folders = ("--logdir=~/runs", "--report_dir=~/report")
    experiment.run("--notrain", *folders, experiment.flag_file("first"))
    (found,) = experiment.reported()
    assert found["git_revisions"] == [None, "one"]
    assert found["machines"] == [None, "a"]
    assert (found["seconds"], found["largest_memory_mib"]) == (2, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_saves_what_trains_and_leaves_nothing(experiment: Experiment, number: int) -> None:
    files = [experiment.flag_file(name, _ENDLESS) for name in ("first", "second")]
    with experiment.running("--places=2", *files) as process:
        wait_until(lambda: all(experiment.frames(n) > 0 for n in ("first", "second")), process)
        for _ in range(2):
            process.send_signal(number)
        _, error = process.communicate(timeout=DEADLINE_SECONDS)
        wait_until(lambda: not experiment.any_alive())
    killed = number == signal.SIGKILL
    assert process.returncode == (-number if killed else 128 + number)
    assert "Traceback" not in error
    for name in [] if killed else ["first", "second"]:
        assert (experiment.run_path(name) / "saved").exists()
        assert len(experiment.processes(name)) == 1


def test_a_run_that_fails_is_named_and_the_others_continue(experiment: Experiment) -> None:
    bad, good = experiment.flag_file("bad", 300, "--fake=fail"), experiment.flag_file("good")
    error = experiment.run("--places=1", bad, good, code=1)
    log = experiment.folder / "runs" / "bad-1.log"
    assert str(log) in error
    assert "diverged" in log.read_text()
    assert (experiment.run_path("good") / "evaluation.json").exists()
    assert [run["frames"] for run in experiment.reported()] == [200, 300]


def test_a_run_whose_flags_are_damaged_is_named_and_the_others_are_kept(
    experiment: Experiment,
) -> None:
    bad, good = map(experiment.flag_file, ("bad", "good"))
    experiment.run(bad, good)
    (experiment.run_path("bad") / "config.json").write_text("{")
    told = experiment.refusal("--notrain", bad, good, code=1)
    assert f"{experiment.run_path('bad')} is left out of runs.json" in told
    assert [run["flag_file"] for run in experiment.reported()] == ["good.flags"]
    with tarfile.open(experiment.folder / "report" / "logs.tar.xz") as archive:
        assert {name.partition("/")[0] for name in archive.getnames()} == {"good-1"}


def test_a_search_trains_the_better_half_further_and_writes_the_best(
    experiment: Experiment,
) -> None:
    files = [
        experiment.flag_file(name, _ENDLESS, f"--level_name=pong{more}")
        for name, more in (("first", ""), ("second", "\n--multi_head"))
    ]
    rounds = ["--search_settings=5", "--search_frames=200,400,600"]
    (experiment.folder / "report").mkdir()
    earlier = experiment.folder / "report" / "earlier"
    earlier.write_text("agent,frames,setting\n")
    os.link(earlier, earlier.with_name("search.csv"))
    for _ in range(2):  # The second time all is done.
        experiment.run(*rounds, *files)
    assert earlier.read_text() == "agent,frames,setting\n"  # A table is replaced as a whole.
    table = pd.read_csv(experiment.folder / "report" / "search.csv")
    for name, own in table.groupby("agent"):
        rates = dict(zip(own.setting, own.learning_rate, strict=True))
        best = sorted(rates, key=lambda number: -rates[number])
        assert own.setting.tolist() == [*best, *best[:3], *best[:2]]
        assert own.seed.tolist() == [_FIRST_SEED + number for number in own.setting]
        assert own.frames.tolist() == 5 * [200] + 3 * [400] + 2 * [600]
        winner = (experiment.folder / "report" / f"{name}.flags").read_text()
        assert f"--learning_rate={rates[best[0]]:.6g}\n" in winner
        assert ("--multi_head" in winner) == (name == "second")
        for number in range(5):
            run = f"{name}-setting-{number:02d}-{_FIRST_SEED + number}"
            path = experiment.folder / "runs" / run
            reached = 200 * (1 + (number in best[:3]) + (number in best[:2]))
            assert [line["frames"] for line in metrics(path)] == [*range(100, reached + 1, 100)]
            assert not (path / "tests").exists()
    assert table.agent.nunique() == 2


def test_runs_that_fail_are_the_last_of_a_search(experiment: Experiment) -> None:
    file = experiment.flag_file("first", _ENDLESS, "--level_name=pong")
    asked = ["--search_settings=2", "--search_frames=200", file, "--", "--fake=fail"]
    assert "no run of first came to 200 frames" in experiment.refusal(*asked)
    finished = experiment.folder / "runs" / f"first-setting-01-{_FIRST_SEED + 1}"
    (finished / "metrics.jsonl").write_text('{"frames": 200}\n')
    assert "first-setting-00-1000000 failed" in experiment.refusal(*asked, code=1)
    table = pd.read_csv(experiment.folder / "report" / "search.csv")
    assert table.setting.tolist() == [1, 0]
    assert table.fitness[1] == -math.inf


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--search_frames=200", "--seeds=2"], "--seeds means nothing with --search_frames"),
        (["--search_frames=200,100"], "whole numbers, each above the one before"),
        (["--search_frames=1k,0.5k"], "whole numbers, each above the one before"),
        (["--search_frames=0.5"], "--search_frames=0.5: not a whole number"),
        (["--search_frames=200"], "names no --level_name"),
        (["--search_frames=200", "--report_dir=."], "holds the agents' own flag files"),
        (["--seeds=1e6"], "--seeds from 1000000 on are those of searches"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    experiment: Experiment, given: list[str], told: str
) -> None:
    assert told in experiment.refusal(*given, experiment.flag_file("first"))
    assert not (experiment.folder / "runs").exists()


def test_ctrl_c_while_settings_are_sampled_ends_a_search_without_a_traceback(
    experiment: Experiment,
) -> None:
    file = experiment.flag_file("first", _ENDLESS, "--level_name=pong")

    def samplers(process: int) -> list[int]:
        """Returns the child process, which a terminal would send the signal, too."""
        commands = {
            child: Path(f"/proc/{child}/cmdline").read_text() for child in children(process)
        }
        return [child for child, command in commands.items() if "spawn_main" in command]

    with experiment.running("--search_settings=2", "--search_frames=200", file) as process:
        wait_until(lambda: bool(samplers(process.pid)), process)
        for each in (*samplers(process.pid), process.pid):
            os.kill(each, signal.SIGINT)
        _, error = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, error) == (128 + signal.SIGINT, "")


def test_ctrl_c_while_the_process_that_samples_starts_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    search = importlib.import_module("search")

    class Pool(ThreadPoolExecutor):
        def submit(self, *_: Any) -> Future:  # type: ignore[override]
            os.kill(os.getpid(), signal.SIGINT)
            return super().submit(list)

    monkeypatch.setattr(search, "ProcessPoolExecutor", lambda number, _: Pool(number))
    ended = threading.Event()
    # A thread that receives the signal makes this one raise at once, in the middle of the start.
    with ThreadPoolExecutor(1) as other:
        other.submit(ended.wait)
        try:
            with pytest.raises(KeyboardInterrupt):
                search.sample.__wrapped__("pong", 1)
        finally:
            ended.set()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_search_refuses_flags_that_it_samples(experiment: Experiment) -> None:
    file = experiment.flag_file("first", _ENDLESS, "--level_name=pong")
    asked = ["--search_settings=2", "--search_frames=200", file, "--", "--learning_rate=1e-3"]
    assert "--learning_rate=1e-3 is searched" in experiment.refusal(*asked)


def test_a_search_of_other_settings_is_not_continued(experiment: Experiment) -> None:
    (experiment.folder / "report").mkdir()
    table = "agent,frames,setting\nfirst,200,1\nfirst,200,0\nfirst,400,1\n"
    (experiment.folder / "report" / "search.csv").write_text(table)
    asked = ["--search_settings=3", "--search_frames=200,400", experiment.flag_file("first")]
    told = "search.csv is of --search_settings=2: give as many"
    assert told in experiment.refusal(*asked)


def _write_logs(path: Path, episodes: Sequence[tuple[str, float, int]]) -> None:
    """Writes the logs of a run of 300 frames with so many episodes."""
    path.mkdir()
    (path / "metrics.jsonl").write_text('{"frames": 100}\n{"frames": 300}\n')
    lines = [{"task": t, "episode_return": r, "frames": at} for t, r, at in episodes]
    (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_settings_are_ranked_by_what_most_have_finished_within_the_rounds_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    search = importlib.import_module("search")
    paths = {}
    # Only one of three runs has finished Pong. The first has learned Boxing, and forgets it later.
    games = ({"boxing": 12.0, "pong": 21.0}, {"boxing": 5.0}, {"boxing": 0.1})
    for number, returns in enumerate(games):
        paths[number] = tmp_path / str(number)
        episodes = [(game, value, 90) for game, value in returns.items()]
        _write_logs(paths[number], [*episodes, ("boxing", -1e4, 250)])
    settings = 3 * [{"epsilon": 0.1}]
    rows = search.rank("agent", "boxing,pong", 100, settings, dict(reversed(paths.items())))
    assert [row["setting"] for row in rows] == [0, 1, 2]
    assert {row["tasks"] for row in rows} == {1}
    assert float(rows[2]["fitness"]) == pytest.approx(0.0, abs=0.1)
    paths[0].joinpath("metrics.jsonl").write_text('{"frames": 50}\n')
    rows = search.rank("agent", "boxing,pong", 100, settings, paths)
    assert [(row["setting"], row["rank"]) for row in rows] == [(1, 1), (2, 2), (0, 3)]


def test_returns_of_a_suite_without_scores_are_ranked_without_a_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    search = importlib.import_module("search")
    paths = {}
    returns = (1e-4, 200.0, 1000.0, 2e-4)
    for number, value in enumerate(returns):
        paths[number] = tmp_path / str(number)
        _write_logs(paths[number], [("dense", value, 90)])
    level = "tests.fakes.rare_rewards:dense"
    rows = search.rank("agent", level, 100, 4 * [{"epsilon": 0.1}], paths)
    assert [row["setting"] for row in rows] == [2, 1, 3, 0]
    assert [float(row["fitness"]) for row in rows] == sorted(returns, reverse=True)

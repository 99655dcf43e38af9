"""The tool that runs experiments, with a stand-in for the launch script."""

import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from absl import flags

from scalable_agent_popart.errors import UserError
from tests.fakes.programs import DEADLINE_SECONDS, ROOT, logged_frames, metrics, wait_until

_ENDLESS, _TERMINATED = 10**9, 128 + signal.SIGTERM
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

    def processes(self, name: str) -> list[dict[str, Any]]:
        lines = (self.run_path(name) / "processes.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def reported(self) -> list[dict[str, Any]]:
        return json.loads((self.folder / "report" / "runs.json").read_text())["runs"]

    def run(self, *arguments: str, code: int = 0, until: Sequence[Path] = ()) -> str:
        """Returns what was written to standard error, by a tool that ends with this exit code.

        With `until` it is sent SIGTERM as soon as all of these runs have learned something.
        """
        command = [sys.executable, str(self.folder / "tools" / "run_experiment.py")]
        command += [f"--logdir={self.folder / 'runs'}", f"--report_dir={self.folder / 'report'}"]
        with subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                if until:
                    wait_until(lambda: all(map(logged_frames, until)), process)
                    process.terminate()
                _, error = process.communicate(timeout=DEADLINE_SECONDS)
            finally:
                process.kill()
        assert process.returncode == code, error
        return error


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


def test_runs_are_trained_tested_and_reported_on_once(tmp_path: Path) -> None:
    experiment, second = Experiment(tmp_path / "one, two"), 'a "second"'
    # A test must be given the flag as well, since no module is imported on a record's word.
    module = "--level_name=my_tasks:own"
    files = [experiment.flag_file("first"), experiment.flag_file(second, more=module)]
    for _ in range(2):
        experiment.run("--test_num_episodes=2", *files, "--", "--entropy_cost=0.007")
    for name, tested in (("first", "the run"), (second, "my_tasks:own")):
        path = experiment.run_path(name)
        assert [line["frames"] for line in metrics(path)] == [100, 200, 300]
        assert (path / "tests").read_text() == f"tested {tested}\n"
        (process,) = experiment.processes(name)
        assert process["memory_kib"] > 1000
    names = (experiment.folder / "report" / "runs").read_text()
    assert flags.ListParser().parse(names) == [
        str(experiment.run_path(name)) for name in ("first", second)
    ]
    runs = experiment.reported()
    assert [run["flag_file"] for run in runs] == ["first.flags", f"{second}.flags"]
    assert runs[0]["flags"]["entropy_cost"] == "0.007"
    assert runs[0]["test"]["frames"] == 300


def test_a_test_that_failed_or_had_fewer_episodes_is_repeated(experiment: Experiment) -> None:
    file = experiment.flag_file("first")
    (experiment.folder / "runs").mkdir()
    (experiment.folder / "runs" / "terminate").touch()
    assert "exit code 143" in experiment.run("--test_num_episodes=2", file, code=1)
    for asked in (["--test_num_episodes=2"], []):
        experiment.run(*asked, file)
    assert (experiment.run_path("first") / "tests").read_text() == "tested the run\n" * 2
    assert experiment.reported()[0]["test"]["episodes"] == {"pong": 200}


def test_a_population_is_trained_as_a_run_whose_members_have_the_logs(
    experiment: Experiment,
) -> None:
    endless = experiment.flag_file("pbt", _ENDLESS, "--mode=pbt")
    learns = experiment.run_path("pbt") / "member-02"
    experiment.run(endless, code=_TERMINATED, until=[learns])
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
        archive.extractall(experiment.folder / "other", filter="data")
    for name in ("population.json", "member-02/config.json"):
        record = json.loads((experiment.folder / "other" / "pbt-1" / name).read_text())
        assert "seed" in record["flags"]
        assert "logdir" not in record["flags"]


def test_a_signal_saves_what_trains_and_what_follows_does_not_begin(experiment: Experiment) -> None:
    files = [experiment.flag_file(name, _ENDLESS) for name in ("first", "second", "third")]
    begun = [experiment.run_path(name) for name in ("first", "second")]
    error = experiment.run("--places=2", *files, code=_TERMINATED, until=begun)
    assert "Traceback" not in error
    for name in ("first", "second"):
        assert (experiment.run_path(name) / "saved").exists()
        assert len(experiment.processes(name)) == 1
    assert not experiment.run_path("third").exists()


def test_a_run_that_fails_is_named_and_the_others_continue(experiment: Experiment) -> None:
    bad, good = experiment.flag_file("bad", 300, "--fake=fail"), experiment.flag_file("good")
    error = experiment.run("--places=1", bad, good, code=1)
    log = experiment.folder / "runs" / "bad-1.log"
    assert str(log) in error
    assert "diverged" in log.read_text()
    assert (experiment.run_path("good") / "evaluation.json").exists()
    assert [run["frames"] for run in experiment.reported()] == [200, 300]


def test_a_search_trains_the_better_half_further_and_writes_the_best(
    experiment: Experiment,
) -> None:
    files = [
        experiment.flag_file(name, _ENDLESS, f"--level_name=pong{more}")
        for name, more in (("first", ""), ("second", "\n--multi_head"))
    ]
    for _ in range(2):  # The second time all is done.
        experiment.run("--search_settings=3", "--search_frames=200,400", *files)
    table = pd.read_csv(experiment.folder / "report" / "search.csv")
    for name, rows in table.groupby("agent"):
        rates = dict(zip(rows.setting, rows.learning_rate, strict=True))
        best = sorted(rates, key=lambda number: -rates[number])
        assert rows.setting.tolist() == [*best, *best[:2]]
        assert rows.seed.tolist() == [_FIRST_SEED + number for number in rows.setting]
        assert rows.frames.tolist() == 3 * [200] + 2 * [400]
        winner = (experiment.folder / "report" / f"{name}.flags").read_text()
        assert f"--learning_rate={rates[best[0]]:.6g}\n" in winner
        assert ("--multi_head" in winner) == (name == "second")
        for number in range(3):
            run = f"{name}-setting-{number:02d}-{_FIRST_SEED + number}"
            path = experiment.folder / "runs" / run
            reached = 200 * (1 + (number in best[:2]))
            assert [line["frames"] for line in metrics(path)] == [*range(100, reached + 1, 100)]
            assert not (path / "tests").exists()
    assert table.agent.nunique() == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--logdir=/proc/none"], "/proc/none"),
        (["--search_frames=200", "--seeds=2"], "--seeds means nothing with --search_frames"),
        (["--search_frames=0.5"], "flag --search_frames=0.5: not a whole number"),
        (["--search_frames=200"], "must name the same --level_name"),
        (["--search_frames=200", "--report_dir=."], "holds the agents' own flag files"),
    ],
)
def test_what_makes_no_sense_is_refused(
    experiment: Experiment, given: list[str], message: str
) -> None:
    (line,) = experiment.run(experiment.flag_file("first"), *given, code=2).splitlines()
    assert message in line
    assert not (experiment.folder / "runs").exists()


@pytest.mark.parametrize(
    ("level_name", "games", "best_first"),
    [
        # Only one of three runs has finished Pong. The first learned Boxing and forgets it later.
        ("boxing,pong", [{"boxing": 12.0, "pong": 21.0}, {"boxing": 5.0}, {"boxing": 0.1}], "012"),
        # Returns of a suite without scores are not capped.
        ("tests.fakes.rare_rewards:dense", [{"dense": r} for r in (1e-4, 200, 1e3, 2e-4)], "2130"),
    ],
)
def test_settings_are_ranked_by_what_most_have_finished_within_the_rounds_frames(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    level_name: str,
    games: list[dict[str, float]],
    best_first: str,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    search = importlib.import_module("search")
    task = next(iter(games[0]))
    paths = {number: tmp_path / str(number) for number in reversed(range(len(games)))}
    for number, path in paths.items():
        path.mkdir()
        (path / "metrics.jsonl").write_text('{"frames": 100}\n{"frames": 300}\n')
        lines = [(game, value, 90) for game, value in games[number].items()] + [(task, -1e4, 250)]
        episodes = [{"task": t, "episode_return": r, "frames": at} for t, r, at in lines]
        (path / "episodes.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in episodes))
    rows = search.rank(level_name, 100, paths)
    assert "".join(str(row["setting"]) for row in rows) == best_first
    assert [row["rank"] for row in rows] == [*range(1, len(games) + 1)]
    assert {row["tasks"] for row in rows} == {1}
    assert float(rows[-1]["fitness"]) == pytest.approx(0.0, abs=0.1)  # It is near random play.
    (tmp_path / best_first[0] / "metrics.jsonl").write_text('{"frames": 50}\n')
    rows = search.rank(level_name, 100, paths)
    assert "".join(str(row["setting"]) for row in rows) == best_first[1:] + best_first[0]
    assert float(rows[-1]["fitness"]) == -math.inf
    with pytest.raises(UserError, match="no run came to 400 frames"):
        search.rank(level_name, 400, paths)

"""tools/run_experiment.py, as a program: agents and seeds trained, tested and reported on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.programs import ROOT, metrics, wait_until
from tests.fakes.synthetic_runs import make_run

_SETTINGS = [
    "--level_name=catch_1,catch_10",
    "--total_environment_frames=4000",
    "--num_actors=4",
    "--batch_size=4",
    "--log_seconds=0.1",
    "--log_task_gradients",
]
_AGENTS = {"small-impala": [], "small-popart": ["--use_popart"]}


def _config(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())


def _flag_files(folder: Path, *more: str) -> list[str]:
    paths = [folder / f"{name}.flags" for name in _AGENTS]
    for path in paths:
        lines = [f"# {path.stem}", *_SETTINGS, *_AGENTS[path.stem], *more]
        path.write_text("\n".join(lines) + "\n")
    return [str(path) for path in paths]


@contextlib.contextmanager
def _running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program; whatever becomes of the test, nothing of it is left."""
    command = [sys.executable, "tools/run_experiment.py", f"--logdir={folder / 'runs'}"]
    command += [f"--report_dir={folder / 'report'}", "--test_num_episodes=2", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    with _running(folder, *arguments) as process:
        out, err = process.communicate()
    return process.returncode, out, err


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two agents were trained, tested and reported on."""
    folder = tmp_path_factory.mktemp("experiment")
    code, _, err = _run(folder, *_flag_files(folder), "--", "--entropy_cost=0.007")
    assert code == 0, err
    return folder


def test_every_agent_is_trained_tested_and_reported_on(done: Path) -> None:
    for name in _AGENTS:
        run = done / "runs" / f"{name}-1"
        assert metrics(run)[-1]["frames"] >= 4000
        evaluation = json.loads((run / "evaluation.json").read_text())
        assert evaluation["frames"] == metrics(run)[-1]["frames"]
        assert len(evaluation["tasks"]["catch_10"]["returns"]) == 2
    report = (done / "report" / "report.md").read_text()
    assert "PopArt-IMPALA" in report
    assert "### Gradients by task" in report


def test_what_made_the_runs_stands_beside_the_report(done: Path) -> None:
    record = json.loads((done / "report" / "runs.json").read_text())
    assert record["reported_on"]["cores"] == os.cpu_count()
    impala, popart = record["runs"]
    assert impala["machines"] == [record["reported_on"]]
    assert impala["git_revisions"] == [_config(done / "runs" / "small-impala-1")["git_revision"]]
    assert (impala["agent"], popart["agent"]) == ("IMPALA", "PopArt-IMPALA")
    assert impala["flag_file"] == "small-impala.flags"
    assert impala["frames"] == metrics(done / "runs" / "small-impala-1")[-1]["frames"]
    assert impala["seed"] == 1
    assert impala["test"]["episodes"] == {"catch_1": 2, "catch_10": 2}
    assert (impala["test"]["starts"], impala["test"]["frames"]) == ("noop", impala["frames"])
    assert impala["flags"]["entropy_cost"] == 0.007
    assert impala["seconds"] > 1
    assert impala["largest_memory_mib"] > 100
    assert impala["versions"]["tensorflow"]
    assert impala["flags"]["total_environment_frames"] == 4000


def test_from_the_logs_alone_the_same_report_is_made_again(done: Path, tmp_path: Path) -> None:
    with tarfile.open(done / "report" / "logs.tar.xz") as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    for name in _AGENTS:
        left = {path.name for path in (tmp_path / "runs" / f"{name}-1").iterdir()}
        assert {"metrics.jsonl", "episodes.jsonl", "evaluations"} <= left
        assert "checkpoints" not in left
    code, _, err = _run(tmp_path, "--notrain", *_flag_files(tmp_path))
    assert code == 0, err
    tables = sorted((done / "report" / "tables").iterdir())
    assert tables
    for table in tables:
        again = tmp_path / "report" / "tables" / table.name
        assert again.read_text().replace(str(tmp_path), str(done)) == table.read_text()


def test_a_run_has_all_revisions_and_machines_that_trained_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "small-impala-1", level_name="catch5", tests={}).path
    process = {"seconds": 1.0, "memory_kib": 2048, "git_revision": "one", "machine": "a"}
    older = {"seconds": 1.0, "memory_kib": 1024}
    lines = [older, process, {**process, "git_revision": "two"}, {**process, "machine": "b"}]
    (run / "processes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, _, err = _run(tmp_path, "--notrain", *_flag_files(tmp_path))
    assert code == 0, err
    (found,) = json.loads((tmp_path / "report" / "runs.json").read_text())["runs"]
    assert found["git_revisions"] == [None, "one", "two"]
    assert found["machines"] == [None, "a", "b"]
    assert (found["seconds"], found["largest_memory_mib"]) == (4, 2)
    assert found["test"] is None


def test_what_is_finished_is_not_done_again(done: Path) -> None:
    runs = [done / "runs" / f"{name}-1" for name in _AGENTS]
    before = [len(metrics(run)) for run in runs]
    code, _, err = _run(done, *_flag_files(done), "--", "--entropy_cost=0.007")
    assert code == 0, err
    assert [len(metrics(run)) for run in runs] == before
    for run in runs:
        assert len(list((run / "evaluations").glob("*.json"))) == 1


def _endless(folder: Path) -> tuple[list[str], list[Path]]:
    """Flag files of runs that do not end by themselves, and where they will be."""
    files = _flag_files(folder, "--total_environment_frames=100000000")
    return files, [folder / "runs" / f"{name}-1" for name in _AGENTS]


def _left_behind(folder: Path) -> bool:
    """Whether a process still runs that was told of the folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if str(folder).encode() in path.read_bytes():
                return True
    return False


def test_a_signal_saves_what_trains_and_leaves_nothing(tmp_path: Path) -> None:
    files, runs = _endless(tmp_path)
    with _running(tmp_path, "--places=2", *files) as process:
        wait_until(lambda: all(len(metrics(run)) > 1 for run in runs), process)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert not _left_behind(tmp_path)
    assert process.returncode == 128 + signal.SIGTERM
    for run in runs:
        assert list((run / "checkpoints").glob("*.index"))
        assert len((run / "processes.jsonl").read_text().splitlines()) == 1
    # Reported on as they are.
    code, _, err = _run(tmp_path, "--notrain", *files)
    assert code == 0, err
    assert len(json.loads((tmp_path / "report" / "runs.json").read_text())["runs"]) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_programs_start_leaves_nothing(tmp_path: Path, number: int) -> None:
    files, runs = _endless(tmp_path)
    logs = [run.parent / f"{run.name}.log" for run in runs]
    with _running(tmp_path, "--places=2", *files) as process:
        wait_until(lambda: all(log.exists() for log in logs), process)
        process.send_signal(number)
        _, err = process.communicate()
        assert not _left_behind(tmp_path)
    assert process.returncode == 128 + number
    assert "Traceback" not in err


def test_with_turns_each_run_gets_on_again_and_again(tmp_path: Path) -> None:
    files, (first, second) = _endless(tmp_path)
    with _running(tmp_path, "--places=1", "--turn_minutes=0.05", *files) as process:
        wait_until(lambda: len(metrics(second)) > 1, process)
        frames = metrics(first)[-1]["frames"]
        assert frames > 0
        wait_until(lambda: metrics(first)[-1]["frames"] > frames, process)
        process.send_signal(signal.SIGTERM)
        process.wait()
    assert len((first / "processes.jsonl").read_text().splitlines()) == 2
    assert len((second / "processes.jsonl").read_text().splitlines()) == 1


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    bad, good = _flag_files(tmp_path)
    with open(bad, "a") as file:  # Diverges in a few updates.
        file.write("--learning_rate=1e30\n--total_environment_frames=1000000\n")
    code, _, err = _run(tmp_path, "--places=1", bad, good)
    assert code == 1
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    log = tmp_path / "runs" / "small-impala-1.log"
    assert str(log) in line
    assert "diverged" in log.read_text()
    assert (tmp_path / "runs" / "small-popart-1" / "evaluation.json").exists()
    failed, fine = json.loads((tmp_path / "report" / "runs.json").read_text())["runs"]
    assert (failed["agent"], fine["agent"]) == ("IMPALA", "PopArt-IMPALA")
    assert failed["frames"] < 1_000_000
    assert failed["seconds"] > 0
    assert failed["machines"] == fine["machines"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no.flags"], "there is no flag file no.flags"),
        ([], "there is nothing to run"),
        (["--seeds=1,1", "configs/catch5/catch5-raw-impala.flags"], "each file and each seed once"),
        (["configs/atari57/atari57-clipped-impala-pbt.flags"], "is a population's"),
        (["configs/catch5/catch5-raw-impala.flags", "--", "--seed=3"], "give --seeds"),
        (["--notrain", "configs/catch5/catch5-raw-impala.flags"], "no run has begun"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    code, _, err = _run(tmp_path, *arguments)
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert complaint in line
    assert not (tmp_path / "runs").exists()

"""A run's directory: its record, its lock, complete writes, and how `--runs` finds it."""

import dataclasses
import errno
import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs import directory as run_directory
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.runs.directory import Record, RunDirectory, find_runs, lock
from scalable_agent_popart.runs.run import Run
from scalable_agent_popart.settings import SETTINGS

_ROOT = Path(__file__).resolve().parents[3]
_DEVICE = {"processor": "Xeon", "cores": 1, "gpus": ["H100"]}


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(str(tmp_path))


def _config(**flags: object) -> Config:
    return Config.from_flags({"level_name": "catch5", **flags})


def _record(directory: RunDirectory, **flags: object) -> dict:
    """Starts a run; returns the record that it wrote."""
    directory.record(_config(**flags))
    return json.loads((directory.path / "config.json").read_text())


def _check(directory: RunDirectory, config: Config) -> None:
    """Raises UserError if the configuration cannot train in the directory."""
    Run.check(dataclasses.replace(config, logdir=str(directory.path)))


def _learn(directory: RunDirectory) -> None:
    """Makes it look as if the run had saved a checkpoint."""
    directory.checkpoints.mkdir()
    (directory.checkpoints / "ckpt-1.index").touch()


def test_the_record_is_read_back_and_says_what_made_the_run(directory: RunDirectory) -> None:
    assert Run.find(directory.path) is Run.find(directory.path / "missing") is None
    given = {"use_popart": True, "seed": 7, "learning_rate": 1e-3, "logdir": str(directory.path)}
    record, config = _record(directory, **given), _config(**given)
    assert Run.open(directory.path).config == config
    keys = {"agent", "flags", "tasks", "versions", "git_revision", "device", "history", "suite"}
    assert set(record) == keys
    assert set(record["flags"]) == set(SETTINGS)
    assert (record["agent"], record["history"]) == ("PopArt-IMPALA", [])
    assert record["tasks"] == list(config.suite.tasks)
    assert record["versions"]["python"] == sys.version.split()[0]
    packages = {"tensorflow", "dm-sonnet", "tensorflow-probability", "ale-py", "numpy"}
    assert packages <= set(record["versions"])


def test_the_git_revision_is_the_checkouts_or_without_git_the_images(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_REVISION", "")
    if shutil.which("git") and (_ROOT / ".git").exists():
        command = ["git", "-c", "safe.directory=*", "-C", str(_ROOT), "rev-parse", "--short"]
        head = subprocess.check_output([*command, "HEAD"], text=True).strip()
        assert head in _record(directory)["git_revision"]
    monkeypatch.setenv("PATH", str(directory.path))
    assert _record(directory)["git_revision"] is None
    monkeypatch.setenv("GIT_REVISION", "v1-2-gabc")
    assert _record(directory)["git_revision"] == "v1-2-gabc"


def test_a_write_replaces_the_whole_file_or_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "record.json", run_directory.write_atomically
    write(path, {"long": "x" * 1000})
    write(path, {"short": [1]})
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(run_directory.os, "fsync", mock.Mock(side_effect=OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write(path, {"new": 2})
    assert json.loads(path.read_text()) == {"short": [1]}
    assert list(tmp_path.iterdir()) == [path]


def test_flags_that_shape_learning_change_before_it_begins_or_if_that_is_allowed(
    directory: RunDirectory,
) -> None:
    _record(directory)
    changed = {"discounting": 0.5, "seed": 9}
    _check(directory, _config(**changed))
    _learn(directory)
    free = {"num_actors": 20, "actor_threads": 1, "total_environment_frames": 10**6, "xla": True}
    allowed = {**changed, "init_from": "older", "allow_changes": True}
    for flags in ({}, free, allowed):
        _check(directory, _config(**flags))


def test_tasks_in_another_order_and_other_images_are_refused(directory: RunDirectory) -> None:
    first, second, *rest = _config().suite.tasks

    def changed(**fields: object) -> Config:
        suite = dataclasses.replace(_config().suite, name="own", **fields)
        return dataclasses.replace(_config(), suite=suite, level_name="own")

    directory.record(changed())
    _check(directory, changed())
    for config, differences in (
        (
            changed(tasks=(second, first, *rest)),
            f"task 0 was {first} and is {second}; task 1 was {second} and is {first}",
        ),
        (changed(num_channels=1), "num_channels was 3 and is 1"),
        (changed(stacks_frames=True), "stacks_frames was False and is True"),
    ):
        message = f"another run: {differences}; give the same flags and the same suite or"
        with pytest.raises(UserError, match=message):
            _check(directory, config)


def test_a_run_from_before_a_setting_was_recorded_goes_on(directory: RunDirectory) -> None:
    record = _record(directory, seed=7)
    del record["history"], record["device"], record["suite"], record["flags"]["action_set"]
    (directory.path / "config.json").write_text(json.dumps(record))
    _learn(directory)
    revision = record["git_revision"]
    assert directory.read_record() == Record(_config(seed=7), git_revision=revision)
    _check(directory, _config(seed=7))


def test_the_record_keeps_the_changes_with_which_something_was_learned(
    directory: RunDirectory,
) -> None:
    first = (800, {"discounting": [0.99, 0.6]})
    given = {"seed": 2, "batch_size": 9, "total_environment_frames": 10**9}
    others = {name: [getattr(_config(), name), value] for name, value in given.items()}
    others["discounting"] = [0.6, 0.99]
    for flags, frames, expected in (
        ({"seed": 3}, 0, []),
        ({}, 0, []),
        ({}, 400, []),
        ({"discounting": 0.5, "num_actors": 20}, 800, [(800, {"discounting": [0.99, 0.5]})]),
        ({"discounting": 0.6}, 800, [first]),
        (given, 1600, [first, (1600, others)]),
        ({}, 400, []),  # Newer checkpoints are gone.
    ):
        directory.record(_config(**flags), frames, _DEVICE)
        history = directory.read_record().history
        assert [(change.frames, change.changed) for change in history] == expected
        assert all(change.git_revision == run_directory.git_revision() for change in history)
    assert directory.read_record().device == "H100, 1 core of Xeon"
    assert run_directory.describe_device({**_DEVICE, "cores": 2, "gpus": []}) == "2 cores of Xeon"


def test_a_check_of_a_new_directory_writes_nothing(tmp_path: Path) -> None:
    _check(RunDirectory(tmp_path / "run"), _config())
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="cannot be written to"):
        lock(Path("/proc/none/run"))  # Root cannot make it either.


def test_the_lock_is_free_once_its_owner_closed_it(tmp_path: Path) -> None:
    path = tmp_path / "some" / "run"
    with lock(path), pytest.raises(UserError, match="another process trains in"):
        lock(path)
    lock(path).close()
    broken = mock.patch.object(fcntl, "flock", side_effect=OSError(errno.ENOLCK, "no locks"))
    with broken, pytest.raises(UserError, match="no locks"):
        lock(path)


def test_a_test_that_could_not_be_written_is_refused_before_it_is_played(
    directory: RunDirectory,
) -> None:
    for taken in (directory.evaluations, directory.videos):
        taken.symlink_to("/proc")  # Not even root can write there.
        with pytest.raises(UserError, match="cannot be written to"):
            directory.prepare_evaluation(films=True)
        taken.unlink()
    directory.prepare_evaluation(films=False)
    assert not directory.videos.exists()


def test_folders_and_patterns_stand_for_the_runs_in_them_and_paths_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a/config.json", "runs/b/population.json", "runs/b/member-00/config.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    for name in ("runs/[ab]/config.json", "runs/report/report.html", "runs/a/checkpoints/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "runs" / "a.log").touch()
    every = ["runs/[ab]", "runs/a", "runs/b"]
    for names, runs in (
        (["runs"], every),
        (["runs/*"], every),
        (["runs/[ab]"], ["runs/[ab]"]),
        (["runs/[a]", "runs/b/"], ["runs/a", "runs/b/"]),
        (["runs/b/member-*"], ["runs/b/member-00"]),
        (["runs/report", "runs/*.log"], ["runs/report", "runs/*.log"]),
    ):
        assert list(find_runs(names)) == runs
    for name in ("none", "none*", ""):
        with pytest.raises(UserError, match="which does not exist"):
            list(find_runs(["runs", name]))

"""What a directory holds, a command for it, and what the one line names that refuses it.

Commands that need no directory to be refused are in `unit/command_line_test.py`.
"""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from scalable_agent_popart.errors import FAILS_AGAIN
from scalable_agent_popart.system.program import exit_code
from tests.fakes.main_program import run

_FLAGS = {"level_name": "catch_1", "num_actors": 2, "batch_size": 2, "unroll_length": 10}
_TRAIN = {**_FLAGS, "logdir": "runs/a", "total_environment_frames": 80}
_NEW = {**_TRAIN, "logdir": "new", "init_from": "runs/a"}
_BOARDS_OF_PONG = {"level_name": "pong", "height": 10, "width": 5, "network": "shallow"}
_PBT = {**_FLAGS, "logdir": "runs/a", "mode": "pbt", "population_size": 2}
_TEST = {"mode": "test", "logdir": "runs/a"}
_NEWEST = "checkpoints/ckpt-2"
_DATA = ".data-00000-of-00001"
# TensorFlow reports ESTALE without its number, so only the text shows that it may pass.
_STALE = tf.errors.OpError(None, None, f"/run/{300 * 'x'}; Stale file handle", 2)

State = Callable[[Path], Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains a run, which saves after its first update and at its end."""
    logdir = tmp_path_factory.mktemp("trained") / "run"
    run(**{**_TRAIN, "logdir": str(logdir), "total_environment_frames": 60})
    return logdir


def _as_trained(logdir: Path) -> None:
    """Leaves the run as it was."""


def _wrote(name: str, content: bytes = b"") -> State:
    return lambda logdir: (logdir / name).write_bytes(content)


def _lost(*names: str) -> State:
    def remove(logdir: Path) -> None:
        for name in names:
            path = logdir / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def _holds_only(name: str) -> State:
    def replace(logdir: Path) -> None:
        shutil.rmtree(logdir)
        logdir.mkdir()
        (logdir / name).write_bytes(b"of unknown origin")

    return replace


def _keeps_one_damaged_checkpoint(logdir: Path) -> None:
    (logdir / "checkpoints/ckpt-1.index").unlink()
    (logdir / f"{_NEWEST}.index").write_bytes(b"cut")


def _is_away(number: int) -> State:
    """Makes reading the record fail with this error of the file system."""
    read = Path.read_text

    def fail(path: Path, *how: Any, **named: Any) -> str:
        if path == Path("runs/a/config.json"):
            raise OSError(number, "away")
        return read(path, *how, **named)

    return lambda _: mock.patch.object(Path, "read_text", fail).start()


def _fails(target: type, method: str, error: Exception) -> State:
    return lambda _: mock.patch.object(target, method, side_effect=error).start()


_UNTRAINED = _lost("checkpoints")
_POPULATION = _holds_only("population.json")
_DAMAGED_RECORDS = (b"", b'{"flags": null}', b'{"flags": {"no_such_setting": 1}}')
_DELETE = r"runs/a/checkpoints/ckpt-2 .*runs/a/checkpoints/ckpt-2\.\* .*ckpt-1$"
_LOG_FILES = ("metrics.jsonl", "episodes.jsonl", "checkpoints", "events.out.tfevents.1.host")
_REFUSED = [
    # A run of other flags.
    (_as_trained, _TRAIN | {"discounting": 0.5}, r"runs/a .*--discounting .*0\.99 .*0\.5;"),
    (_as_trained, _TRAIN | {"discounting": 0.5}, "--logdir, .*--allow_changes"),
    (_as_trained, _TRAIN | {"seed": 9}, "--seed .*1 .*9;"),
    (_as_trained, _TRAIN | {"init_from": "older"}, "--init_from .*older;"),
    (
        _as_trained,
        _TRAIN | {"network": "deep", "allow_changes": True},
        "runs/a .*--network .*shallow .*deep; .*--logdir",
    ),
    (_as_trained, _TRAIN | {"level_name": "catch_10"}, "--level_name .*catch_1 .*catch_10;"),
    # No run, or something else.
    (_as_trained, _TEST | {"logdir": "runs"}, "runs; .*runs/a$"),
    (_as_trained, _TEST | {"logdir": "runs/a/checkpoints"}, "runs/a/checkpoints; .*runs/a$"),
    (_as_trained, _TEST | {"logdir": "runs/b"}, "runs/b;"),
    (_as_trained, _TRAIN | {"logdir": "runs/a/config.json/b"}, "--logdir=runs/a/config.json/b"),
    (_as_trained, _TRAIN | {"logdir": "x" * 300}, "x" * 300),
    (_as_trained, _PBT, "runs/a .*--logdir"),
    (_POPULATION, _TRAIN, "--logdir=runs/a/member-00"),
    (_POPULATION, _TEST, "--logdir=runs/a/member-00"),
    *(
        (_holds_only(name), _TRAIN, rf"runs/a .*{name} .*config\.json.*--logdir")
        for name in _LOG_FILES
    ),
    # A record that cannot be read.
    *(
        (_wrote("config.json", c), _TRAIN, r"runs/a/config\.json .*--logdir")
        for c in _DAMAGED_RECORDS
    ),
    (_is_away(errno.EACCES), _TRAIN, r"runs/a/config\.json .*\(away\)"),
    # Checkpoints that are missing or cannot be read.
    (_UNTRAINED, _TRAIN, "runs/a .*--logdir"),
    (_UNTRAINED, _TEST, "runs/a/checkpoints;"),
    (_keeps_one_damaged_checkpoint, _TRAIN, "runs/a/checkpoints/ckpt-2 .*--logdir"),
    (_wrote(f"{_NEWEST}.index"), _TRAIN, _DELETE),
    (_wrote(f"{_NEWEST}{_DATA}"), _TRAIN, _DELETE),
    (_lost(f"{_NEWEST}{_DATA}"), _TRAIN, _DELETE),
    # Weights of another run that cannot be taken.
    (_as_trained, _NEW | {"network": "deep"}, "--init_from=runs/a .*--network .*shallow .*deep;"),
    (_as_trained, _NEW | {"level_name": "pong"}, "--init_from=runs/a .*--height .*10 .*84;"),
    (_as_trained, _NEW | _BOARDS_OF_PONG, "--init_from=runs/a .*stacks_frames .*False .*True;"),
    (_as_trained, _NEW | {"zero_mean_filters": True}, "--zero_mean_filters .*False .*True;"),
    (_as_trained, _NEW | {"init_from": "runs/b"}, "--init_from: .*runs/b;"),
    (_as_trained, _PBT | {"logdir": "new", "init_from": "runs/b"}, "--init_from: .*runs/b;"),
    (_UNTRAINED, _NEW, "--init_from=runs/a"),
    (_POPULATION, _NEW, "--init_from: runs/a .*member-00"),
    (_wrote(f"{_NEWEST}.index"), _NEW, "--init_from: .*runs/a/checkpoints/ckpt-2 "),
]
# A cluster tries again what may have passed meanwhile.
_MAY_PASS = [
    (_is_away(errno.EIO), _TRAIN, r"runs/a/config\.json .*\(away\)"),
    (_is_away(errno.EIO), _NEW, r"--init_from: runs/a/config\.json .*\(away\)"),
    (_fails(Path, "iterdir", OSError(errno.EIO, "away")), _TRAIN, r"runs/a/checkpoints .*\(away\)"),
    (_fails(tf.train.Checkpoint, "read", _STALE), _TRAIN, "runs/a/checkpoints/ckpt-2 .*/run/xxx"),
]
_ROWS = [*((*row, False) for row in _REFUSED), *((*row, True) for row in _MAY_PASS)]


@pytest.mark.parametrize(
    ("state", "command", "named", "may_pass"), _ROWS, ids=[named for _, _, named, _ in _ROWS]
)
def test_a_directory_is_refused_in_one_line_that_names_what_to_change(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    command: dict[str, Any],
    named: str,
    may_pass: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        state(Path(shutil.copytree(trained, "runs/a")))
        before = _content(tmp_path)
        with pytest.raises(SystemExit, match=f"^error: .*{named}") as end:
            run(**command)
    finally:
        mock.patch.stopall()
    assert "\n" not in str(end.value)
    assert _content(tmp_path) == before
    assert (exit_code(end.value.__cause__) != FAILS_AGAIN) == may_pass


def _content(folder: Path) -> dict[Path, bytes]:
    """Returns all files with what they hold, but for locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes() for path in files}

"""A run's directory: its record, who may use it, and writes that are never seen half done."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalable_agent_popart.config import Config
from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs import directory as run_directory
from scalable_agent_popart.runs.directory import RunDirectory

_ROOT = Path(__file__).resolve().parents[3]

_HOLD = """
import sys
from scalable_agent_popart.config import Config
from scalable_agent_popart.runs.directory import RunDirectory

directory = RunDirectory(sys.argv[1])
directory.lock()
directory.record(Config.from_flags({"level_name": "catch5"}))
print("held", flush=True)
sys.stdin.read()
"""


def _config(**flags: object) -> Config:
    return Config.from_flags({"level_name": "catch5", **flags})


def _record(path: Path, config: Config) -> dict:
    """Opens and leaves the directory; returns what it wrote."""
    directory = RunDirectory(str(path))
    directory.lock()
    directory.record(config)
    directory.close()
    return json.loads((path / "config.json").read_text())


def _commit(revision: str) -> str:
    """The full hash of a revision of this checkout; empty if there is none."""
    command = ["git", "-C", str(_ROOT), "rev-parse", "--verify", f"{revision}^{{commit}}"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@contextmanager
def _held_by_another_process(path: Path) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_configuration_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    config = _config(use_popart=True, seed=7, learning_rate=1e-3, logdir=str(tmp_path))
    _record(tmp_path, config)
    assert RunDirectory(str(tmp_path)).read_config() == config


def test_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    _record(tmp_path / "some" / "run", _config())
    assert RunDirectory(str(tmp_path / "some" / "run")).read_config() == _config()


def test_directory_without_a_run_has_no_configuration(tmp_path: Path) -> None:
    assert RunDirectory(str(tmp_path)).read_config() is None
    assert RunDirectory(str(tmp_path / "missing")).read_config() is None


def test_record_has_flags_tasks_agent_versions_and_git_revision(tmp_path: Path) -> None:
    config = _config(use_popart=True)
    record = _record(tmp_path, config)
    keys = {"agent", "flags", "tasks", "versions", "git_revision", "device", "history"}
    assert set(record) == keys
    assert record["history"] == []
    assert set(record["flags"]) == set(Config.__dataclass_fields__)
    assert record["flags"]["level_name"] == "catch5"
    assert record["tasks"] == list(config.suite.tasks)
    assert record["agent"] == "PopArt-IMPALA"
    assert record["versions"]["python"] == sys.version.split()[0]
    packages = {"tensorflow", "dm-sonnet", "tensorflow-probability", "ale-py", "numpy"}
    assert packages <= set(record["versions"])


def test_git_revision_is_the_checkouts(tmp_path: Path) -> None:
    head = _commit("HEAD")
    if not head:
        pytest.skip("not a git checkout")
    recorded = _record(tmp_path, _config())["git_revision"]
    assert _commit(recorded.removesuffix("-dirty")) == head


def test_git_revision_is_none_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _record(tmp_path, _config())["git_revision"] is None


def test_record_holds_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_NAME_OF_A_TOKEN", "a-value-nobody-should-see")
    _record(tmp_path, _config())
    for file in tmp_path.iterdir():
        assert "SOME_NAME_OF_A_TOKEN" not in file.read_text()
        assert "a-value-nobody-should-see" not in file.read_text()


def test_write_replaces_the_whole_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    run_directory.write_atomically(path, {"long": "x" * 1000})
    run_directory.write_atomically(path, {"short": [1]})
    assert json.loads(path.read_text()) == {"short": [1]}
    assert list(tmp_path.iterdir()) == [path]


def test_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    run_directory.write_atomically(path, {"old": 1})

    def fail(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(run_directory.os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        run_directory.write_atomically(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}


def _has_learned(path: Path) -> None:
    """Makes it look as if the run had saved a checkpoint."""
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "ckpt-1.index").touch()


def test_same_configuration_may_go_on_and_so_may_one_with_other_settings(tmp_path: Path) -> None:
    _record(tmp_path, _config(precision="bfloat16"))
    _has_learned(tmp_path)
    free = {"num_actors": 20, "actor_threads": 1, "total_environment_frames": 10**6, "xla": True}
    for flags in ({"precision": "bfloat16"}, {}, {"precision": "auto", **free}):
        RunDirectory(str(tmp_path)).check(_config(**flags))


def test_other_flags_that_shape_learning_are_refused_with_the_difference(tmp_path: Path) -> None:
    _record(tmp_path, _config(precision="bfloat16"))
    changed = {"discounting": 0.5, "seed": 9, "precision": "float32"}
    RunDirectory(str(tmp_path)).check(_config(**changed))  # It has not begun to learn.
    _has_learned(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(UserError) as error:
        RunDirectory(str(tmp_path)).check(_config(**changed))
    message = str(error.value)
    assert "\n" not in message
    for difference in (
        "--discounting was 0.99 and is 0.5",
        "--seed was 1 and is 9",
        "--precision was bfloat16 and is float32",
        "give the same flags, another --logdir, or --allow_changes",
    ):
        assert difference in message
    RunDirectory(str(tmp_path)).check(_config(**changed, allow_changes=True))
    with pytest.raises(UserError, match="holds another run: --use_lstm was False and is True"):
        RunDirectory(str(tmp_path)).check(_config(use_lstm=True, allow_changes=True))
    assert (tmp_path / "config.json").read_bytes() == before


def test_an_old_run_whose_type_is_unknown_goes_on_in_any(tmp_path: Path) -> None:
    _record(tmp_path, _config())
    record = json.loads((tmp_path / "config.json").read_text())
    del record["history"], record["device"]
    (tmp_path / "config.json").write_text(json.dumps(record))
    _has_learned(tmp_path)
    directory = RunDirectory(str(tmp_path))
    assert (directory.read_history(), directory.read_device()) == ((), "")
    for precision in ("float32", "bfloat16", "auto"):
        directory.check(_config(precision=precision))
    directory.record(_config(precision="float32"), 400)
    (change,) = directory.read_history()
    assert (change.frames, change.changed) == (400, {"precision": ("auto", "float32")})


def test_the_record_keeps_every_change_and_when_it_was(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    directory.record(_config())
    directory.record(_config(), 400)
    assert directory.read_history() == ()
    directory.record(_config(discounting=0.5, num_actors=20), 800)
    directory.record(_config(discounting=0.5), 1200)
    directory.record(_config(seed=2, batch_size=9), 1600)
    first, second = json.loads((tmp_path / "config.json").read_text())["history"]
    assert (first["frames"], first["changed"]) == (800, {"discounting": [0.99, 0.5]})
    assert second["frames"] == 1600
    own = _config()
    expected = {"seed": [1, 2], "batch_size": [own.batch_size, 9], "discounting": [0.5, 0.99]}
    assert second["changed"] == expected
    assert first["git_revision"] == second["git_revision"] == run_directory._git_revision()
    assert directory.read_history()[1].changed["seed"] == (1, 2)


def test_flags_that_nothing_was_learned_with_are_not_kept(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    directory.record(_config(seed=3))
    directory.record(_config())
    assert directory.read_history() == ()
    directory.record(_config(discounting=0.5), 800)
    directory.record(_config(discounting=0.6), 800)
    (change,) = directory.read_history()
    assert (change.frames, change.changed) == (800, {"discounting": (0.99, 0.6)})
    directory.record(_config(), 400)  # Its newer checkpoints are gone.
    assert directory.read_history() == ()


@pytest.mark.parametrize(
    "entry", [3, {}, {"frames": "x", "changed": {}}, {"frames": 1, "changed": {"seed": 3}}]
)
def test_a_damaged_history_is_refused(tmp_path: Path, entry: object) -> None:
    record = _record(tmp_path, _config())
    (tmp_path / "config.json").write_text(json.dumps({**record, "history": [entry]}))
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        RunDirectory(str(tmp_path)).read_history()


def test_the_device_is_told_in_words(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    directory.record(_config(), 0, {"processor": "EPYC", "cores": 2, "gpus": []})
    assert directory.read_device() == "2 cores of EPYC"
    directory.record(_config(), 0, {"processor": "Xeon", "cores": 1, "gpus": ["H100"]})
    assert directory.read_device() == "H100, 1 core of Xeon"


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        ({"level_name": "catch_1,catch_10"}, "--level_name was catch5 and is catch_1,catch_10"),
        ({"level_name": "pong", "network": "shallow"}, "--level_name was catch5 and is pong"),
        ({"network": "deep"}, "--network was shallow and is deep"),
        ({"use_lstm": True}, "--use_lstm was False and is True"),
        ({"use_popart": True}, "--use_popart was False and is True"),
        ({"multi_head": True}, "--multi_head was False and is True"),
        ({"reward_clipping": "abs_one"}, "--reward_clipping was none and is abs_one"),
    ],
)
def test_another_suite_or_architecture_is_refused_with_the_difference(
    tmp_path: Path, flags: dict, difference: str
) -> None:
    _record(tmp_path, _config())
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(UserError) as error:
        RunDirectory(str(tmp_path)).check(_config(**flags))
    assert difference in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "--logdir" in str(error.value)
    assert (tmp_path / "config.json").read_bytes() == before


def test_check_writes_nothing(tmp_path: Path) -> None:
    RunDirectory(str(tmp_path / "run")).check(_config())
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_an_unknown_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"no config\.json"):
        RunDirectory(str(tmp_path)).check(_config())


def test_logs_are_not_overwritten_but_by_a_run_that_was_killed_at_once(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    directory.refuse_to_lose_logs()
    directory.metrics.write_text('{"frames": 640}\n')  # All there is before the first checkpoint.
    directory.refuse_to_lose_logs()
    directory.metrics.write_text('{"frames": 640}\n{"frames": 1280}\n')
    with pytest.raises(UserError, match="logs but no checkpoints") as error:
        directory.refuse_to_lose_logs()
    assert str(tmp_path) in str(error.value)
    assert "--logdir" in str(error.value)


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_directory_that_cannot_be_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("something else")
    (tmp_path / "file").chmod(0o777)
    with pytest.raises(UserError, match="--logdir"):
        RunDirectory(str(tmp_path / place)).check(_config())
    assert (tmp_path / "file").read_text() == "something else"


def test_a_run_from_before_a_flag_existed_goes_on_with_its_default(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    directory.record(_config(seed=7))
    path = tmp_path / "config.json"
    record = json.loads(path.read_text())
    del record["flags"]["action_set"]
    path.write_text(json.dumps(record))
    assert directory.read_config() == _config(seed=7)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"flags": {"level_name"',
        b"\xff\xfe\x00",
        b"[1, 2]",
        b'"text"',
        b"{}",
        b'{"flags": null}',
        b'{"flags": {"seed": 1}}',
        b'{"flags": {"no_such_setting": 1}}',
    ],
)
def test_damaged_configuration_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    for refuse in (
        lambda: RunDirectory(str(tmp_path)).read_config(),
        lambda: RunDirectory(str(tmp_path)).check(_config()),
    ):
        with pytest.raises(UserError) as error:
            refuse()
        assert str(path) in str(error.value)
        assert "--logdir" in str(error.value)
        assert "\n" not in str(error.value)
    assert path.read_bytes() == content


def test_second_process_is_refused_while_the_first_lives_and_not_after(tmp_path: Path) -> None:
    with _held_by_another_process(tmp_path) as process:
        before = (tmp_path / "config.json").read_bytes()
        late = RunDirectory(str(tmp_path))
        with pytest.raises(UserError, match="another process trains in"):
            late.lock()
        assert (tmp_path / "config.json").read_bytes() == before
        late.close()
        process.kill()
        process.wait()
        late.lock()
        late.record(_config(seed=5))
        late.close()
    assert RunDirectory(str(tmp_path)).read_config() == _config(seed=5)


def test_closed_directory_is_free_and_may_be_closed_again(tmp_path: Path) -> None:
    first, second = RunDirectory(str(tmp_path)), RunDirectory(str(tmp_path))
    first.lock()
    with pytest.raises(UserError, match="another process"):
        second.lock()
    first.close()
    first.close()
    second.lock()
    second.close()


def test_files_of_a_run_have_the_documented_names(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    places = (directory.metrics, directory.episodes, directory.checkpoints, directory.evaluation)
    names = [os.path.relpath(place, tmp_path) for place in places]
    assert names == ["metrics.jsonl", "episodes.jsonl", "checkpoints", "evaluation.json"]


@pytest.mark.parametrize("flags", [{"level_name": 5}, {"level_name": "catch5", "batch_size": "x"}])
def test_configuration_with_values_of_the_wrong_type_is_refused(
    tmp_path: Path, flags: dict[str, object]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"flags": flags}))
    with pytest.raises(UserError, match="damaged"):
        RunDirectory(str(tmp_path)).read_config()


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.jsonl", "checkpoints"])
def test_directory_with_files_of_unknown_origin_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=name):
        RunDirectory(str(tmp_path)).check(_config())
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("taken", ["evaluations", "videos"])
def test_a_test_that_could_not_be_written_is_refused_before_it_is_played(
    tmp_path: Path, taken: str
) -> None:
    (tmp_path / taken).touch()
    with pytest.raises(UserError, match=f"cannot be written to.*{taken}"):
        RunDirectory(str(tmp_path)).prepare_evaluation(films=True)
    (tmp_path / taken).unlink()
    RunDirectory(str(tmp_path)).prepare_evaluation(films=False)
    assert not (tmp_path / "videos").exists()

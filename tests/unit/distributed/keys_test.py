"""Keys of a run: who may read them, and what they are good for."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalable_agent_popart.distributed import keys
from scalable_agent_popart.errors import UserError


def test_nobody_else_can_enter_or_read(tmp_path: Path) -> None:
    keys.make(directory := tmp_path / "run" / "keys")
    with pytest.raises(UserError, match="cannot be made"):  # Keys are made once.
        keys.make(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert not [path for path in directory.parent.iterdir() if path != directory], "nothing is left"
    for role in (keys.LEARNER, keys.ACTOR):
        assert b"PRIVATE KEY" in keys.load(directory, role).private_key
    with pytest.raises(FileNotFoundError):
        keys.load(tmp_path / "other", keys.ACTOR)
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):  # An actor job waits until they are there.
        keys.load(empty, keys.ACTOR)
    (directory / "learner.crt").unlink()  # A job may have only the actor jobs' part.
    with pytest.raises(UserError, match=r"learner.crt is missing: give the learner"):
        keys.load(directory, keys.LEARNER)


def test_keys_that_others_can_read_or_have_written_are_refused(tmp_path: Path) -> None:
    keys.make(directory := tmp_path / "keys")
    for name, mode in (("actor.key", 0o604), ("actor.key", 0o620), ("authority.crt", 0o620)):
        (directory / name).chmod(mode)
        with pytest.raises(UserError, match=f"{name} is open to other users"):
            keys.load(directory, keys.ACTOR)
        (directory / name).chmod(0o600)
    keys.load(directory, keys.ACTOR)


def test_keys_are_the_users_own_or_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.make(directory := tmp_path / "keys")
    (directory / "actor.key").chmod(0o640)

    def load_as_user_1000(owner: int) -> None:
        def fstat(file: int) -> SimpleNamespace:
            return SimpleNamespace(st_uid=owner, st_mode=os.fstat(file).st_mode)

        monkeypatch.setattr(keys, "os", SimpleNamespace(fstat=fstat, geteuid=lambda: 1000))
        keys.load(directory, keys.ACTOR)

    load_as_user_1000(owner=0)  # Kubernetes mounts a Secret like that.
    for owner, refusal in ((1000, "actor.key is open to other"), (1001, "belongs to another user")):
        with pytest.raises(UserError, match=refusal):
            load_as_user_1000(owner)


def test_keys_that_are_damaged_or_cannot_be_read_are_named(tmp_path: Path) -> None:
    keys.make(directory := tmp_path / "keys")
    (directory / "actor.key").write_text("")
    with pytest.raises(UserError, match=f"{directory} are damaged"):
        keys.load(directory, keys.ACTOR)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be read: Not a directory"):
        keys.load(tmp_path / "file", keys.ACTOR)

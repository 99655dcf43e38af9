"""Keys of a run: who may read them, and what they are good for."""

import os
from pathlib import Path

import pytest

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs import keys


def test_nobody_else_can_enter_or_read(tmp_path: Path) -> None:
    keys.make(place := tmp_path / "run" / "keys")
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    assert not [path for path in place.parent.iterdir() if path != place], "nothing is left"
    for role in (keys.LEARNER, keys.ACTOR):
        assert b"PRIVATE KEY" in keys.load(place, role).private_key
    with pytest.raises(FileNotFoundError):
        keys.load(tmp_path / "other", keys.ACTOR)
    (place / "learner.crt").unlink()  # As where only the actor jobs' part is.
    with pytest.raises(UserError, match=r"learner.crt is missing: give the learner"):
        keys.load(place, keys.LEARNER)


def test_keys_are_made_once(tmp_path: Path) -> None:
    keys.make(tmp_path / "keys")
    with pytest.raises(UserError, match="cannot be made"):
        keys.make(tmp_path / "keys")


def test_keys_that_others_can_read_or_have_written_are_refused(tmp_path: Path) -> None:
    keys.make(place := tmp_path / "keys")
    for name, mode in (("actor.key", 0o604), ("actor.key", 0o620), ("authority.crt", 0o620)):
        (place / name).chmod(mode)
        with pytest.raises(UserError, match=f"{name} is open to other users"):
            keys.load(place, keys.ACTOR)
        (place / name).chmod(0o600)
    keys.load(place, keys.ACTOR)
    if os.geteuid() == 0:
        os.chown(place / "learner.crt", 12345, 12345)
        with pytest.raises(UserError, match="belongs to another user"):
            keys.load(place, keys.LEARNER)
        os.chown(place / "actor.key", os.geteuid(), 12345)
        (place / "actor.key").chmod(0o640)
        keys.load(place, keys.ACTOR)  # As in a Secret that Kubernetes has mounted.


def test_what_are_no_keys_is_said(tmp_path: Path) -> None:
    keys.make(place := tmp_path / "keys")
    (place / "actor.key").write_text("")
    with pytest.raises(UserError, match="are damaged"):
        keys.load(place, keys.ACTOR)
    with pytest.raises(UserError, match="cannot be read: Not a directory"):
        keys.load(place / "actor.key", keys.ACTOR)

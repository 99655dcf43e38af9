"""Keys that close a learner's port to everybody but the run's own jobs.

Each run has its own authority, which signs one certificate for the learner and one for all actor
jobs. The authority's private key is never written, so nobody can add a certificate. An actor job's
certificate cannot play the learner, nor the learner's an actor job.
"""

import datetime
import os
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from scalable_agent_popart.errors import UserError
from scalable_agent_popart.runs.config import Config

LEARNER, ACTOR, _AUTHORITY = "learner", "actor", "authority"
_USES = {
    _AUTHORITY: None,
    LEARNER: ExtendedKeyUsageOID.SERVER_AUTH,
    ACTOR: ExtendedKeyUsageOID.CLIENT_AUTH,
}
# Clocks of a run's machines may differ, and a run may be resumed after years.
_DAYS_BEFORE, _DAYS_AFTER = 2, 20 * 365
_PEM = serialization.Encoding.PEM


class Keys(NamedTuple):
    """One side's private key and certificate, and the authority's certificate, each as PEM text."""

    authority: bytes
    certificate: bytes
    private_key: bytes


def directory_of(config: Config) -> Path:
    """Returns where a run's keys are: `--keys_dir`, or a folder of the run directory."""
    return Path(config.keys_dir or Path(config.logdir, "keys"))


def make(directory: Path) -> None:
    """Makes a new run's keys, in a directory that only this user can enter.

    All of its files appear at once. Raises UserError if there are files in it already or if it
    cannot be written.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".keys-", dir=directory.parent) as folder:
            _write(whole := Path(folder, "whole"))
            whole.rename(directory)  # This fails if there are files in it already.
    except OSError as error:
        raise UserError(f"keys cannot be made in {directory}: {error.strerror}") from error


def load(directory: Path, role: str) -> Keys:
    """Reads the keys of the learner or of actor jobs.

    Raises FileNotFoundError if there is no such directory, or nothing in it. Raises UserError if a
    file is missing or cannot be read, or if another user can have read the private key or written
    any of them. A group may read what belongs to root, since Kubernetes mounts a Secret like that.
    """
    try:
        keys = Keys(
            authority=_read(directory / f"{_AUTHORITY}.crt", 0o022),
            certificate=_read(directory / f"{role}.crt", 0o022),
            private_key=_read(directory / f"{role}.key", 0o077),
        )
        x509.load_pem_x509_certificate(keys.authority)
        x509.load_pem_x509_certificate(keys.certificate)
        serialization.load_pem_private_key(keys.private_key, None)
    except FileNotFoundError as error:
        if not directory.exists() or not any(directory.iterdir()):
            raise
        raise UserError(f"{error.filename} is missing: give the {role} its --keys_dir") from error
    except OSError as error:
        raise UserError(f"the keys in {directory} cannot be read: {error.strerror}") from error
    except ValueError as error:  # Users copy keys to other machines.
        raise UserError(f"the keys in {directory} are damaged: copy or make them again") from error
    return keys


def _read(path: Path, forbidden_mode: int) -> bytes:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (0, os.geteuid()):
            raise UserError(f"{path} belongs to another user; give --keys_dir of your own")
        if status.st_uid == 0:
            forbidden_mode &= ~0o050
        if stat.S_IMODE(status.st_mode) & forbidden_mode:
            raise UserError(
                f"{path} is open to other users, and so is its run: make new keys in another "
                "--keys_dir or delete these, and keep them at mode 0600"
            )
        return file.read()


def _write(directory: Path) -> None:
    directory.mkdir(0o700)
    now = datetime.datetime.now(datetime.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    for name, use in _USES.items():
        key = authority_key if use is None else ec.generate_private_key(ec.SECP256R1())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name.from_rfc4514_string(f"CN={name}"))
            .issuer_name(x509.Name.from_rfc4514_string(f"CN={_AUTHORITY}"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=_DAYS_BEFORE))
            .not_valid_after(now + datetime.timedelta(days=_DAYS_AFTER))
            .add_extension(x509.BasicConstraints(use is None, 0 if use is None else None), True)
        )
        files = {}
        if use is not None:
            # It names no host: whoever has the learner's key is the learner, at any address.
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
            builder = builder.add_extension(names, False)
            builder = builder.add_extension(x509.ExtendedKeyUsage([use]), True)
            unencrypted = serialization.NoEncryption()
            files["key"] = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, unencrypted)
        files["crt"] = builder.sign(authority_key, hashes.SHA256()).public_bytes(_PEM)
        for kind, content in files.items():
            path = directory / f"{name}.{kind}"
            path.touch(0o600)
            path.write_bytes(content)

"""A CA and a serving certificate as files in a folder, kept valid by ``ensure``.

``fluxqueue certs``, ``fluxqueue up`` and the tests call it. The webhook only reads the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from fluxqueue.errors import InvalidInput
from fluxqueue.process.certs import CERTIFICATE, KEY
from fluxqueue.process.certs.pairs import (
    KeyPair,
    is_valid_ca,
    is_valid_serving,
    make_ca,
    make_serving,
)
from fluxqueue.process.whole_file import PRIVATE, PUBLIC, write_whole

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files in a folder, and whether ``ensure`` had to write any."""

    folder: Path
    is_new: bool

    @property
    def ca(self) -> Path:
        """Return the path of the CA's certificate, which clients must trust."""
        return self.folder / CA_CERTIFICATE

    @property
    def certificate(self) -> Path:
        """Return the path of the serving certificate."""
        return self.folder / CERTIFICATE

    @property
    def key(self) -> Path:
        """Return the path of the serving certificate's private key."""
        return self.folder / KEY


def ensure(
    folder: Path,
    names: Sequence[str],
    *,
    now: datetime,
    validity: timedelta = timedelta(days=365),
    ca_validity: timedelta = timedelta(days=3650),
) -> CertificateFiles:
    """Make sure that ``folder`` holds a CA and a serving certificate for ``names``.

    A set that is valid for at least another third of its life is kept. The present CA signs a new
    serving certificate as long as the CA is valid, so that clients need no new CA. Files are
    replaced whole. Only their owner can read private keys.

    Raises
    ------
    InvalidInput
        A name is not valid, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca, is_new_ca = _ensure_ca(folder, now, ca_validity)
        serving = _load(folder / CERTIFICATE, folder / KEY)
        if serving is not None and is_valid_serving(
            serving, ca, names, now=now, margin=validity / 3
        ):
            return CertificateFiles(folder, is_new=is_new_ca)
        made = make_serving(ca, names, now=now, validity=validity)
        _store(made, folder / CERTIFICATE, folder / KEY)
    except OSError as error:
        raise InvalidInput(
            f"cannot be used: {error.strerror}", where=str(folder), value=str(folder)
        ) from error
    return CertificateFiles(folder, is_new=True)


def _ensure_ca(folder: Path, now: datetime, validity: timedelta) -> tuple[KeyPair, bool]:
    present = _load(folder / CA_CERTIFICATE, folder / CA_KEY)
    if present is not None and is_valid_ca(present, now=now, margin=validity / 3):
        return present, False
    made = make_ca(now=now, validity=validity)
    _store(made, folder / CA_CERTIFICATE, folder / CA_KEY)
    return made, True


def _load(certificate: Path, key: Path) -> KeyPair | None:
    """Return a pair, or None if a file is missing or damaged (it is then replaced).

    A key of another kind was not made by fluxqueue. It raises InvalidInput and is not replaced.
    """
    try:
        pair = KeyPair(certificate.read_bytes(), key.read_bytes())
        _ = pair.certificate, pair.key
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return pair


def _store(pair: KeyPair, certificate: Path, key: Path) -> None:
    write_whole(key, pair.key_pem, mode=PRIVATE)
    write_whole(certificate, pair.certificate_pem, mode=PUBLIC)

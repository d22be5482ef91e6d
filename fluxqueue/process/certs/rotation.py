"""Certificate rotation as a pure function: the certificates to have, given the present ones.

``controller.certificates`` calls it in a loop. ``plan`` takes one safe step at a time. So at every
moment the callers of the webhook trust the certificate that it serves:

1. A new CA is only *added* to the bundle. The served certificate stays the same.
2. Once all callers trust the new CA, it signs a new serving certificate.
3. The former CA leaves the bundle when no webhook can still serve what it signed.

Only randomness (keys, serial numbers) makes two calls differ. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fluxqueue.errors import InvalidInput
from fluxqueue.process.certs.pairs import (
    CLOCK_SKEW,
    ISSUER,
    KeyPair,
    is_valid_ca,
    is_valid_serving,
    make_ca,
    make_serving,
)

CA_BUNDLE, CA_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "tls.crt", "tls.key"

_NONE = timedelta(0)


@dataclass(frozen=True, slots=True)
class Lives:
    """How long certificates last. They are renewed when two thirds of their life are over.

    Parameters
    ----------
    serving, ca
        Lives from creation to expiry.
    overlap
        How long a former CA stays trusted after its last serving certificate was replaced. It must
        be longer than a mounted Secret takes to reach every webhook (kubelet: up to two minutes).
    """

    serving: timedelta = timedelta(days=365)
    ca: timedelta = timedelta(days=3650)
    overlap: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class HeldCertificates:
    """The certificates in a Secret: the CA that signs, those trusted, and the one served."""

    ca: KeyPair | None = None
    trusted: tuple[x509.Certificate, ...] = ()
    serving: KeyPair | None = None

    @property
    def bundle_pem(self) -> bytes:
        """Return all trusted CAs for callers, beginning with the signing CA."""
        return b"".join(one.public_bytes(Encoding.PEM) for one in self.trusted)


def read_held(data: Mapping[str, bytes]) -> HeldCertificates:
    """Return a Secret's decoded data. What is missing or damaged is None, and so is made again."""
    trusted = read_bundle(data.get(CA_BUNDLE, b""))
    first = trusted[0].public_bytes(Encoding.PEM) if trusted else b""
    return HeldCertificates(
        ca=_read_pair(first, data.get(CA_KEY, b"")),
        trusted=trusted,
        serving=_read_pair(data.get(CERTIFICATE, b""), data.get(KEY, b"")),
    )


def to_data(held: HeldCertificates) -> dict[str, bytes]:
    """Return a Secret's data (not yet base64). A missing pair leaves its keys out."""
    data = {CA_BUNDLE: held.bundle_pem}
    if held.ca is not None:
        data[CA_KEY] = held.ca.key_pem
    if held.serving is not None:
        data |= {CERTIFICATE: held.serving.certificate_pem, KEY: held.serving.key_pem}
    return data


def read_bundle(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a bundle, or none if it is damaged."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return ()


def plan(
    held: HeldCertificates,
    trusted_by_callers: Sequence[x509.Certificate],
    names: Sequence[str],
    *,
    now: datetime,
    lives: Lives,
) -> HeldCertificates:
    """Return what the Secret should hold now, or ``held`` itself if nothing must change.

    The caller stores the result first, then makes ``bundle_pem`` the callers' bundle. Then it reads
    everything again and calls this once more, until nothing changes.

    Parameters
    ----------
    trusted_by_callers
        The CAs in every caBundle of the webhook configuration as last read.
    names
        What the serving certificate must be valid for.
    """
    ca = held.ca
    if ca is None or not is_valid_ca(ca, now=now, margin=_NONE) or _is_due(ca, now):
        ca = make_ca(now=now, validity=lives.ca)
    serving = held.serving
    if serving is not None and not _is_accepted(serving, held.trusted, now):
        serving = None
    # Sign only when all callers trust the CA. Otherwise they would reject what is served.
    if not _is_good(serving, ca, names, now) and ca.certificate in trusted_by_callers:
        serving = make_serving(ca, names, now=now, validity=lives.serving)
    former = _former(ca, (*held.trusted, *trusted_by_callers), now)
    if _is_overlap_over(serving, ca, now, lives.overlap):
        former = ()
    wanted = HeldCertificates(ca, (ca.certificate, *former), serving)
    return held if wanted == held else wanted


def _is_due(pair: KeyPair, now: datetime) -> bool:
    start = pair.certificate.not_valid_before_utc + CLOCK_SKEW
    return now >= start + (pair.certificate.not_valid_after_utc - start) * 2 / 3


def _is_good(serving: KeyPair | None, ca: KeyPair, names: Sequence[str], now: datetime) -> bool:
    """Return whether ``serving`` needs no replacement yet."""
    return (
        serving is not None
        and is_valid_serving(serving, ca, names, now=now, margin=_NONE)
        and not _is_due(serving, now)
    )


def _is_accepted(serving: KeyPair, trusted: Iterable[x509.Certificate], now: datetime) -> bool:
    """Return whether ``serving`` is usable until it is replaced: key, signer and time are right."""
    return any(
        is_valid_serving(
            serving, KeyPair(one.public_bytes(Encoding.PEM), b""), (), now=now, margin=_NONE
        )
        for one in trusted
    )


def _former(
    ca: KeyPair, candidates: Iterable[x509.Certificate], now: datetime
) -> tuple[x509.Certificate, ...]:
    """Return our other CAs, each once and unexpired, the newest first."""
    found = {
        one
        for one in candidates
        if one != ca.certificate and one.not_valid_after_utc > now and _is_ours(one)
    }
    return tuple(sorted(found, key=lambda one: one.not_valid_before_utc, reverse=True))


def _is_ours(certificate: x509.Certificate) -> bool:
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return [name.value for name in names] == [ISSUER]


def _is_overlap_over(
    serving: KeyPair | None, ca: KeyPair, now: datetime, overlap: timedelta
) -> bool:
    """Return whether all callers have had time to change to what the present CA signed."""
    if serving is None or not is_valid_serving(serving, ca, (), now=now, margin=_NONE):
        return False
    made = serving.certificate.not_valid_before_utc + CLOCK_SKEW
    return now >= made + overlap


def _read_pair(certificate_pem: bytes, key_pem: bytes) -> KeyPair | None:
    pair = KeyPair(certificate_pem, key_pem)
    try:
        _ = pair.certificate, pair.key
    except (ValueError, TypeError, InvalidInput):
        return None
    return pair

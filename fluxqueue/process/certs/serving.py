"""HTTPS with a certificate from files, which are reloaded when they change.

``fluxqueue_webhook.server`` and ``view.http_server`` call it. A mounted Secret is replaced under a
running server, so the files are checked every few seconds. Open connections stay as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from aiohttp import web
from cryptography import x509

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.certs import CERTIFICATE, KEY

logger = logging.getLogger(__name__)

Pair: TypeAlias = tuple[Path, Path]
"""Certificate and key."""


@dataclass(frozen=True, slots=True)
class Validity:
    """The time during which the loaded certificate is valid."""

    not_before: datetime
    not_after: datetime

    def covers(self, now: datetime) -> bool:
        """Return whether ``now`` is within it."""
        return self.not_before <= now < self.not_after


class ServingCertificate:
    """One SSL context with a certificate that follows two files, ``tls.crt`` and ``tls.key``.

    ``client_ca``: clients may show a certificate of this CA. TLS refuses any other certificate.
    """

    def __init__(self, folder: Path, client_ca: Path | None = None) -> None:
        self._client_ca = client_ca
        self._certificate, self._key = folder / CERTIFICATE, folder / KEY
        self._digest = b""
        self._refused: bytes | None = None
        self.validity: Validity | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    def load(self) -> None:
        """Load the files for the first time.

        Raises
        ------
        InvalidSettings
            They are missing, damaged, or do not belong together.
        """
        try:
            pair = self._find_pair()
            self._take(pair, _digest(pair))
        except (OSError, ValueError) as error:
            raise InvalidSettings(
                f"no usable certificate: {error}",
                where=str(self._certificate),
                hint="make one with: fluxqueue certs",
            ) from error
        if self._client_ca is None:
            return
        try:
            self.context.load_verify_locations(self._client_ca)
        except OSError as error:  # also ssl.SSLError
            raise InvalidSettings(
                f"no usable CA: {error}",
                where=str(self._client_ca),
                hint="name a file with the certificate of the CA, in PEM",
            ) from error
        # Not required: probes and Prometheus have none.
        self.context.verify_mode = ssl.CERT_OPTIONAL

    def has_changed(self) -> bool:
        """Return whether ``reload`` would find anything new. It may be called in another thread."""
        try:
            return _digest(self._find_pair()) not in {self._digest, self._refused}
        except OSError:
            return self._refused != b""

    def reload(self) -> bool:
        """Load the files if their content changed. On an error keep what is loaded, and log it.

        Call this in the thread that does the handshakes. Certificate and key are set one after the
        other, and a handshake in between would find a certificate without its key. Returns whether
        another certificate is served now.
        """
        digest = b""
        try:
            pair = self._find_pair()
            digest = _digest(pair)
            if digest in {self._digest, self._refused}:
                return False
            self._take(pair, digest)
        except (OSError, ValueError) as error:
            # Both files are rarely replaced in the same instant. The next check will see the pair.
            if digest != self._refused:
                logger.warning(
                    "certificate files not usable, the old one stays",
                    extra={"action": "reload_certificate", "error": str(error)},
                )
            self._refused = digest
            return False
        logger.info("certificate reloaded", extra={"action": "reload_certificate"})
        return True

    def is_valid(self, now: datetime | None = None) -> bool:
        """Return whether a certificate is loaded and valid at ``now``."""
        at = now or datetime.now(tz=UTC)
        return self.validity is not None and self.validity.covers(at)

    def _find_pair(self) -> Pair:
        """Return the two files behind the links of a mounted Secret.

        These files never change. Read through the links, they could be exchanged between two reads.
        """
        return self._certificate.resolve(strict=True), self._key.resolve(strict=True)

    def _take(self, pair: Pair, digest: bytes) -> None:
        certificate = x509.load_pem_x509_certificate(pair[0].read_bytes())
        # A pair that does not fit must fail on a context that is not in use.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)
        self.context.load_cert_chain(*pair)
        self.validity = Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
        self._digest, self._refused = digest, None


class Listener:
    """An application at one address, for as long as it is open.

    Parameters
    ----------
    cert_dir, client_ca : those of its ``ServingCertificate``, which is loaded on opening, and
        checked every ``reload_interval_s`` seconds.
    """

    def __init__(
        self, cert_dir: Path, client_ca: Path | None = None, *, reload_interval_s: float
    ) -> None:
        self.certificate = ServingCertificate(cert_dir, client_ca)
        self._reload_interval_s = reload_interval_s
        self._runner: web.AppRunner | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def open(self, runner: web.AppRunner, host: str | None, port: int) -> int:
        """Listen, and return the port. ``port`` 0 takes a free one.

        Raises
        ------
        InvalidSettings
            There is no usable certificate, or the address cannot be listened on.
        """
        await asyncio.to_thread(self.certificate.load)
        await runner.setup()
        site = web.TCPSite(runner, host, port, ssl_context=self.certificate.context)
        try:
            await site.start()
        except (OSError, socket.gaierror) as error:
            await runner.cleanup()
            where = f"{host}:{port}" if host else f"port {port}"
            raise InvalidSettings(f"cannot listen: {error.strerror}", where=where) from error
        self._runner = runner
        self._watcher = asyncio.create_task(self._watch(), name="serving-certificate")
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Answer the open requests, then close. Harmless if it is not open."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._reload_interval_s)
            if await asyncio.to_thread(self.certificate.has_changed):
                self.certificate.reload()


def _digest(pair: Pair) -> bytes:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in pair)).digest()

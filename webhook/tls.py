"""The server's certificate, taken from files and again whenever they change.

Called by ``webhook.server``. A mounted Secret is replaced under a running server, so the files are
looked at every few seconds; connections that are open stay as they are.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from fluxqueue.errors import InvalidSettings

logger = logging.getLogger(__name__)

CERTIFICATE, KEY = "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when the loaded certificate is good."""

    not_before: datetime
    not_after: datetime

    def covers(self, now: datetime) -> bool:
        """Tell whether ``now`` is within it."""
        return self.not_before <= now < self.not_after


class ServingCertificate:
    """One SSL context whose certificate follows two files, ``tls.crt`` and ``tls.key``."""

    def __init__(self, folder: Path) -> None:
        self._certificate, self._key = folder / CERTIFICATE, folder / KEY
        self._digest = b""
        self._refused: bytes | None = None
        self.validity: Validity | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    def load(self) -> None:
        """Take the files for the first time.

        Raises
        ------
        InvalidSettings
            They are missing, damaged, or do not belong together.
        """
        try:
            self._take(self._read_digest())
        except (OSError, ValueError) as error:
            raise InvalidSettings(
                f"no usable certificate: {error}",
                where=str(self._certificate),
                hint="make one with: fluxqueue certs",
            ) from error

    def reload(self) -> bool:
        """Take the files if their content changed; on trouble keep what is loaded, and say so.

        Returns whether another certificate is served now.
        """
        digest = b""
        try:
            digest = self._read_digest()
            if digest in {self._digest, self._refused}:
                return False
            self._take(digest)
        except (OSError, ValueError) as error:
            # Both files are rarely replaced in the same instant; the next look will see the pair.
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
        """Tell whether a certificate is loaded and neither expired nor too young."""
        at = now or datetime.now(tz=UTC)
        return self.validity is not None and self.validity.covers(at)

    def _read_digest(self) -> bytes:
        content = self._certificate.read_bytes() + b"\0" + self._key.read_bytes()
        return hashlib.sha256(content).digest()

    def _take(self, digest: bytes) -> None:
        certificate = x509.load_pem_x509_certificate(self._certificate.read_bytes())
        # A pair that does not fit must fail on a context that nobody uses.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
        self.context.load_cert_chain(self._certificate, self._key)
        self.validity = Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
        self._digest, self._refused = digest, None

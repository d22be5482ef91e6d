"""Keys and certificates of a control plane that a test starts. Called by ``control_plane.py``.

Everything is made anew for each start, is valid for 30 days and never leaves the given folder.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fluxqueue.process.certs.pairs import make_ca, make_serving

VALIDITY = timedelta(days=30)


def write_private(path: Path, content: str) -> None:
    """Write a file that only this user can read."""
    path.touch(mode=0o600)
    path.write_text(content, encoding="utf-8")


def write_certificates(folder: Path, host: str) -> str:
    """Make a CA, the API server's certificate and the key of service account tokens.

    Returns the CA as PEM.
    """
    now = datetime.now(UTC)
    ca = make_ca(now=now, validity=VALIDITY)
    names = ("kubernetes.default.svc", "localhost", host)
    server = make_serving(ca, names, now=now, validity=VALIDITY)
    (folder / "ca.pem").write_bytes(ca.certificate_pem)
    (folder / "server.pem").write_bytes(server.certificate_pem)
    write_private(folder / "server-key.pem", server.key_pem.decode())
    account_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private_pem = account_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(folder / "service-account.pem", private_pem.decode())
    (folder / "service-account-public.pem").write_bytes(
        account_key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return ca.certificate_pem.decode()

"""The certificate authority of a cluster and its server's certificate for loopback.

trustme makes them. ``server`` calls this once at start. With a data directory the authority is kept
there, so that a kubeconfig from before a restart stays valid.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from trustme import CA

from localcluster.whole_file import PUBLIC, write_whole

_ADDRESSES = ("127.0.0.1", "::1", "10.96.0.1")
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def kept_authority(directory: Path) -> CA:
    """Return the authority of this directory. The first call creates it.

    Only the owner can read its key.
    """
    cert, key = directory / "ca.crt", directory / "ca.key"
    if cert.exists() and key.exists():
        return CA.from_pem(cert.read_bytes(), key.read_bytes())
    made = CA()
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(cert, made.cert_pem.bytes(), mode=PUBLIC)
    write_whole(key, made.private_key_pem.bytes())
    return made


def server_context(authority: CA, *others: str) -> ssl.SSLContext:
    """Return TLS with a certificate for loopback, the usual names, and ``others``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    names = dict.fromkeys((*_ADDRESSES, *_NAMES, *others))
    authority.issue_cert(*names, common_name="kube-apiserver").configure_cert(context)
    return context

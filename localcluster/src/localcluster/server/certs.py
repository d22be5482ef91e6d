"""The authority of a cluster and its server's certificate, for loopback; made by trustme.

Called once by ``server`` at start; with a data directory the authority is kept there, so that a
kubeconfig written before a restart still fits.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from trustme import CA

from localcluster.whole_file import PUBLIC, write_whole

_ADDRESSES = ("127.0.0.1", "::1", "10.96.0.1")
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def kept_authority(directory: Path) -> CA:
    """The authority of this directory; the first call makes it. Its key is its owner's alone."""
    cert, key = directory / "ca.crt", directory / "ca.key"
    if cert.exists() and key.exists():
        return CA.from_pem(cert.read_bytes(), key.read_bytes())
    made = CA()
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(cert, made.cert_pem.bytes(), mode=PUBLIC)
    write_whole(key, made.private_key_pem.bytes())
    return made


def server_context(authority: CA, *others: str) -> ssl.SSLContext:
    """TLS with a certificate for loopback and the usual names, and for ``others``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    names = dict.fromkeys((*_ADDRESSES, *_NAMES, *others))
    authority.issue_cert(*names, common_name="kube-apiserver").configure_cert(context)
    return context

"""The webhook's certificates: made in ``pairs``, kept in a folder or a Secret."""

from fluxqueue.process.certs.folder import CertificateFiles, ensure
from fluxqueue.process.certs.pairs import (
    KeyPair,
    is_valid_ca,
    is_valid_serving,
    make_ca,
    make_serving,
    service_names,
)

__all__ = [
    "CertificateFiles",
    "KeyPair",
    "ensure",
    "is_valid_ca",
    "is_valid_serving",
    "make_ca",
    "make_serving",
    "service_names",
]

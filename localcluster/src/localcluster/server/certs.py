"""A certificate authority and a server certificate of our own, for loopback.

Called once by ``server`` at start; with a data directory the authority is kept there, so that a
kubeconfig written before a restart still fits.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localcluster.whole_file import PUBLIC, write_whole

_LIFETIME = datetime.timedelta(days=3650)
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority as PEM."""

    cert_pem: bytes
    key_pem: bytes


@dataclass(frozen=True, slots=True)
class ServerCert:
    """A server certificate as PEM, chain of one."""

    cert_pem: bytes
    key_pem: bytes


def make_authority(common_name: str = "cluster-ca") -> Authority:
    """A new self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    cert = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(cert.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def load_authority(path: Path) -> Authority | None:
    """The authority kept in a directory, or None."""
    cert, key = path / "ca.crt", path / "ca.key"
    if not (cert.exists() and key.exists()):
        return None
    return Authority(cert.read_bytes(), key.read_bytes())


def save_authority(path: Path, authority: Authority) -> None:
    """Keep an authority; the key is readable by its owner only."""
    path.mkdir(parents=True, exist_ok=True)
    write_whole(path / "ca.crt", authority.cert_pem, mode=PUBLIC)
    write_whole(path / "ca.key", authority.key_pem)


def make_server_cert(
    authority: Authority, *, common_name: str = "kube-apiserver", dns_names: tuple[str, ...] = ()
) -> ServerCert:
    """A certificate for loopback addresses and the usual names (plus ``dns_names``)."""
    ca_cert = x509.load_pem_x509_certificate(authority.cert_pem)
    ca_key = serialization.load_pem_private_key(authority.key_pem, password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    alternatives: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(a)) for a in ("127.0.0.1", "::1", "10.96.0.1")
    ]
    alternatives += [x509.DNSName(n) for n in (*_NAMES, *dns_names)]
    cert = (
        _builder(name, ca_cert.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    return ServerCert(cert.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def server_context(cert: ServerCert, directory: Path) -> ssl.SSLContext:
    """A TLS context; ``ssl`` reads keys only from files, hence a private ``directory``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    cert_file, key_file = directory / "tls.crt", directory / "tls.key"
    key_file.touch(mode=0o600)
    cert_file.write_bytes(cert.cert_pem)
    key_file.write_bytes(cert.key_pem)
    context.load_cert_chain(cert_file, key_file)
    return context

"""Keys and certificates of a control plane that a test starts; called by ``control_plane.py``.

Everything is made anew for each start, is valid for 30 days and never leaves the given folder.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def write_private(path: Path, content: str) -> None:
    """Write a file that only this user can read."""
    path.touch(mode=0o600)
    path.write_text(content, encoding="utf-8")


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def write_certificates(folder: Path, host: str) -> str:
    """Make a CA, the API server's certificate and the key of service account tokens.

    Returns the CA as PEM. The extensions are those that strict verifiers (Python 3.13) ask for.
    """
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "control-plane-ca")])
    ca = _certificate(ca_name, ca_key, ca_name, ca_key, names=None)
    server_key = ec.generate_private_key(ec.SECP256R1())
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    names: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(host)),
        x509.DNSName("localhost"),
        x509.DNSName("kubernetes.default.svc"),
    ]
    server = _certificate(server_name, server_key, ca_name, ca_key, names=names)
    ca_pem = ca.public_bytes(serialization.Encoding.PEM).decode()
    (folder / "ca.pem").write_text(ca_pem)
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    write_private(folder / "server-key.pem", _private_pem(server_key))
    account_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    write_private(folder / "service-account.pem", _private_pem(account_key))
    (folder / "service-account-public.pem").write_bytes(
        account_key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return ca_pem


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    names: list[x509.GeneralName] | None,
) -> x509.Certificate:
    """Sign a server certificate for ``names``, or a CA if there are none."""
    now = datetime.datetime.now(datetime.UTC)
    is_ca = names is None
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_id, critical=False)
    )
    if names is not None:
        server_auth = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(server_auth, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())

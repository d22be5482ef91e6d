"""A certificate authority and serving certificates: creating them and checking them.

``folder`` (files on this machine) and ``rotation`` (a Secret of the cluster) use it. It reads no
clock, no disk and no cluster: the time is an argument.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fluxqueue.errors import InvalidInput

CLOCK_SKEW = timedelta(minutes=5)
"""Certificates are valid from a little before they are made, because clocks differ."""

ISSUER = "fluxqueue CA"
USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""Servers show it to clients. API servers can show one to the webhook (``ServingCertificate``)."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @property
    def certificate(self) -> x509.Certificate:
        """Return the certificate, parsed."""
        return x509.load_pem_x509_certificate(self.certificate_pem)

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        """Return the private key, parsed.

        Raises
        ------
        InvalidInput
            It is not an elliptic-curve key, so fluxqueue did not make it.
        """
        key = serialization.load_pem_private_key(self.key_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInput(
                "is no elliptic-curve key, so not one that fluxqueue made",
                where="private key",
                hint="choose another folder",
            )
        return key


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the names of a Service: first the API server's, then the usual ones."""
    return (
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
        f"{service}.{namespace}",
        service,
    )


def make_ca(*, now: datetime, validity: timedelta) -> KeyPair:
    """Make a self-signed CA that signs serving certificates and no further CAs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(ISSUER)
    usage = _usage(signs_certificates=True)
    builder = (
        _builder(name, name, key.public_key(), now, validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def make_serving(
    ca: KeyPair, names: Sequence[str], *, now: datetime, validity: timedelta
) -> KeyPair:
    """Make a serving certificate for ``names`` (DNS names and IP addresses), signed by ``ca``.

    Raises
    ------
    InvalidInput
        ``names`` is empty, or one of them is neither a DNS name nor an address.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [_alternative(name) for name in names]
    if not alternatives:
        raise InvalidInput("needs at least one name or address", where="names")
    issuer = ca.certificate
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = (
        _builder(_name(names[0][:64]), issuer.subject, key.public_key(), now, validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(USAGES), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(authority, critical=False)
    )
    return _pair(builder.sign(ca.key, hashes.SHA256()), key)


def is_valid_ca(ca: KeyPair, *, now: datetime, margin: timedelta) -> bool:
    """Return whether ``ca`` is a CA with its own key, valid for ``margin`` or more from ``now``."""
    certificate = ca.certificate
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return constraints.value.ca and _fits(ca) and _is_in_time(certificate, now, margin)


def is_valid_serving(
    serving: KeyPair, ca: KeyPair, names: Sequence[str], *, now: datetime, margin: timedelta
) -> bool:
    """Return whether ``serving`` is signed by ``ca``, has all ``names``, and is valid.

    It must be valid for at least ``margin`` from ``now``.
    """
    certificate = serving.certificate
    try:
        certificate.verify_directly_issued_by(ca.certificate)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    present = set(found.value)
    has_names = all(_alternative(name) in present for name in names)
    return has_names and _fits(serving) and _is_in_time(certificate, now, margin)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    validity: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        if not name or any(character.isspace() for character in name):
            raise ValueError(name)
        return x509.DNSName(name)
    except ValueError:
        raise InvalidInput(
            f"{name!r} is neither a DNS name nor an IP address", where="names", value=name
        ) from None


def _fits(pair: KeyPair) -> bool:
    return pair.certificate.public_key() == pair.key.public_key()


def _is_in_time(certificate: x509.Certificate, now: datetime, margin: timedelta) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - margin


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )

"""Certificates: what they say, what is kept, what is renewed, and how files are replaced."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner

from fluxqueue.cli import certs as command
from fluxqueue.errors import InvalidInput
from fluxqueue.process.certs import pairs as certs
from fluxqueue.process.certs.folder import ensure

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = ("localhost", "127.0.0.1", "::1", "hook.fluxqueue-system.svc")


def _verify(ca: certs.KeyPair, serving: certs.KeyPair, name: str, at: datetime) -> None:
    subject: x509.DNSName | x509.IPAddress
    try:
        subject = x509.IPAddress(ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    builder = PolicyBuilder().store(Store([ca.certificate])).time(at)
    builder.build_server_verifier(subject).verify(serving.certificate, [])


def _read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_strict_verifier_accepts_each_name_while_valid_and_nothing_else() -> None:
    ca = certs.make_ca(now=NOW, validity=10 * DAY)
    serving = certs.make_serving(ca, NAMES, now=NOW, validity=2 * DAY)
    for name in NAMES:
        _verify(ca, serving, name, NOW + DAY)
    for name, at in (("elsewhere", NOW), ("localhost", NOW + 3 * DAY), ("localhost", NOW - DAY)):
        with pytest.raises(VerificationError):
            _verify(ca, serving, name, at)
    other = certs.make_ca(now=NOW, validity=10 * DAY)
    with pytest.raises(VerificationError):
        _verify(other, serving, "localhost", NOW)


def test_keys_are_p256_and_the_ca_signs_end_certificates_only() -> None:
    ca = certs.make_ca(now=NOW, validity=10 * DAY)
    for pair in (ca, certs.make_serving(ca, NAMES, now=NOW, validity=DAY)):
        key = pair.certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)
    limits = ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)


@pytest.mark.parametrize("names", [[], [""], ["has space"]])
def test_refuses_names_that_are_none(names: list[str]) -> None:
    ca = certs.make_ca(now=NOW, validity=DAY)
    with pytest.raises(InvalidInput, match="name"):
        certs.make_serving(ca, names, now=NOW, validity=DAY)


def test_writes_a_set_with_private_keys_and_leaves_nothing_else(tmp_path: Path) -> None:
    files = ensure(tmp_path / "c", NAMES, now=NOW)
    assert files.is_new
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in files.folder.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "tls.crt": 0o644, "tls.key": 0o600}
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700


def test_a_good_set_is_kept_also_for_fewer_names(tmp_path: Path) -> None:
    ensure(tmp_path, NAMES, now=NOW)
    before = _read(tmp_path)
    again = ensure(tmp_path, NAMES[:1], now=NOW + 30 * DAY)
    assert not again.is_new
    assert _read(tmp_path) == before


@pytest.mark.parametrize(
    ("names", "at"),
    [
        pytest.param((*NAMES, "more.example"), NOW, id="a new name"),
        pytest.param(NAMES, NOW + 300 * DAY, id="near its end"),
        pytest.param(NAMES, NOW + 400 * DAY, id="expired"),
    ],
)
def test_a_new_serving_certificate_keeps_the_ca(
    tmp_path: Path, names: tuple[str, ...], at: datetime
) -> None:
    """Clients that trust the CA need no notice."""
    ensure(tmp_path, NAMES, now=NOW)
    before = _read(tmp_path)
    assert ensure(tmp_path, names, now=at).is_new
    after = _read(tmp_path)
    assert after["ca.crt"] == before["ca.crt"]
    assert after["tls.crt"] != before["tls.crt"]
    pair = certs.KeyPair(after["ca.crt"], after["ca.key"])
    _verify(pair, certs.KeyPair(after["tls.crt"], after["tls.key"]), names[-1], at)


def test_an_expired_ca_is_replaced_with_all_it_signed(tmp_path: Path) -> None:
    ensure(tmp_path, NAMES, now=NOW)
    before = _read(tmp_path)
    ensure(tmp_path, NAMES, now=NOW + 4000 * DAY)
    after = _read(tmp_path)
    assert all(after[name] != before[name] for name in before)


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_or_missing_file_is_repaired(
    tmp_path: Path, name: str, damage: bytes | None
) -> None:
    ensure(tmp_path, NAMES, now=NOW)
    if damage is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(damage)
    assert ensure(tmp_path, NAMES, now=NOW).is_new
    assert not ensure(tmp_path, NAMES, now=NOW).is_new


def test_a_key_that_does_not_fit_is_replaced(tmp_path: Path) -> None:
    """What a crash between the two writes leaves behind."""
    ensure(tmp_path, NAMES, now=NOW)
    stranger = certs.make_ca(now=NOW, validity=DAY)
    (tmp_path / "tls.key").write_bytes(stranger.key_pem)
    assert ensure(tmp_path, NAMES, now=NOW).is_new


def test_somebody_elses_authority_is_not_overwritten(tmp_path: Path) -> None:
    ensure(tmp_path, NAMES, now=NOW)
    foreign = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "ca.key").write_bytes(foreign)
    with pytest.raises(InvalidInput, match="another folder"):
        ensure(tmp_path, NAMES, now=NOW)
    assert (tmp_path / "ca.key").read_bytes() == foreign


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="file/inside"):
        ensure(tmp_path / "file" / "inside", NAMES, now=NOW)


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    assert command.run(tmp_path, command.LOOPBACK).startswith("wrote ca.crt")
    assert command.run(tmp_path, command.LOOPBACK).startswith("kept ca.crt")
    assert "hook.ns.svc" in certs.service_names("hook", "ns")


def test_the_command_line_names_a_service(tmp_path: Path) -> None:
    from fluxqueue.cli.main import app

    arguments = ["certs", str(tmp_path), "--service", "hook", "--namespace", "ns"]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout.split()[0]) == (0, "wrote")
    found = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "hook.ns.svc" in names.get_values_for_type(x509.DNSName)

"""Servers that cannot be used: what a user reads. No message has the name of a class."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.resources import PODS

HOST = "127.0.0.1"
REACH = "Fix: check that the cluster runs"
TRUST = "Fix: check the certificate authority"


def _certificate(folder: Path, *, days: int = 5, host: str = HOST) -> Path:
    """A file with a certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=20))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(made.public_bytes(Encoding.PEM) + secret)
    return file


@asynccontextmanager
async def _server(file: Path | None, answer: web.Response) -> AsyncIterator[str]:
    """A server that gives all clients the same answer. Yields its address."""

    async def give(_: web.BaseRequest) -> web.Response:
        return answer

    runner = web.ServerRunner(web.Server(give))
    await runner.setup()
    context = None
    if file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
    await web.TCPSite(runner, HOST, 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    yield f"{'http' if context is None else 'https'}://{HOST}:{port}"
    await runner.cleanup()


async def _told(server: str, authority: Path | None = None, timeout_s: float = 5) -> str:
    config = ClusterConfig(server, ca_file=authority)
    async with KubeClient(config, timeout_s=timeout_s, attempts_max=1) as client:
        with pytest.raises((ApiUnavailable, ApiError)) as caught:
            await client.list(PODS, "n")
    return str(caught.value)


@pytest.mark.parametrize(
    ("days", "host", "is_known", "words"),
    [
        (-3, HOST, True, "its certificate is not accepted: certificate has expired"),
        (5, "192.0.2.7", True, "its certificate is not accepted: IP address mismatch"),
        (5, HOST, False, "its certificate is not accepted: self-signed certificate"),
    ],
)
async def test_a_certificate_that_is_not_accepted(
    tmp_path: Path, days: int, host: str, is_known: bool, words: str
) -> None:
    """Expired, of another host, or of an authority that the kubeconfig does not name."""
    file = _certificate(tmp_path, days=days, host=host)
    async with _server(file, web.Response(text="{}")) as server:
        told = await _told(server, file if is_known else None)
    assert f"{server}: {words}" in told
    assert TRUST in told


async def test_a_server_that_is_not_there() -> None:
    """A closed port."""
    listener = await asyncio.start_server(lambda *_: None, HOST, 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    told = await _told(f"http://{HOST}:{port}")
    assert f"http://{HOST}:{port}: cannot be reached: Connection refused. {REACH}" in told


async def test_a_server_that_does_not_answer() -> None:
    """It accepts the connection and is silent."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(listen, HOST, 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        told = await _told(f"http://{HOST}:{port}", timeout_s=0.2)
    assert (
        told
        == f"http://{HOST}:{port}: no answer in time. {REACH}, and the server of the kubeconfig"
    )


async def test_a_page_to_log_in() -> None:
    """A proxy before the cluster redirects, or answers with a page."""
    moved = web.Response(status=302, headers={"Location": "https://login.example.com/"})
    async with _server(None, moved) as server:
        assert "sends us to https://login.example.com/. Fix: " in await _told(server)
    async with _server(None, web.Response(text="<html>log in</html>")) as server:
        assert "is not JSON" in await _told(server)

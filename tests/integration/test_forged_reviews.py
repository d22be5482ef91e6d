"""Reviews that come from no API server: refused by certificate, or in turns by their connection."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import aiohttp
import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.certs.folder import ensure
from fluxqueue.workload.labels import PATH, PATH_ALL_ASK, PATH_PLACE
from fluxqueue_webhook.server import ServerConfig, WebhookServer
from tests.support.forger import flood, review
from tests.support.workloads import batch_job

ADMITTED_S = 1.0


def _certificates(folder: Path, name: str) -> Path:
    return ensure(folder, [name, "127.0.0.1"], now=datetime.now(tz=UTC)).folder


@asynccontextmanager
async def _client(server: Path, own: Path | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    context = ssl.create_default_context(cafile=str(server / "ca.crt"))
    if own is not None:
        context.load_cert_chain(own / "tls.crt", own / "tls.key")
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def test_with_a_client_ca_only_its_certificates_are_admitted(tmp_path: Path) -> None:
    """Probes need none. A certificate of another CA ends the handshake, as does none of ours."""
    server, api = _certificates(tmp_path / "s", "webhook"), _certificates(tmp_path / "a", "api")
    other, body = _certificates(tmp_path / "o", "api"), review(batch_job(), "team-a", "ann")
    config = ServerConfig(cert_dir=server, client_ca=api / "ca.crt", port=0)
    async with WebhookServer(config) as webhook:
        for path in (PATH, PATH_ALL_ASK, PATH_PLACE):
            async with _client(server) as stranger:
                answer = await stranger.post(f"{webhook.url}{path}", data=body)
                assert answer.status == 403, path
        async with _client(server) as stranger:
            assert (await stranger.get(f"{webhook.url}/readyz")).status == 200
            assert (
                'verdict="no_certificate"'
                in await (await stranger.get(f"{webhook.url}/metrics")).text()
            )
        async with _client(server, api) as caller:
            answer = await caller.post(f"{webhook.url}/mutate", data=body)
            assert (answer.status, (await answer.json())["response"]["allowed"]) == (200, True)
        for wrong in (other, server):
            async with _client(server, wrong) as caller:
                with pytest.raises(aiohttp.ClientError):
                    await caller.post(f"{webhook.url}/mutate", data=body)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
async def test_a_client_ca_that_cannot_be_used_is_refused(
    tmp_path: Path, content: str | None
) -> None:
    """At the start, with the file and the way out."""
    server, file = _certificates(tmp_path / "s", "webhook"), tmp_path / "client-ca.crt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidSettings, match=r"client-ca\.crt.*Fix: name a file"):
        await WebhookServer(ServerConfig(cert_dir=server, client_ca=file, port=0)).start()


@pytest.mark.parametrize("has_certificate", [True, False])
async def test_a_flood_of_forged_reviews_delays_no_api_server(
    tmp_path: Path, has_certificate: bool
) -> None:
    """Whatever namespaces and users they name: the address of their connection counts."""
    server = _certificates(tmp_path / "s", "webhook")
    api = _certificates(tmp_path / "a", "api") if has_certificate else None
    client_ca = None if api is None else api / "ca.crt"
    config, waits = ServerConfig(cert_dir=server, client_ca=client_ca, port=0), []
    async with (
        WebhookServer(config) as webhook,
        _client(server, api) as caller,
        flood(webhook.port),
    ):
        for _ in range(20):
            began_s = time.monotonic()
            body = review(batch_job(), "team-a", "ann")
            async with caller.post(f"{webhook.url}/mutate", data=body) as answer:
                told = await answer.json()
            waits.append(time.monotonic() - began_s)
            assert told["response"]["allowed"], told
    assert median(waits) <= ADMITTED_S, sorted(waits)

"""The view server against its visitors: other sites, forged pages, dead tokens, slow clients.

What happened to the served interfaces of comparable systems: requests of other sites that were
answered, streams that went on after their token had ended, files read by a path in a request.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from fluxqueue.clock import ManualClock
from fluxqueue.db.database import Database
from fluxqueue.kube.resources import SERVICE_ACCOUNTS
from fluxqueue.view import http_server as view_server
from fluxqueue.view.endpoints import ENDPOINTS, ROOT
from fluxqueue.view.rights import KEEP_S
from tests.support import steering
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload
from tests.support.viewing import EVERYWHERE, Viewing, viewing
from tests.support.waiting import Pauses

SITE = "https://evil.example"
SLOW_CLIENTS = 150


@pytest_asyncio.fixture
async def rows(database_url: str) -> AsyncIterator[Rows]:
    """Two waiting FluxJobs."""
    async with Database(settings_for(database_url), role="test") as database:
        made = Rows(database, settings=settings_for(database_url))
        await made.add_nodes(cpu_node("n1", 4))
        await made.see(
            workload("first", request(8, cpu=1), user_name="ada"),
            workload("second", request(8, cpu=1), user_name="bob"),
        )
        await made.match()
        yield made


@pytest_asyncio.fixture
async def view(rows: Rows, database_url: str, tmp_path: Path) -> AsyncIterator[Viewing]:
    """A server over them."""
    async with viewing(database_url, tmp_path) as made:
        yield made


async def _send(view: Viewing, method: str, path: str, **headers: str) -> tuple[int, Any, str]:
    url = URL(view.url + path, encoded=True)
    async with view.session.request(method, url, headers=headers, data=b"{}") as told:
        return told.status, told.headers, await told.text()


# --- requests of other sites ---------------------------------------------------------------------


async def test_another_site_can_neither_read_nor_send(view: Viewing) -> None:
    """A browser has no token to send along, and nothing allows another site to read an answer."""
    token = {"Authorization": f"Bearer {view.tokens['admin']}"}
    paths = [ROOT + one.path for one in ENDPOINTS] + [f"{ROOT}/changes", f"{ROOT}/whoami"]
    site = {"Origin": SITE, "Referer": f"{SITE}/", "Sec-Fetch-Site": "cross-site"}
    for path in paths:
        cookie = {**site, "Cookie": f"token={view.tokens['admin']}; Authorization=Bearer x"}
        code, headers, _ = await _send(view, "GET", path, **cookie)
        assert code == 401, path
        assert not [name for name in headers if name.lower().startswith("access-control")]
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            for kind in ("text/plain", "application/json", "multipart/form-data"):
                sent = {**site, **token, "Content-Type": kind}
                code, headers, _ = await _send(view, method, path, **sent)
                assert code == 405, (method, path)
                assert not [name for name in headers if name.lower().startswith("access-control")]


async def test_a_token_counts_in_a_header_only(view: Viewing) -> None:
    """A link can carry a query and a name of a host, and no header."""
    token = view.tokens["admin"]
    for path in ("/queue", "/changes"):
        for query in (
            f"?token={token}",
            f"?access_token={token}",
            f"?authorization=Bearer%20{token}",
        ):
            assert (await _send(view, "GET", f"{ROOT}{path}{query}"))[0] == 401
    for host in ("evil.example", "127.0.0.1:1", "localhost@evil.example"):
        assert (await _send(view, "GET", f"{ROOT}/queue", Host=host))[0] == 401


async def test_answers_are_kept_from_scripts_and_caches(view: Viewing) -> None:
    """No browser takes an answer for a page or a script. No cache gives it to another caller."""
    for path in ("/queue", "/jobs", "/nodes", "/whoami"):
        answer = await view.get(path)
        assert answer.headers["Content-Type"].startswith("application/json")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "private" in answer.headers["Cache-Control"]
        assert "Authorization" in answer.headers["Vary"]


# --- files ---------------------------------------------------------------------------------------

PATHS = (
    "/../../../../etc/passwd",
    "/..%2f..%2f..%2fetc%2fpasswd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "//etc/passwd",
    "/api/v1/../../../etc/passwd",
    "/api/v1/jobs/..%2f..%2fetc%2fpasswd",
    "/api/v1/jobs/1%00.json",
    "/api/v1/queue;/../../etc/passwd",
    "/openapi.json/../../../etc/passwd",
    "/file:///etc/passwd",
    "/static/tls.key",
    "/certs/tls.key",
    "/\\..\\..\\etc\\passwd",
    "/%c0%ae%c0%ae/etc/passwd",
    "/api/v1/" + "a/" * 3000,
)


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_leads_to_a_file(view: Viewing, path: str) -> None:
    """There are no files behind it: 404 or 401 or 400, and nothing of a file in the answer."""
    for token in ({}, {"Authorization": f"Bearer {view.tokens['admin']}"}):
        code, _, text = await _send(view, "GET", path, **token)
        assert code in (400, 401, 404), (path, code)
        assert "root:" not in text
        assert "PRIVATE KEY" not in text


# --- parameters ----------------------------------------------------------------------------------

VALUES = (
    *("", "\0", "a\0b", "-1", "1e9", "9" * 400, "٣", "'; DROP TABLE fluxjobs; --", "%", "_", "\\"),
    *("a" * 300, "," * 60, "a," * 60, "\u202e", "🦀", "{}", "[]", "null", "NaN", "infinity"),
    *("0001-01-01", "9999-12-31T23:59:59-14:00", "99999999999d", "-5d", "\r\nX-Evil: 1"),
)


def _token(key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _forged(chance: random.Random) -> str:
    parts: tuple[Any, ...] = (
        *(None, 0, -1, 2**62, 2**63, 2**70, 1.5, 1e308, True, "", "x", "\0", "2030-01-31", [], {}),
        *("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "a" * 500, {"a": [1]}),
    )
    key = [chance.choice(parts) for _ in range(chance.randrange(7))]
    return _token(key) if chance.random() < 0.9 else "".join(chance.choices("aA0-_=+/", k=40))


@pytest.mark.long("many cases at once, for seconds of processor time")
async def test_no_parameter_breaks_it(view: Viewing) -> None:
    """Each parameter of each list, with each value, and pages that this server never gave."""
    chance = random.Random(5)
    token = {"Authorization": f"Bearer {view.tokens['admin']}"}
    for one in ENDPOINTS:
        needed = "&".join(f"{p.name}=a" for p in one.parameters if p.is_required)
        for parameter in one.parameters:
            values = [*VALUES]
            if parameter.name == "continue":
                values += [_forged(chance) for _ in range(120)]
            for value in values:
                url = URL(view.url + ROOT + one.path + "?" + needed).update_query(
                    {parameter.name: value}
                )
                async with view.session.get(url, headers=token) as told:
                    said = await told.text()
                    assert told.status in (200, 400), (str(url), said)
                    assert "X-Evil" not in told.headers


async def test_headers_and_lines_that_are_too_long(view: Viewing) -> None:
    """They end with their own connection."""
    token = f"Bearer {view.tokens['admin']}"
    for headers in (
        {"Authorization": "Bearer " + "x" * 20_000},
        {"Authorization": token, "Last-Event-ID": "9" * 5000},
        {"Authorization": token, "If-None-Match": '"a",' * 4000},
        {f"X-{n}": "v" * 50 for n in range(200)},
    ):
        code, _, _ = await _send(view, "GET", f"{ROOT}/changes", **headers)
        assert 400 <= code < 500, headers
    async with view.session.get(f"{view.url}{ROOT}/whoami", headers={"Authorization": token}) as ok:
        assert ok.status == 200


# --- tokens that end -----------------------------------------------------------------------------


async def _until_closed(content: aiohttp.StreamReader) -> list[bytes]:
    lines = []
    async with asyncio.timeout(60):
        while line := await content.readline():
            lines.append(line)
    return lines


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_stream_ends_with_its_token(
    rows: Rows,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_busy: bool,
) -> None:
    """Whether or not there is an event: at the latest when what is known of the token is too old,
    and one look later. No event tells what happened after that.
    """
    assert KEEP_S + view_server.STALE_S == 25, "as docs/admin/security.md says"
    monkeypatch.setattr(view_server, "STALE_S", 0.05)
    clock = ManualClock()
    async with viewing(database_url, tmp_path, clock) as view:
        await view.let("mallory", ("fluxjobs", EVERYWHERE))
        headers = {"Authorization": f"Bearer {view.tokens['mallory']}"}
        async with view.session.get(f"{view.url}{ROOT}/changes", headers=headers) as told:
            assert told.status == 200
            await view.client.delete(SERVICE_ACCOUNTS, "default", "mallory")
            clock.advance(KEEP_S + 1)
            if is_busy:
                await steering.hold(rows.database, "default", ["second"], "carol")
            lines = await _until_closed(told.content)
            assert b"carol" not in b"".join(lines)
        again = await view.get("/queue", "mallory")
        assert again.code == 401


# --- clients that do not go on -------------------------------------------------------------------


async def test_slow_clients_keep_nobody_waiting(view: Viewing) -> None:
    """Connections that stop in the middle of a handshake, of a request and of an answer."""
    context = ssl.create_default_context(cafile=str(view.ca))
    port = view.server.port
    writers = []
    try:
        for number in range(SLOW_CLIENTS):
            with_tls = {"ssl": context} if number % 3 else {}
            _, writer = await asyncio.open_connection("127.0.0.1", port, **with_tls)  # type: ignore[arg-type]
            writer.write((b"\x16\x03\x01", b"GET /api/v1/queue HTTP/1.1\r\nHost:", b"")[number % 3])
            writers.append(writer)
        async with Pauses() as pauses:
            for _ in range(5):
                began = time.monotonic()
                assert (await view.get("/queue")).code == 200
                assert time.monotonic() - began <= 1.0 + pauses.longest_s
    finally:
        for writer in writers:
            writer.transport.abort()

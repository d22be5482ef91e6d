"""No client keeps others out of the view server: no half-sent request, no unknown user, no user."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from fluxqueue.view import http_server, window
from fluxqueue.view.request_places import RequestPlaces, TooManyRequests
from tests.support.viewing import Viewing, viewing

GREEDY = 100


@pytest.fixture
async def view(database_url: str, tmp_path: Path) -> AsyncIterator[Viewing]:
    async with viewing(database_url, tmp_path) as made:
        yield made


@asynccontextmanager
async def _half_sent(
    view: Viewing, path: str, token: str = ""
) -> AsyncIterator[asyncio.StreamReader]:
    """A POST with a body that does not come."""
    context = ssl.create_default_context(cafile=str(view.ca))
    reader, writer = await asyncio.open_connection("127.0.0.1", view.server.port, ssl=context)
    host = f"127.0.0.1:{view.server.port}"
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nSec-Fetch-Site: same-origin\r\n"
        f"Origin: https://{host}\r\nX-Fluxqueue-Window: 1\r\n{authorization}"
        "Content-Type: application/json\r\nContent-Length: 20\r\n\r\n".encode()
    )
    await writer.drain()
    try:
        yield reader
    finally:
        writer.close()


@pytest.mark.parametrize(("path", "is_user"), [("/login", False), ("/api/v1/jobs/1/explain", True)])
async def test_bodies_that_do_not_come_keep_nobody_out(
    view: Viewing, path: str, is_user: bool
) -> None:
    """Public files, users and new logins go on."""
    token = await view.let("ursula") if is_user else ""
    async with AsyncExitStack() as exits:
        for _ in range(GREEDY):
            await exits.enter_async_context(_half_sent(view, path, token))
        async with view.session.get(f"{view.url}/openapi.json") as told:
            assert told.status == 200
        assert (await view.get("/queue")).code == 200
        await view.let("new", ("fluxjobs", ""))
        assert (await view.get("/queue", "new")).code == 200


@pytest.mark.parametrize("path", ["/login", "/logout", "/api/v1/replays"])
async def test_a_body_that_does_not_come_is_given_up(
    view: Viewing, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Each route with a body."""
    monkeypatch.setattr(window, "BODY_S", 0.2)
    async with _half_sent(view, path, view.tokens["admin"]) as answer:
        async with asyncio.timeout(20):
            line = await answer.readline()
    assert b" 204 " in line if path == "/logout" else b" 408 " in line


async def test_made_up_tokens_keep_no_user_out(view: Viewing) -> None:
    """Not even while the API server takes its time to judge them."""
    assert (await view.get("/queue")).code == 200
    let_go, usual = asyncio.Event(), view.api.send

    async def slowly(method: str, target: str, *rest: object) -> object:
        if target.endswith("tokenreviews"):
            await let_go.wait()
        return await usual(method, target, *rest)  # type: ignore[arg-type]

    view.api.send = slowly  # type: ignore[assignment,method-assign]
    asked = [asyncio.create_task(view.get("/queue", f"made-up-{n}")) for n in range(GREEDY)]
    try:
        codes = {(await view.get("/queue")).code for _ in range(3)}
    finally:
        let_go.set()
    assert codes == {200}
    told = [one.code for one in await asyncio.gather(*asked)]
    assert set(told) == {401, 503}
    assert told.count(401) <= http_server.OF_ADDRESS_MAX


def test_a_caller_has_a_bounded_share() -> None:
    """Others still find a place, and a place that is given back early counts once."""
    places = RequestPlaces(10, 4)
    with ExitStack() as exits:
        held = exits.enter_context
        leave, *_ = [held(places.hold("mallory")) for _ in range(4)]
        with pytest.raises(TooManyRequests):
            held(places.hold("mallory"))
        held(places.hold("alice"))
        leave()
        leave()
        held(places.hold("mallory"))
        with pytest.raises(TooManyRequests):
            held(places.hold("mallory"))
        for number in range(5):
            held(places.hold(f"other-{number}"))
        with pytest.raises(TooManyRequests):
            held(places.hold("last"))
    assert not places._taken

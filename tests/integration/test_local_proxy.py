"""The local proxy: one visit for each code, and nothing for others. The browser has no token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, CookieJar, web

from fluxqueue.cli.user.local_proxy import COOKIE, LocalProxy, Upstream
from fluxqueue.view.same_site import ACTING

OURS = {ACTING: "1"}


async def _tell(request: web.Request) -> web.Response:
    return web.json_response(
        {
            "path": request.raw_path,
            "method": request.method,
            "token": request.headers.get("Authorization"),
            "cookie": request.headers.get("Cookie"),
            "body": await request.text(),
        },
        headers={"Set-Cookie": "theirs=1", "X-Other": "1"},
    )


def _session() -> ClientSession:
    return ClientSession(cookie_jar=CookieJar(unsafe=True))


@asynccontextmanager
async def _proxy() -> AsyncIterator[tuple[LocalProxy, ClientSession]]:
    app = web.Application()
    app.router.add_route("*", "/below/{path:.*}", _tell)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    root = f"http://127.0.0.1:{runner.addresses[0][1]}/below"
    upstream = Upstream(root, lambda: {"Authorization": "Bearer secret"}, None)
    try:
        async with (
            LocalProxy(upstream) as proxy,
            _session() as one,
        ):
            yield proxy, one
    finally:
        await runner.cleanup()


async def test_a_code_is_good_for_one_visit() -> None:
    """After it the address of the page holds no secret."""
    async with _proxy() as (proxy, session):
        address = proxy.address()
        async with session.get(address, allow_redirects=False) as told:
            assert (told.status, told.headers["Location"]) == (303, "/")
            cookie = told.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "secret" not in cookie
        async with session.get(address) as told:
            assert told.status == 401


async def test_requests_are_passed_on_with_the_token() -> None:
    """Path, query and body as they are. Cookies stay on their side."""
    async with _proxy() as (proxy, session):
        await session.get(proxy.address(), allow_redirects=False)
        root = f"http://127.0.0.1:{proxy.port}"
        async with session.post(
            f"{root}/api/v1/jobs/7/hold?x=%26", data="{}", headers=OURS
        ) as told:
            found = await told.json()
            assert "X-Other" not in told.headers
            assert "Set-Cookie" not in told.headers
        assert found == {
            "path": "/below/api/v1/jobs/7/hold?x=%26",
            "method": "POST",
            "token": "Bearer secret",
            "cookie": None,
            "body": "{}",
        }


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Origin": "https://evil.example"}, 403),
    ],
)
async def test_other_sites_get_nothing(headers: dict[str, str], code: int) -> None:
    """A name that points here, a script of another page."""
    async with _proxy() as (proxy, session):
        await session.get(proxy.address(), allow_redirects=False)
        async with session.get(f"http://127.0.0.1:{proxy.port}/", headers=headers) as told:
            assert told.status == code


async def test_other_programs_get_nothing() -> None:
    """Without the cookie, and with a guessed one."""
    async with _proxy() as (proxy, session):
        root = f"http://127.0.0.1:{proxy.port}/"
        for headers in ({}, {"Cookie": f"{COOKIE}=guess"}):
            async with session.get(root, headers=headers) as told:
                assert told.status == 401
        async with session.get(f"{root}?code=guess") as told:
            assert told.status == 401


async def test_a_server_that_is_away_is_told() -> None:
    """In the form in which the page expects errors."""
    upstream = Upstream("http://127.0.0.1:9", dict, None)
    async with (
        LocalProxy(upstream) as proxy,
        _session() as session,
    ):
        await session.get(proxy.address(), allow_redirects=False)
        async with session.get(f"http://127.0.0.1:{proxy.port}/api/v1/map") as told:
            assert told.status == 502
            assert "does not answer" in (await told.json(content_type=None))["detail"]

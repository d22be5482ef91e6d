"""The probes' endpoint by itself: what it answers while starting, when a check fails, when late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue.process import endpoint as module
from fluxqueue.process.endpoint import Endpoint, Heartbeats
from fluxqueue_devtools.localpg.held_port import HeldPort


@pytest.fixture
def port() -> Iterator[int]:
    """A port for this test alone."""
    held = HeldPort()
    yield held.port
    held.release()


async def _get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def test_lives_but_is_not_ready_until_started(port: int) -> None:
    async with Endpoint(port) as endpoint:
        endpoint.waits_for("the database")
        assert await _get(port, "/healthz") == (200, "ok\n")
        assert await _get(port, "/readyz") == (503, "waits for the database\n")
        endpoint.started()
        assert await _get(port, "/readyz") == (200, "ok\n")


async def test_every_check_that_fails_is_named_and_a_slow_one_has_failed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_TIMEOUT_S", 0.05)

    async def bad() -> str | None:
        return "refused"

    async def good() -> str | None:
        return None

    async with Endpoint(port) as endpoint:
        endpoint.started()
        endpoint.ready_checks |= {"one": bad, "two": good, "three": asyncio.Event().wait}  # type: ignore[dict-item]
        status, text = await _get(port, "/readyz")
        assert status == 503
        assert text == "one: refused\nthree: no answer within 0.05 s\n"
        assert (await _get(port, "/healthz"))[0] == 200, "a restart would not help"


async def test_a_loop_that_does_not_turn_makes_the_process_unhealthy(port: int) -> None:
    heartbeats = Heartbeats()
    async with Endpoint(port) as endpoint:
        endpoint.live_checks["loops"] = heartbeats.problem
        heartbeats.beat("sweep", within_s=60)
        heartbeats.beat("maintain", within_s=-1)
        assert await _get(port, "/healthz") == (503, "stuck: maintain\n")
        heartbeats.beat("maintain", within_s=60)
        assert (await _get(port, "/healthz"))[0] == 200
        heartbeats.beat("maintain", within_s=-1)
        heartbeats.stop("maintain")
        assert (await _get(port, "/healthz"))[0] == 200, "it ended as it should"


async def test_a_port_that_is_taken_is_refused_with_the_way_out(port: int) -> None:
    async with Endpoint(port):
        with pytest.raises(InvalidSettings, match="FLUXQUEUE_HTTP_PORT") as caught:
            async with Endpoint(port):
                pass
    assert "0 for none" in str(caught.value)


async def test_port_0_listens_nowhere() -> None:
    async with Endpoint(0) as endpoint:
        endpoint.started()
        assert endpoint._runner is None

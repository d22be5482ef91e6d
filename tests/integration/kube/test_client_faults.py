"""KubeClient against a server that refuses, stalls, breaks and lies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from fluxqueue.errors import ApiUnavailable, Conflict, Gone, Invalid, NotFound
from fluxqueue.kube.answer_times import LAST
from fluxqueue.kube.client import KubeClient, PatchKind, WatchEvent
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.resources import PODS

from .conftest import FaultyApi, json_answer, reset, status, stream

POD = {"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"}}


async def _collect(events: AsyncIterator[WatchEvent]) -> list[WatchEvent]:
    async with aclosing(events) as opened:
        return [event async for event in opened]


async def test_429_is_waited_for_as_told(client: KubeClient, faulty: FaultyApi) -> None:
    """Retry-After is honoured, for POST too: a refused request was not acted upon."""
    faulty.then(status(429, Retry_After="1"), json_answer(POD, 201))
    began = time.monotonic()
    assert await client.create(PODS, "n", POD) == POD
    assert time.monotonic() - began >= 1
    assert [seen.method for seen in faulty.seen] == ["POST", "POST"]


async def test_retries_are_bounded(client: KubeClient, faulty: FaultyApi) -> None:
    """Endless 429 ends as ApiUnavailable after four sends, with the server's figure."""
    faulty.then(*[status(429, Retry_After="0")] * 9)
    with pytest.raises(ApiUnavailable) as caught:
        await client.get(PODS, "n", "p")
    assert caught.value.retry_after_s == 0
    assert len(faulty.seen) == 4


async def test_long_retry_after_is_left_to_the_caller(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """A pause of minutes is not spent inside a request."""
    faulty.then(status(429, Retry_After="600"))
    with pytest.raises(ApiUnavailable) as caught:
        await client.get(PODS, "n", "p")
    assert caught.value.retry_after_s == 600


async def test_500_is_not_retried(client: KubeClient, faulty: FaultyApi) -> None:
    """A plain 500 may be our own mistake: report it."""
    faulty.then(status(500))
    with pytest.raises(ApiUnavailable, match="500"):
        await client.get(PODS, "n", "p")
    assert len(faulty.seen) == 1


async def test_503_with_retry_after(client: KubeClient, faulty: FaultyApi) -> None:
    """Repeated for a GET. A POST may have been acted upon, so it is reported."""
    faulty.then(status(503, Retry_After="0"), json_answer(POD), status(503, Retry_After="0"))
    assert await client.get(PODS, "n", "p") == POD
    with pytest.raises(ApiUnavailable):
        await client.create(PODS, "n", POD)
    assert len(faulty.seen) == 3


async def test_who_is_late_opens_nothing_any_more(client: KubeClient, faulty: FaultyApi) -> None:
    """Of two lookups one failed, the command ended, and what the other opened was left open."""
    faulty.then(json_answer(POD))
    await client.get(PODS, "n", "p")
    await client.close()
    with pytest.raises(ApiUnavailable, match="closed"):
        await client.get(PODS, "n", "p")
    with pytest.raises(ApiUnavailable, match="closed"):
        await _collect(client.watch(PODS, "n", resource_version="1"))
    assert len(faulty.seen) == 1


async def test_reset_of_a_read_is_repeated(client: KubeClient, faulty: FaultyApi) -> None:
    """A broken connection costs a GET nothing."""
    faulty.then(reset(), reset(), json_answer(POD))
    assert await client.get(PODS, "n", "p") == POD


@pytest.mark.parametrize("kind", ["create", "json-patch"])
async def test_reset_of_an_unrepeatable_write_is_reported(
    client: KubeClient, faulty: FaultyApi, kind: str
) -> None:
    """It may have been done, so it is not done twice."""
    faulty.then(reset(), json_answer(POD))
    if kind == "create":
        write = client.create(PODS, "n", POD)
    else:
        write = client.patch(PODS, "n", "p", [], kind=PatchKind.JSON)
    with pytest.raises(ApiUnavailable):
        await write
    assert len(faulty.seen) == 1


async def test_refused_connection_is_unavailability() -> None:
    """No server listens there."""
    async with KubeClient(ClusterConfig("http://127.0.0.1:9"), attempts_max=2) as client:
        with pytest.raises(ApiUnavailable, match=r"127\.0\.0\.1:9"):
            await client.create(PODS, "n", POD)


async def test_stalled_answer_times_out(client: KubeClient, faulty: FaultyApi) -> None:
    """A request without an answer ends at its timeout. Nothing is scripted, so none comes."""
    with pytest.raises(ApiUnavailable):
        await client.request("POST", "/x", body={}, timeout_s=0.2)


async def test_errors_are_typed(client: KubeClient, faulty: FaultyApi) -> None:
    """409 and 422 are not retried and keep their reason."""
    faulty.then(status(409, "AlreadyExists"), status(422, "Invalid"))
    with pytest.raises(Conflict) as caught:
        await client.create(PODS, "n", POD)
    assert caught.value.reason == "AlreadyExists"
    with pytest.raises(Invalid):
        await client.patch(PODS, "n", "p", {})
    assert len(faulty.seen) == 2


async def test_what_is_sent(client: KubeClient, faulty: FaultyApi) -> None:
    """Content types, field manager, force, dry run, delete options and the token."""
    faulty.then(*[json_answer(POD)] * 4)
    await client.patch(
        PODS, "n", "p", {"a": 1}, kind=PatchKind.APPLY, field_manager="me", force=True
    )
    await client.patch(PODS, "n", "p", {}, kind=PatchKind.STRATEGIC, subresource="status")
    await client.delete(PODS, "n", "p", uid="u", propagation="Background", grace_s=0)
    await client.create(PODS, "n", POD, dry_run=True)
    apply, strategic, delete, create = faulty.seen
    assert apply.headers["content-type"] == "application/apply-patch+yaml"
    assert apply.query == {"fieldManager": "me", "force": "true"}
    assert apply.headers["authorization"] == "Bearer t"
    assert orjson.loads(apply.body) == {"a": 1}
    assert strategic.path.endswith("/pods/p/status")
    assert strategic.headers["content-type"] == "application/strategic-merge-patch+json"
    options = orjson.loads(delete.body)
    assert options["preconditions"] == {"uid": "u"}
    assert (options["propagationPolicy"], options["gracePeriodSeconds"]) == ("Background", 0)
    assert create.query == {"dryRun": "All"}


async def test_rotated_token_is_read_again(faulty: FaultyApi, tmp_path: Path) -> None:
    """A 401 makes the client read the token file once more. The same token is not tried twice."""
    file = tmp_path / "token"
    file.write_text("old")

    async def rotate(request: web.Request) -> web.StreamResponse:
        file.write_text("new")
        return await status(401)(request)

    faulty.then(rotate, json_answer(POD), status(401))
    async with KubeClient(ClusterConfig(faulty.url, token_file=file)) as client:
        await client.get(PODS, "n", "p")
        with pytest.raises(Exception, match="401"):
            await client.get(PODS, "n", "p")
    sent = [seen.headers["authorization"] for seen in faulty.seen]
    assert sent == ["Bearer old", "Bearer new", "Bearer new"]


def _page(*names: str, token: str = "", version: str = "9") -> dict[str, object]:
    return {
        "metadata": {"resourceVersion": version, "continue": token},
        "items": [{"metadata": {"name": name}} for name in names],
    }


async def test_pages_are_followed(client: KubeClient, faulty: FaultyApi) -> None:
    """All pages, the selector on each, kinds filled in."""
    faulty.then(json_answer(_page("a", token="t1")), json_answer(_page("b")))
    listed = await client.list(PODS, label_selector="x=y", limit=1)
    assert [item["metadata"]["name"] for item in listed.items] == ["a", "b"]
    assert {item["kind"] for item in listed.items} == {"Pod"}
    assert listed.resource_version == "9"
    assert faulty.seen[1].query == {"labelSelector": "x=y", "limit": "1", "continue": "t1"}


async def test_expired_page_token_restarts_the_list(client: KubeClient, faulty: FaultyApi) -> None:
    """Nothing of the abandoned attempt stays. The fourth attempt is unpaged."""
    for _ in range(3):
        faulty.then(json_answer(_page("old", token="t")), status(410, "Expired"))
    faulty.then(json_answer(_page("new", version="10")))
    listed = await client.list(PODS, limit=1)
    assert [item["metadata"]["name"] for item in listed.items] == ["new"]
    assert "limit" not in faulty.seen[-1].query


async def test_watch_yields_events_split_anyhow(client: KubeClient, faulty: FaultyApi) -> None:
    """Chunks need not end where lines end."""
    line = orjson.dumps({"type": "ADDED", "object": POD}) + b"\n"
    faulty.then(stream(line[:7], line[7:] + line[:20], line[20:]))
    events = await _collect(client.watch(PODS, resource_version="5"))
    assert [event.type for event in events] == ["ADDED", "ADDED"]
    assert faulty.seen[0].query["resourceVersion"] == "5"
    assert faulty.seen[0].query["allowWatchBookmarks"] == "true"


async def test_watch_410(client: KubeClient, faulty: FaultyApi) -> None:
    """Both forms of too old: the ERROR event inside a 200, and an HTTP 410."""
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    faulty.then(stream(error), status(410, "Expired"))
    for _ in range(2):
        with pytest.raises(Gone):
            await _collect(client.watch(PODS, resource_version="1"))


async def test_cut_watch_keeps_what_came_before(client: KubeClient, faulty: FaultyApi) -> None:
    """Whole events count, the broken rest does not, and the cut is reported."""
    faulty.then(stream({"type": "ADDED", "object": POD}, b'{"type":"MOD', is_cut=True))
    events = client.watch(PODS, resource_version="1")
    assert (await anext(events)).type == "ADDED"
    with pytest.raises(ApiUnavailable):
        await anext(events)


async def test_silent_watch_ends(client: KubeClient, faulty: FaultyApi) -> None:
    """Neither event nor bookmark: the connection is given up, without an error."""
    faulty.then(stream({"type": "ADDED", "object": POD}, stays_open=True))
    events = await _collect(client.watch(PODS, resource_version="1", idle_s=1))
    assert len(events) == 1


async def test_concurrency_is_bounded_and_leases_are_not_behind_it(faulty: FaultyApi) -> None:
    """With all slots waiting for answers, the reserved budget still gets through."""
    async with KubeClient(ClusterConfig(faulty.url), concurrency=2, timeout_s=30) as client:
        waiting = [asyncio.create_task(client.get(PODS, "n", str(i))) for i in range(5)]
        while len(faulty.seen) < 2:
            await asyncio.sleep(0.01)
        reserved = asyncio.create_task(client.reserved().get(PODS, "n", "lease"))
        while len(faulty.seen) < 3:
            await asyncio.sleep(0.01)
        assert faulty.seen[2].path.endswith("/lease")
        faulty.then(*[json_answer(POD)] * 6)
        await asyncio.gather(*waiting, reserved)
        assert len(faulty.seen) == 6


async def test_pages_are_fetched_as_they_are_wanted(client: KubeClient, faulty: FaultyApi) -> None:
    """Reading only the first page costs the server one. A forgotten version is reported."""
    page = {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [dict(POD)]}
    faulty.then(json_answer(page), json_answer(page), status(410))
    async with aclosing(client.pages(PODS, "n", limit=1)) as pages:
        async for found in pages:
            assert found.items[0]["kind"] == "Pod"
            break
    assert [one.query for one in faulty.seen] == [{"limit": "1"}]
    with pytest.raises(Gone):
        _ = [one async for one in client.pages(PODS, "n", limit=1)]
    assert faulty.seen[-1].query == {"limit": "1", "continue": "more"}


async def test_lines_come_as_they_are_written(client: KubeClient, faulty: FaultyApi) -> None:
    """Cut where they end, whatever the pieces. The last one needs no end. Refusals are typed."""
    faulty.then(stream(b"one\ntw", b"o\n", b"three"), status(404))
    query = {"follow": "true"}
    found = [line async for line in client.lines("/api/v1/namespaces/n/pods/p/log", query)]
    assert found == [b"one", b"two", b"three"]
    assert faulty.seen[0].query == query
    with pytest.raises(NotFound):
        _ = [line async for line in client.lines("/x", query)]


async def test_how_late_answers_come_is_known(client: KubeClient, faulty: FaultyApi) -> None:
    """Also of an answer that is a refusal. A connection that breaks has answered nothing."""
    answer = json_answer(POD)

    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.1)
        return await answer(request)

    faulty.then(answer, answer, status(409), reset(), answer)
    await client.get(PODS, "n", "p")
    await client.get(PODS, "n", "p")
    with pytest.raises(Conflict):
        await client.create(PODS, "n", POD)
    await client.get(PODS, "n", "p")
    before_s = client.answer_times.delay_s
    faulty.then(late)
    await client.get(PODS, "n", "p")
    assert client.answer_times.delay_s - before_s >= 0.1 / (2 * LAST)

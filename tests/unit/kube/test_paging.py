"""Long lists: however many objects there are, one page of whole ones is in memory at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import JOBS
from fluxqueue.kube.transport import Reply, StreamReply

PAGE, PAGES = 20, 100
PADDING = 10_000
WHOLE_BYTES = PAGE * PAGES * PADDING
PEAK_BYTES = WHOLE_BYTES / 4
"""Some twenty pages: encoding and decoding one takes as much, of this server too."""


class PagesOfJobs:
    """An API server whose objects are large and are made when they are asked for."""

    def __init__(self) -> None:
        self.expire_at: int | None = None
        self.requests = 0

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: object, timeout_s: float
    ) -> Reply:
        """One page."""
        query = parse_qs(urlsplit(target).query)
        start = int(query.get("continue", ["0"])[0])
        self.requests += 1
        if start == self.expire_at:
            self.expire_at = None
            return Reply(410, {}, orjson.dumps({"kind": "Status", "code": 410}))
        size = min(int(query["limit"][0]), PAGE)
        metadata = {"resourceVersion": "7"}
        if start + size < PAGE * PAGES:
            metadata["continue"] = str(start + size)
        items = [_job(number) for number in range(start, start + size)]
        return Reply(200, {}, orjson.dumps({"metadata": metadata, "items": items}))

    def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AbstractAsyncContextManager[StreamReply]:
        """Not asked for here."""
        raise AssertionError("no test watches")

    async def close(self) -> None:
        """Nothing is open."""


def _job(number: int) -> dict[str, Any]:
    meta = {"name": f"job-{number}", "namespace": "default", "uid": f"u{number}"}
    return {
        "metadata": {**meta, "resourceVersion": str(number), "annotations": {"x": "y" * PADDING}}
    }


def _client(server: PagesOfJobs) -> KubeClient:
    return KubeClient(ClusterConfig("http://nowhere"), transport=server)


async def _peak_bytes(call: Any) -> int:
    tracemalloc.start()
    try:
        await call
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_what_is_not_kept_is_gone_with_its_page() -> None:
    """Also where a token expires in the middle: the list begins anew, and all is there once."""
    server = PagesOfJobs()
    server.expire_at = 3 * PAGE
    names: list[str] = []

    async def collect() -> None:
        kept, version = await _client(server).collect(
            JOBS, keep=lambda item: str(item["metadata"]["name"]), limit=PAGE
        )
        assert version == "7"
        names.extend(kept)

    peak = await _peak_bytes(collect())
    assert names == [f"job-{number}" for number in range(PAGE * PAGES)]
    assert server.requests == 4 + PAGES
    assert peak < PEAK_BYTES, f"{peak / WHOLE_BYTES:.2f} of the whole list"


def _small(job: dict[str, Any]) -> dict[str, Any]:
    meta = {k: v for k, v in job["metadata"].items() if k != "annotations"}
    return {"metadata": meta}


async def test_an_informer_keeps_neither_whole_objects_nor_what_it_has_twice() -> None:
    """The first list and a relist. What has not changed is the same object, without an event."""
    told: list[str] = []
    informer = Informer(
        _client(PagesOfJobs()),
        JOBS,
        transform=_small,
        on_change=lambda _old, new: told.append(new["metadata"]["name"] if new else "?"),
    )
    assert await _peak_bytes(informer._relist()) < PEAK_BYTES
    assert len(informer) == len(told) == PAGE * PAGES
    before = {id(item) for item in informer.items()}
    assert await _peak_bytes(informer._relist()) < PEAK_BYTES
    assert {id(item) for item in informer.items()} == before
    assert len(told) == PAGE * PAGES

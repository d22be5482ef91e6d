"""Of all BatchJobs only ours are watched, and they cannot lose the label by which they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.batch_jobs import BatchJobs
from fluxqueue.errors import ApiError
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import JOBS
from fluxqueue.workload.labels import GATE, MANAGED
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.waiting import eventually, until
from tests.support.workers import QUIET
from tests.support.workloads import batch_job

Obj = dict[str, Any]
GATED = {"schedulingGates": [{"name": GATE}]}
OFF = {"metadata": {"labels": {MANAGED: None}}}


class Seen:
    """What the observer would hear, and which end it waits for."""

    def __init__(self, client: KubeClient) -> None:
        self.told: list[tuple[str, str]] = []
        self.known: set[str] = set()
        self.jobs = BatchJobs(
            client, ManualClock(), is_known=self.known.__contains__, on_change=self._take
        )

    def _take(self, old: Obj | None, new: Obj | None) -> None:
        what = "added" if old is None else "gone" if new is None else "changed"
        self.told.append((what, ((new or old) or {})["metadata"]["name"]))


@pytest_asyncio.fixture(loop_scope="function")
async def client() -> AsyncIterator[KubeClient]:
    """One of an API server behind which nothing happens."""
    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster), transport=InProcessTransport(cluster)) as made,
    ):
        yield made


@pytest_asyncio.fixture(loop_scope="function")
async def seen(client: KubeClient) -> AsyncIterator[Seen]:
    """Watching, and all that is there already seen."""
    made = Seen(client)
    made.jobs.informer.start()
    await made.jobs.informer.synced.wait()
    yield made
    await made.jobs.informer.stop()
    await made.jobs.stop()


async def create(client: KubeClient, name: str, *, label: bool = True, pod: Any = GATED) -> str:
    """Make a BatchJob as admission leaves one. Its UID."""
    meta = {"labels": {MANAGED: "true"}} if label else {}
    body = batch_job(name, meta=meta, pod=pod, suspend=True)
    del body["metadata"]["uid"]
    return str((await client.create(JOBS, "default", body))["metadata"]["uid"])


async def strip(client: KubeClient, name: str) -> None:
    """Take the label off."""
    await client.patch(JOBS, "default", name, OFF, kind=PatchKind.MERGE)


async def label_of(client: KubeClient, name: str) -> str | None:
    """The label as it is stored."""
    found = await client.get(JOBS, "default", name)
    label = (found["metadata"].get("labels") or {}).get(MANAGED)
    return None if label is None else str(label)


async def until_told(seen: Seen, *expected: tuple[str, str]) -> None:
    """Wait for the last event."""

    await eventually(
        lambda: tuple(seen.told[-len(expected) :]) == expected, f"{expected}, not {seen.told}"
    )


async def test_the_jobs_of_others_are_not_watched(client: KubeClient, seen: Seen) -> None:
    await create(client, "theirs", label=False, pod={})
    await create(client, "ours")
    await until_told(seen, ("added", "ours"))
    assert len(seen.told) == 1


async def test_a_label_that_is_taken_off_is_put_back(client: KubeClient, seen: Seen) -> None:
    """Twice, since what had left the watch once is not to be overlooked when it comes back."""
    seen.known.add(await create(client, "ours"))
    for _ in range(2):
        await strip(client, "ours")

        await until(lambda: label_of(client, "ours"), lambda found: found == "true", "the label")
    body = {"metadata": {"annotations": {"changed": "afterwards"}}}
    await client.patch(JOBS, "default", "ours", body, kind=PatchKind.MERGE)

    async def is_followed() -> bool:
        held = seen.jobs.informer.get("default", "ours")
        return held is not None and "annotations" in held["metadata"]

    await eventually(is_followed, "the later change seen")
    assert "gone" not in {what for what, _ in seen.told}


async def test_who_is_gone_is_gone(client: KubeClient, seen: Seen) -> None:
    """Also where another has taken the name meanwhile."""
    for name in ("known", "unknown"):
        uid = await create(client, name)
        if name == "known":
            seen.known.add(uid)
        await until_told(seen, ("added", name))
        await client.delete(JOBS, "default", name, propagation="Background")
        await create(client, name, label=False, pod={})
        await until_told(seen, ("gone", name))
        assert await label_of(client, name) is None


async def test_who_has_ended_is_not_asked_for(
    client: KubeClient, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many of them are taken away after a while, by their time to live."""
    seen.known.add(await create(client, "over"))
    now = "2026-01-01T00:00:00Z"
    condition = {"status": "True", "lastTransitionTime": now, "lastProbeTime": now}
    status = {
        "startTime": now,
        "completionTime": now,
        "succeeded": 1,
        "conditions": [
            {"type": "SuccessCriteriaMet", **condition},
            {"type": "Complete", **condition},
        ],
    }
    body = {"spec": {"suspend": False}}
    await client.patch(JOBS, "default", "over", body, kind=PatchKind.MERGE)
    await client.patch(
        JOBS, "default", "over", {"status": status}, kind=PatchKind.MERGE, subresource="status"
    )

    async def is_seen_to_be_over() -> bool:
        held = seen.jobs.informer.get("default", "over")
        return held is not None and bool(held["status"].get("conditions"))

    await eventually(is_seen_to_be_over, "its end")
    monkeypatch.setattr(client, "patch", None)
    await client.delete(JOBS, "default", "over", propagation="Background")
    await until_told(seen, ("gone", "over"))


async def test_what_lost_its_label_while_nobody_watched_is_found(client: KubeClient) -> None:
    """Waiting, by its gate. Running, because its end is waited for. The jobs of others stay so."""
    await create(client, "waiting")
    running = await create(client, "running", pod={})
    await create(client, "theirs", label=False, pod={})
    for name in ("waiting", "running"):
        await strip(client, name)
    seen = Seen(client)
    seen.known.add(running)
    await seen.jobs.look()
    labels = {name: await label_of(client, name) for name in ("waiting", "running", "theirs")}
    assert labels == {"waiting": "true", "running": "true", "theirs": None}


async def test_a_refusal_does_not_make_it_gone(
    client: KubeClient, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy, or rights that were taken away: tried again until it is allowed."""
    seen.known.add(await create(client, "ours"))
    await until_told(seen, ("added", "ours"))
    patch, refusals = client.patch, [ApiError(403, "Forbidden", "no", {})] * 3

    async def patch_after_refusals(*given: Any, **named: Any) -> Any:
        if given[3] != OFF and refusals:
            raise refusals.pop()
        return await patch(*given, **named)

    monkeypatch.setattr(client, "patch", patch_after_refusals)
    await strip(client, "ours")

    await until(lambda: label_of(client, "ours"), lambda found: found == "true", "the label")
    assert not refusals
    assert "gone" not in {what for what, _ in seen.told}

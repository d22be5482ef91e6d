"""What cannot be wrapped, or not even get an Event, delays no other work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fluxqueue.clock import Clock, ManualClock, SystemClock
from fluxqueue.controller.observing.fluxjob_creator import RETRY_MAX_S, FluxJobCreator, Lookups
from fluxqueue.db.database import Database
from fluxqueue.db.store.last_readings import Past
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.workload.labels import GATE, MANAGED
from fluxqueue.workload.site import DEFAULT_SITE
from tests.support.observers import make_observer
from tests.support.rows import settings_for
from tests.support.sql import dicts
from tests.support.waiting import eventually, until
from tests.support.workloads import bare_pod, batch_job

from .refusing_api import Refuse, RefusingApi, serve

Obj = dict[str, Any]
GATED = {"schedulingGates": [{"name": GATE}]}


def job(name: str, second: int = 0) -> Obj:
    """A BatchJob that waits for its FluxJob."""
    meta = {"creationTimestamp": f"2026-01-01T00:00:{second:02}Z", "resourceVersion": "1"}
    return batch_job(name, meta=meta, pod=GATED)


def spoilt(name: str) -> Obj:
    """A Pod that admission never saw, and with a request that cannot be read."""
    term = {"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    meta = {"resourceVersion": "100000"}
    return bare_pod(name, meta=meta, affinity={"nodeAffinity": required}, **GATED)


class RecordingClock(ManualClock):
    """Keeps how long was slept."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, delay_s: float) -> None:
        """Advance at once."""
        self.slept.append(delay_s)
        await super().sleep(delay_s)


class Wanted:
    """Workloads that lack their FluxJob, and those that have got it, in that order."""

    def __init__(self, *objects: Obj) -> None:
        self.missing = {one["metadata"]["uid"]: one for one in objects}
        self.made: list[str] = []

    def take(self, uid: str, _flux_uid: str, _flux_version: str) -> None:
        """One is made."""
        del self.missing[uid]
        self.made.append(uid)

    def creator(self, client: KubeClient, clock: Clock) -> FluxJobCreator:
        """Of what is wanted here."""
        made = FluxJobCreator(
            client,
            clock,
            DEFAULT_SITE,
            Lookups(find=self.missing.get, recall=nothing_before),
            on_made=self.take,
        )
        made.is_known.set()
        return made


async def nothing_before(uids: AbstractSet[str]) -> dict[str, Past]:
    """What workloads said before is not known."""
    return {}


@asynccontextmanager
async def _wrapping(
    wanted: Wanted, clock: ManualClock | SystemClock, refuse: Refuse
) -> AsyncIterator[RefusingApi]:
    async with (
        serve(RefusingApi(refuse)) as api,
        KubeClient(ClusterConfig(api.url)) as client,
    ):
        wrapper = wanted.creator(client, clock)
        running = asyncio.create_task(wrapper.run())
        for uid in wanted.missing:
            wrapper.want(uid)
        yield api
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_is_refused_is_tried_ever_more_rarely() -> None:
    """Each by itself. The others are made at once and in the order of their submission."""
    blocked = [job(f"blocked-{n}") for n in range(3)]
    good = [job("late", 9), job("early", 1), job("middle", 5)]
    wanted, clock = Wanted(*blocked, *good), RecordingClock()

    def refuse(_plural: str, name: str) -> int:
        return 403 if name.startswith("blocked") else 0

    async with _wrapping(wanted, clock, refuse) as api:
        await eventually(lambda: api.refused["fluxjobs"] >= 3 * 14, "many tries")
        wanted.missing.clear()
    names = [one["metadata"]["name"] for one in api.objects]
    assert sorted(names) == ["early-job", "late-job", "middle-job"]
    pauses = sorted(clock.slept)
    assert pauses[0] >= 0.1
    assert sum(pause >= RETRY_MAX_S / 2 for pause in pauses) >= 3 * 3, "and no longer than a minute"
    assert pauses[-1] <= RETRY_MAX_S


async def test_a_slow_answer_holds_up_nobody() -> None:
    """A later workload gets its FluxJob while that of an earlier one is still being made."""
    wanted = Wanted(job("slow"))
    release = asyncio.Event()
    async with serve(RefusingApi()) as api, KubeClient(ClusterConfig(api.url)) as client:
        create = client.create

        async def create_slowly(
            resource: Any, namespace: str | None, body: Any, **more: Any
        ) -> Any:
            if body["metadata"]["name"] == "slow-job":
                await release.wait()
            return await create(resource, namespace, body, **more)

        client.create = create_slowly  # type: ignore[method-assign]
        wrapper = wanted.creator(client, SystemClock())
        running = asyncio.create_task(wrapper.run())
        wrapper.want("uid-slow")
        await asyncio.sleep(0)
        wanted.missing["uid-next"] = job("next")
        wrapper.want("uid-next")

        await eventually(lambda: wanted.made == ["uid-next"], "the next one made")
        release.set()

        await eventually(lambda: wanted.made == ["uid-next", "uid-slow"], "the slow one made")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_those_of_one_burst_are_told_of_in_their_order() -> None:
    """Rows are numbered as they come: the FluxJob that was answered last may be the first."""
    wanted = Wanted(job("first", 1), job("second", 2), job("third", 3))
    others = asyncio.Event()
    async with serve(RefusingApi()) as api, KubeClient(ClusterConfig(api.url)) as client:
        create = client.create

        async def create_backwards(
            resource: Any, namespace: str | None, body: Any, **more: Any
        ) -> Any:
            if body["metadata"]["name"] == "first-job":
                await others.wait()
            found = await create(resource, namespace, body, **more)
            others.set()
            return found

        client.create = create_backwards  # type: ignore[method-assign]
        wrapper = wanted.creator(client, ManualClock())
        running = asyncio.create_task(wrapper.run())
        for uid in reversed(wanted.missing):
            wrapper.want(uid)

        await eventually(lambda: not wanted.missing, "all of them made")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert api.objects[-1]["metadata"]["name"] == "first-job"
    assert wanted.made == ["uid-first", "uid-second", "uid-third"]


async def test_what_admission_left_alone_gets_an_event() -> None:
    """Its author set the gate by hand and waits for a queue that does not know it."""
    meta = {"labels": {MANAGED: "false"}, "resourceVersion": "1"}
    forged = batch_job("forged", meta=meta, pod=GATED)
    async with serve(RefusingApi()) as api, KubeClient(ClusterConfig(api.url)) as client:
        creator = Wanted().creator(client, ManualClock())
        for _ in range(2):
            creator.tell_unvouched("uid-forged", forged)

        await eventually(lambda: bool(api.objects), "an Event")
    (event,) = api.objects
    assert event["involvedObject"]["name"] == "forged"
    assert "admission did not see it" in event["message"]
    assert api.taken == {"events": 1}


@pytest.mark.parametrize("code", [0, 403, 422])
async def test_one_pod_of_one_tenant_stops_nobody(database_url: str, code: int) -> None:
    """Its name has a dash where a cut from the left would begin. A quota refuses every Event."""
    poison = spoilt("aaaaa-" + "b" * 247)
    assert len(poison["metadata"]["name"]) == 253

    def refuse(plural: str, _name: str) -> int:
        return code if plural == "events" else 0

    settings = settings_for(database_url)
    async with (
        Database(settings, role="test") as database,
        serve(RefusingApi(refuse)) as api,
        KubeClient(ClusterConfig(api.url)) as client,
    ):
        observer = await make_observer(database, client, settings)
        observer.creator.is_known.set()
        loops = [observer.creator.run(), observer.flusher.run()]
        running = [asyncio.create_task(loop) for loop in loops]
        observer.router.on_pod(None, poison)
        observer.router.on_job(None, job("good"))

        async def are_written(*names: str) -> None:
            expected = [{"uid": f"uid-{name}", "state": "Pending"} for name in names]

            await until(
                lambda: dicts(database, "SELECT uid, state FROM fluxjobs ORDER BY uid"),
                lambda found: found == expected,
                f"rows of {names}",
            )

        async def is_told() -> bool:
            return bool(api.refused["events"] if code else api.taken["events"])

        await are_written("good")
        await eventually(is_told, "the event")
        observer.creator.want(poison["metadata"]["uid"])
        observer.router.on_job(None, job("next", second=1))
        await are_written("good", "next")
        for task in running:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert api.taken["events"] + api.refused["events"] == 1, "one fault is told once"

"""Indexed Jobs across nodes: each pod gets its node at its creation, without a patch of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from fluxqueue.fluxjob.hostlist import expand
from fluxqueue.kube import steer
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.workload import labels
from fluxqueue.workload.pinning import sealed_in
from fluxqueue.workload.pods import gate_index
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import Space
from tests.support.waiting import eventually, until

SLOTS = """
SELECT s.number, s.node, s.completion_index, p.node AS pod_node, p.completion_index AS pod_index
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id AND a.is_live
JOIN fluxjobs f ON f.uid = a.uid JOIN pods p ON p.uid = s.pod_uid
WHERE f.namespace = :namespace AND f.workload_name = :name ORDER BY s.number
"""


def gang(name: str, **more: Any) -> Obj:
    """Four pods that need a node each."""
    return job(name, pods=4, cpu="12", completionMode="Indexed", **{"run": FOR_EVER, **more})


@asynccontextmanager
async def created_pods(space: Space) -> AsyncIterator[list[Obj]]:
    """The pods of the namespace as they are when they are created."""
    version = (await space.client.list(PODS, space.name)).resource_version
    seen: list[Obj] = []

    async def watch() -> None:
        async for event in space.client.watch(PODS, space.name, resource_version=version):
            if event.type == "ADDED":
                seen.append(event.object)  # noqa: PERF401 a list would be filled at the end

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def until_seen(pods: list[Obj], number: int) -> None:
    """Wait until the watch has shown so many pods."""

    await eventually(lambda: len(pods) == number, f"{number} pods were created")


async def slots_of(space: Space, name: str) -> list[dict[str, Any]]:
    """The held slots of a Job, each with its pod."""
    return await space.world.rows(SLOTS, namespace=space.name, name=name)


async def until_booked(space: Space, name: str) -> list[dict[str, Any]]:
    """Wait until each of four pods holds its slot and is bound."""

    async def look() -> list[dict[str, Any]] | None:
        found = await slots_of(space, name)
        return found if len(found) == 4 and all(one["pod_node"] for one in found) else None

    return await eventually(look, f"the pods of {name} hold their slots")


async def test_each_index_gets_its_node_at_its_creation(space: Space) -> None:
    """No pod is seen gated, and each is booked in the slot of its index."""
    async with created_pods(space) as seen:
        await space.create(gang("placed"))
        pods = await space.until_running("placed", 4)
        fluxjob = await space.until_state("placed", "Running")
        await until_seen(seen, 4)
    nodes = expand(fluxjob["status"]["nodes"])
    for pod in seen:
        assert gate_index(pod["spec"]) is None
        meta = pod["metadata"]
        assert meta["labels"][labels.JOBID] == str(fluxjob["status"]["jobid"])
        assert expand(meta["annotations"][labels.NODES]) == sorted(nodes)
        assert labels.PLACEMENT not in meta["annotations"]
        assert labels.PLACED not in meta["labels"]
        # The embedded API server never shows them here. The real one shows what it has.
        assert "managedFields" not in meta
    assert not any("managedFields" in pod["metadata"] for pod in pods), "nor after later updates"
    at = {int(pod["metadata"]["annotations"][labels.COMPLETION_INDEX]): pod for pod in pods}
    for slot in await until_booked(space, "placed"):
        pod = at[slot["pod_index"]]
        assert slot["number"] == slot["completion_index"] == slot["pod_index"]
        assert slot["node"] == slot["pod_node"] == pod["spec"]["nodeName"]
    await assert_invariants(space.world)


async def test_an_author_who_applies_a_pod_still_owns_its_fields(space: Space) -> None:
    """Only pods that the Job controller makes lose them, whatever releases them."""
    await space.create(job("gang", pods=2, cpu="12", run=FOR_EVER))
    made = await space.until_running("gang", 2)
    assert not any("managedFields" in pod["metadata"] for pod in made)
    pod = bare_pod("applied", cpu="100m", run=FOR_EVER)
    apply = partial(
        space.client.patch,
        *(PODS, space.name, "applied", pod),
        kind=PatchKind.APPLY,
        field_manager="author",
    )
    await apply()
    await space.until_state("applied", "Running")
    running = (await space.client.get(PODS, space.name, "applied"))["metadata"]
    assert labels.JOBID in running["labels"]
    assert "author" in {one["manager"] for one in running["managedFields"]}
    pod["metadata"]["labels"] = {"mine": "1"}
    assert (await apply())["metadata"]["labels"]["mine"] == "1"


@pytest.mark.long("the API server waits for the webhook")
async def test_without_the_webhook_its_pods_come_gated_and_run_all_the_same(space: Space) -> None:
    """The API server does not wait for it for long, and each pod is patched."""
    await space.create(gang("unseen", wishes={"hold": "true"}))
    await space.until_state("unseen", "Held")
    webhook = space.world.pid("webhook")
    async with created_pods(space) as seen:
        os.kill(webhook, signal.SIGSTOP)
        try:
            free = {"metadata": {"annotations": {"fluxqueue/hold": None}}}
            await space.client.patch(JOBS, space.name, "unseen", free, kind=PatchKind.MERGE)
            await space.until_running("unseen", 4)
        finally:
            os.kill(webhook, signal.SIGCONT)
        await until_seen(seen, 4)
    assert all(gate_index(pod["spec"]) is not None for pod in seen)
    await until_booked(space, "unseen")
    await assert_invariants(space.world)


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_requeued_gang_is_placed_anew(space: Space) -> None:
    """Its template names no nodes while it waits, and its pods never use more than it holds."""
    async with space.recording() as seen:
        await space.create(gang("again"))
        await space.until_running("again", 4)
        first = await space.client.get(JOBS, space.name, "again")
        await steer.requeue(space.client, await space.until_state("again", "Running"))
        await seen.until(lambda r: len(r.seen("again")) == 8, "it runs again")
        await space.until_running("again", 4)
        stored = await space.client.get(JOBS, space.name, "again")
        assert sealed_in(stored) not in {None, sealed_in(first)}
        assert max(seen.peak_cpu_m().values()) <= 16_000
    await until_booked(space, "again")
    await assert_invariants(space.world)


async def test_an_author_who_suspends_it_gets_the_template_back(space: Space) -> None:
    """As long as it is held, its template may be edited, and has no nodes."""
    await space.create(gang("mine"))
    await space.until_running("mine", 4)
    stop, go = ({"spec": {"suspend": is_stopped}} for is_stopped in (True, False))
    await space.client.patch(JOBS, space.name, "mine", stop, kind=PatchKind.MERGE)
    await space.until_state("mine", "Held")

    await until(
        lambda: space.client.get(JOBS, space.name, "mine"),
        lambda found: sealed_in(found) is None,
        "its template has no placement",
    )
    await space.client.patch(JOBS, space.name, "mine", go, kind=PatchKind.MERGE)
    await space.until_running("mine", 4)
    await until_booked(space, "mine")
    await assert_invariants(space.world)


@pytest.mark.long("the Job controller waits before it replaces a pod")
async def test_a_failed_index_starts_again_in_its_slot(space: Space) -> None:
    """With ``backoffLimitPerIndex`` the Job controller says so, and the pod comes gated."""
    body = gang("fails", run={"duration": "200ms", "fail-times": "1"}, backoffLimitPerIndex=2)
    async with created_pods(space) as created, space.recording() as seen:
        await space.create(body)
        done = await space.until_job("fails")
        await until_seen(created, 8)
    assert done["status"]["completedIndexes"] == "0-3"
    gates = [
        gate_index(pod["spec"]) is not None
        for pod in sorted(
            created,
            key=lambda one: int(one["metadata"]["annotations"][labels.INDEX_FAILURES]),
        )
    ]
    assert gates == [False] * 4 + [True] * 4
    homes: dict[str, set[str]] = {}
    for pod in seen.seen("fails").values():
        homes.setdefault(str(pod.index), set()).add(str(pod.node))
    assert [len(nodes) for nodes in homes.values()] == [1] * 4

"""The PodGroup of a gang in rows and cluster: a worker that dies, and a group of someone else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.clock import SystemClock
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import JOBS
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.release import release_workloads
from fluxqueue.workload.index_placement import unseal
from fluxqueue.workload.pinning import sealed_in
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.e2e.lives import POD_GROUP
from tests.support.looks import RULES, look, pass_time
from tests.support.pod_groups import serve
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, pod, settings_for, workload
from tests.support.workers import POD_SPEC, rows_of

GROUPS = replace(RULES, binds_groups=True)
KEY = b"k" * 32


class Dying(KubeClient):
    """Dies at the creation of a PodGroup, before it is sent or after it was answered."""

    is_sent = False

    async def create(self, resource: Any, *given: Any, **named: Any) -> dict[str, Any]:
        """All else is carried out."""
        if resource.kind != POD_GROUP.kind:
            return await super().create(resource, *given, **named)
        if self.is_sent:
            await super().create(resource, *given, **named)
        raise asyncio.CancelledError


@dataclass
class Gang:
    """An Indexed BatchJob of two pods, in rows and on a cluster that serves PodGroups."""

    rows: Rows
    admin: KubeClient
    seen: WorkloadSeen

    async def release(self, client: KubeClient | None = None) -> None:
        """Carry out its pending release."""
        settings = settings_for("", bind_gangs="group")
        made = WorkerContext(
            self.rows.database,
            client or self.admin,
            settings,
            SystemClock(),
            "w1",
            placement_key=KEY,
        )
        await release_workloads(made, [self.seen.uid])

    async def see(self, *pods: PodFact, **more: Any) -> None:
        await self.rows.see(but(self.seen, pods=pods, **more))

    async def start(self) -> None:
        """Release it. Its pods come with their nodes, and name a group that does not exist."""
        await self.rows.match()
        await pass_time(self.rows, 2)  # a second later, another start has a group of its own
        await self.release()
        given = {"is_suspended": False, "generation": 2, "is_whole": True, "is_placed": True}
        await self.see(*pods(), **given)
        await look(self.rows, self.seen.uid, GROUPS)

    async def named(self) -> str:
        """The group that its template names."""
        job = await self.admin.get(JOBS, "default", self.seen.workload_name)
        sealed = unseal(sealed_in(job) or "", self.seen.uid, KEY)
        return sealed.group if sealed else ""

    async def groups(self) -> list[dict[str, Any]]:
        return (await self.admin.list(POD_GROUP, "default")).items

    async def row(self) -> dict[str, Any]:
        (found,) = await self.rows.fetch("SELECT * FROM fluxjobs")
        return found


def pods() -> tuple[PodFact, ...]:
    return tuple(pod(f"p{index}", is_gated=False, index=index) for index in range(2))


@pytest_asyncio.fixture
async def gang(database_url: str, definitions: None, admin: KubeClient) -> AsyncIterator[Gang]:
    await serve(admin)
    spec = {"suspend": True, "parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sim"}}
    template = {"metadata": {}, "spec": POD_SPEC}
    made = await admin.create(JOBS, "default", body | {"spec": spec | {"template": template}})
    seen = workload(
        made["metadata"]["uid"],
        request(2, cpu=2),
        workload_name="sim",
        name="sim-job",
        flux_uid=None,
        is_placeable=True,
        spare_failures=3,
    )
    async with rows_of(database_url) as rows:
        await rows.add_nodes(*(cpu_node(f"n{n}", cpu=2) for n in range(3)))
        await rows.see(seen)
        yield Gang(rows, admin, seen)


@asynccontextmanager
async def dying(cluster: LocalCluster, *, is_sent: bool) -> AsyncIterator[Dying]:
    async with Dying(config_of(cluster), transport=InProcessTransport(cluster)) as client:
        client.is_sent = is_sent
        yield client


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_worker_dies_between_the_decision_and_its_record(
    gang: Gang, cluster: LocalCluster, is_sent: bool
) -> None:
    """The release stays pending. The next worker makes the group, or finds it made."""
    await gang.start()
    assert await gang.groups() == []
    async with dying(cluster, is_sent=is_sent) as client:
        with suppress(asyncio.CancelledError):
            await gang.release(client)
    assert len(await gang.groups()) == is_sent
    assert (await gang.row())["release_at"] is not None
    await gang.release()
    (group,) = await gang.groups()
    assert group["metadata"]["name"] == await gang.named()
    row = await gang.row()
    assert (row["release_at"], row["start"].get("trouble")) == (None, None)
    await gang.rows.check()


async def test_a_group_of_another_owner_has_its_name(gang: Gang) -> None:
    """The FluxJob says so, and returns to the queue. Its next start has a group of another name."""
    await gang.start()
    name = await gang.named()
    foreign = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind}
    foreign |= {
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 9}}},
    }
    await gang.admin.create(POD_GROUP, "default", foreign)
    await gang.release()
    await look(gang.rows, gang.seen.uid, GROUPS)
    said = f"2 of its 2 pods cannot be bound in PodGroup {name}: another object has its name"
    assert (await gang.row())["reason"] == said
    await pass_time(gang.rows, 3)
    await gang.release()
    assert (await look(gang.rows, gang.seen.uid, GROUPS)).start_failures == []
    await pass_time(gang.rows, 3)
    found = await look(gang.rows, gang.seen.uid, GROUPS)
    assert found.start_failures == ["NoPodGroup"]
    assert (await gang.row())["reason"] == f"{said}; it goes back to the queue"
    await gang.release()
    await gang.see(generation=3, is_idle=True)
    await look(gang.rows, gang.seen.uid, GROUPS)
    row = await gang.row()
    assert (row["state"], row["start"]["tries"]) == ("Pending", 1)
    assert said in row["reason"]
    await pass_time(gang.rows, 20)
    await look(gang.rows, gang.seen.uid, GROUPS)
    await gang.rows.match()
    await gang.release()
    again = await gang.named()
    assert again not in {"", name}
    owned = [
        one["metadata"]["name"] for one in await gang.groups() if one["spec"] != foreign["spec"]
    ]
    assert owned == [again]
    await gang.rows.check()

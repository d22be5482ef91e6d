"""PodGroups for gangs on a served API: made once, corrected, and never a reason not to start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.errors import ApiUnavailable, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import CRDS
from fluxqueue.worker.gang_groups import ASK_EVERY_S, GangGroups
from fluxqueue.workload.gang_group import GangGroup
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.e2e.lives import POD_GROUP
from tests.support.faults import FaultyTransport
from tests.support.pod_groups import serve
from tests.support.waiting import eventually

GANG = GangGroup("uid-1", "sim", least=4, start_s=255, priority_class="urgent")
NOT_SERVED = "Kubernetes does not serve PodGroups"


@pytest.fixture
def groups(admin: KubeClient) -> GangGroups:
    return GangGroups(admin, ManualClock())


async def stored(admin: KubeClient) -> dict[str, Any]:
    return await admin.get(POD_GROUP, "default", GANG.name)


async def test_it_is_made_once_with_its_job_as_owner(admin: KubeClient, groups: GangGroups) -> None:
    """Sent again after a crash, it stays as it is."""
    await serve(admin)
    assert not await groups.ensure("default", GANG)
    made = await stored(admin)
    assert GANG.name == "fluxqueue-uid-1-ff"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert made["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "disruptionMode": {"all": {}},
        "priorityClassName": "urgent",
    }
    assert not await groups.ensure("default", GANG)
    assert (await stored(admin))["metadata"]["resourceVersion"] == made["metadata"][
        "resourceVersion"
    ]


@pytest.mark.parametrize("least", [1, 9])
async def test_its_least_size_is_corrected(
    admin: KubeClient, groups: GangGroups, least: int
) -> None:
    """It differs after an edit by a user, and once a pod of the gang is bound."""
    await serve(admin)
    await groups.ensure("default", replace(GANG, least=least))
    assert not await groups.ensure("default", GANG)
    assert (await stored(admin))["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}


@pytest.mark.parametrize("policy", [{"gang": {"minCount": 4}}, {"basic": {}}])
async def test_a_group_of_another_maker_is_left_alone(
    admin: KubeClient, groups: GangGroups, policy: dict[str, Any]
) -> None:
    """Its name is said: pods that wait for the group cannot be bound in it."""
    await serve(admin)
    body = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind}
    body |= {"metadata": {"name": GANG.name}, "spec": {"schedulingPolicy": policy}}
    await admin.create(POD_GROUP, "default", body)
    assert await groups.ensure("default", GANG) == "another object has its name"
    assert (await stored(admin))["spec"] == body["spec"]


async def test_a_group_that_is_being_deleted_is_not_used(
    admin: KubeClient, groups: GangGroups
) -> None:
    """Kubernetes keeps it as long as pods name it."""
    await serve(admin)
    body = GANG.body()
    body["metadata"]["finalizers"] = ["scheduling.k8s.io/podgroup-protection"]
    await admin.create(
        POD_GROUP, "default", {"apiVersion": POD_GROUP.api_version, "kind": "PodGroup", **body}
    )
    await admin.delete(POD_GROUP, "default", GANG.name)
    assert await groups.ensure("default", GANG) == "it is being deleted"


async def test_where_groups_are_not_served_there_are_none(admin: KubeClient) -> None:
    """On Kubernetes 1.30 to 1.36, and after a downgrade. An upgrade is noticed within a minute."""
    clock = ManualClock()
    groups = GangGroups(admin, clock)
    assert await groups.ensure("default", GANG) == NOT_SERVED
    await serve(admin)
    assert await groups.ensure("default", GANG) == NOT_SERVED
    clock.advance(ASK_EVERY_S)
    assert not await groups.ensure("default", GANG)
    await admin.delete(CRDS, None, f"{POD_GROUP.plural}.{POD_GROUP.group}")

    async def is_gone() -> bool:
        try:
            await admin.list(POD_GROUP)
        except NotFound:
            return True
        return False

    await eventually(is_gone, "PodGroups are not served any more")
    assert await groups.ensure("default", replace(GANG, uid="uid-2"))
    assert not await groups.can_make(), "the next gang does without at once"


async def test_an_unreachable_server_is_no_answer(cluster: LocalCluster) -> None:
    """The release is tried again: its pods would else be bound one by one for a short outage."""
    transport = FaultyTransport(InProcessTransport(cluster), seed=1, rate=1.0)
    async with KubeClient(config_of(cluster), transport=transport) as client:
        with pytest.raises(ApiUnavailable):
            await GangGroups(client, ManualClock()).ensure("default", GANG)

"""The chart's rights are exactly those that are needed, held against the API server's audit log.

One story that does everything the parts can be made to do, under the chart's service accounts: a
request that is refused is a right that is missing, a right that no request needed is one too many.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from fluxqueue.errors import NotFound
from fluxqueue.jobspec.bounds import BUILT
from fluxqueue.kube import steer
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.installation import read_user
from fluxqueue.kube.resources import (
    CLAIMS,
    DEPLOYMENTS,
    EVENTS,
    FLUXJOBS,
    JOBS,
    MUTATING_WEBHOOKS,
    NODE_TOPOLOGIES,
    NODES,
    PLACEMENT_REVIEWS,
    PODS,
    SECRETS,
    STATEFULSETS,
    STORAGE_CLASSES,
    ApiResource,
)
from fluxqueue.nodepools.plan.node_protection import KEYS, ON
from fluxqueue.workload.labels import GATE, MANAGED, PROTECTED, SUSPENDED, USER
from fluxqueue.workload.owner_kinds import BUILT_IN, is_suspended
from tests.support import chart_rights
from tests.support.e2e.custom_kinds import JOB_SET, POD_GROUPS, define
from tests.support.e2e.group_members import member
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.kills import kill_part
from tests.support.e2e.maintenance import Reservations
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.owned_pods import create, pod_of, reference, template, until_told
from tests.support.e2e.pools import Pools
from tests.support.e2e.refusals import REFUSAL, refused_pods
from tests.support.e2e.replica_sets import a_set
from tests.support.e2e.rights import RightsWorld, kept_rights_world
from tests.support.e2e.sharing import Policies
from tests.support.e2e.space import WAITING, Space, make_space, remove_space
from tests.support.owners import job_set_spec, spec_of
from tests.support.typing_verbs import Typist
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

CLUSTERS = [
    pytest.param("embedded", marks=pytest.mark.long("the parts do all that they can do")),
    pytest.param("real", marks=pytest.mark.real_cluster),
]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def rights(
    cluster_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RightsWorld]:
    """A world of this module's own, because it is audited and uninstalled at its end."""
    async with kept_rights_world(cluster_kind, "rights", tmp_path_factory) as running:
        yield running


@pytest.mark.parametrize("cluster_kind", CLUSTERS, indirect=True)
async def test_the_chart_grants_what_is_needed_and_nothing_else(rights: RightsWorld) -> None:
    world = rights.world
    space = await make_space(world)
    await _jobs_and_pods_run(space)
    await _pods_are_refused(space)
    await _a_waiting_job_is_suspended_again(space)
    await _a_status_meets_a_conflict(space)
    await _a_status_is_refused(rights, space)
    await _a_fluxjob_is_in_the_way(rights, space)
    await _a_fluxjob_is_let_go(space)
    await _what_passed_by_admission_is_reported(rights)
    await _work_is_cancelled(space)
    await _fluxjobs_are_deleted(space)
    await _reviews_are_answered(space)
    await _a_sharing_policy_has_a_status(space)
    await _a_reservation_has_a_status(space)
    await _owners_are_read(space)
    await _owners_wait_suspended(space)
    await _nodes_are_asked_for(space)
    await _certificates_are_made(rights)
    await _somebody_asks_the_view_server(rights)
    await assert_invariants(world)
    await space.create_all(job(f"left-{n}", cpu="16", pool="single") for n in range(3))
    await space.create(bare_pod("left", cpu="16", nodeSelector={"pool": "single"}))
    for name in ("left-2", "left"):
        await space.until_state(name, *WAITING)
    await _a_node_is_still_protected(space)
    await _uninstall(rights)
    await _nothing_waits_suspended(space)
    uses, served = rights.uses(), await chart_rights.served(world.client)
    assert not chart_rights.missing(uses)
    for part in chart_rights.PARTS:
        assert sorted(chart_rights.unused(uses, part, served)) == []
    await remove_space(space)


async def _jobs_and_pods_run(space: Space) -> None:
    await space.create(job("two", pods=2, cpu="2"))
    await space.create(bare_pod("solo"))
    await space.until_job("two")
    await space.until_state("solo", "Completed")


async def _pods_are_refused(space: Space) -> None:
    """The worker reads why they are not created."""
    body = job("barred")
    body["spec"]["template"]["metadata"]["labels"] = {"team": "true"}
    async with refused_pods(space, label="team"):
        await space.create(body)

        async def is_explained() -> bool:
            status = (await space.fluxjob("barred") or {}).get("status") or {}
            return REFUSAL in status.get("reason", "")

        await eventually(is_explained, "barred says why its pods are not created")
    await space.delete("barred")
    await space.until_gone(JOBS, "barred")


async def _nodes_are_asked_for(space: Space) -> None:
    """By each provider, one after the other. What the worker has made, it deletes."""
    pools = Pools(space)
    for pool in (
        await pools.make("held"),
        await pools.make_scaled("scaled", idleTime="1s"),
        await pools.make_requested("asked"),
        await pools.make_buffered("buffered"),
    ):
        await space.create(job(pool, cpu="6", pool=pool))
        await space.until_job(pool)
        await pools.until(pool, measured=1, nodes=0)
    await pools.remove()


async def _a_node_is_still_protected(space: Space) -> None:
    """As if the worker had been removed before it released the node."""
    name = (await space.client.list(NODES)).items[0]["metadata"]["name"]
    notes = {KEYS[0]: ON, PROTECTED: KEYS[0]}
    await space.client.patch(NODES, None, name, {"metadata": {"annotations": notes}})


async def _somebody_asks_the_view_server(rights: RightsWorld) -> None:
    """The user's name, and what the user may see: the API server knows both."""
    await rights.world.stack.start_view()
    typist = Typist(rights.world.client, rights.world.kubeconfig)
    told = await typist.type("acct", "-A", "-o", "json")
    assert told.code == 0, told.err
    assert json.loads(told.out)


async def _a_waiting_job_is_suspended_again(space: Space) -> None:
    """Its author unsuspends it while there is no room: the worker reads and suspends it."""
    await space.create(job("fill", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("fill", "Running")
    await space.create(job("early", cpu="16", pool="single", suspend=True))
    await space.until_state("early", "Held")
    await space.client.patch(JOBS, space.name, "early", {"spec": {"suspend": False}})
    await space.until_state("early", *WAITING)

    async def is_suspended() -> bool:
        found = await space.client.get(JOBS, space.name, "early")
        return bool(found["spec"].get("suspend"))

    await eventually(is_suspended, "early is suspended again")


async def _a_status_meets_a_conflict(space: Space) -> None:
    """Another client writes to a FluxJob between two of its statuses."""
    fluxjob = await space.fluxjob("early")
    assert fluxjob is not None
    note = {"metadata": {"annotations": {"somebody": "was-here"}}}
    await space.client.patch(FLUXJOBS, space.name, fluxjob["metadata"]["name"], note)
    await space.delete("early")
    await space.until_gone(JOBS, "early")
    await space.create(job("other", cpu="1"))
    await space.until_state("other", "Pending", "Allocated", "Running", "Completed")
    await space.client.patch(FLUXJOBS, space.name, "other-job", note)
    await space.until_job("other")
    await space.until_state("other", "Completed")


async def _a_status_is_refused(rights: RightsWorld, space: Space) -> None:
    """The one that is there claims to be newer: the worker checks whether its own is pending."""
    await space.create(job("shown", run={"duration": "3s"}))
    running = await space.until_state("shown", "Running")
    newer = {"status": running["status"] | {"version": 10**6}}
    at = (FLUXJOBS, space.name, "shown-job")
    await space.client.patch(*at, newer, kind=PatchKind.MERGE, subresource="status")

    await eventually(
        lambda: any(one.name == "shown-job" and one.verb == "get" for one in rights.uses()),
        "the worker looks at the status",
    )
    await space.delete("shown")
    await space.until_gone(FLUXJOBS, "shown-job")


async def _a_fluxjob_is_in_the_way(rights: RightsWorld, space: Space) -> None:
    """A FluxJob of that name exists already: the controller looks for its owner, and waits."""
    model = await space.fluxjob("two")
    assert model is not None
    kind = {"apiVersion": FLUXJOBS.api_version, "kind": FLUXJOBS.kind}
    body: Obj = {**kind, "metadata": {"name": "taken-job"}, "spec": model["spec"]}
    body["metadata"]["ownerReferences"] = model["metadata"]["ownerReferences"]
    await space.client.create(FLUXJOBS, space.name, body)
    await space.create(job("taken"))

    await eventually(
        lambda: any(one.name == "taken-job" and one.verb == "get" for one in rights.uses()),
        "the controller looks whose it is",
    )
    await space.client.delete(FLUXJOBS, space.name, "taken-job")
    await space.until_job("taken")


async def _a_fluxjob_is_let_go(space: Space) -> None:
    """Its Job is deleted with the wish to leave behind what it owns: the controller removes it."""
    # The garbage collector learns of new kinds every half minute. One that does not know FluxJobs
    # yet would not orphan this one, and remove it itself later.
    await space.create(job("known"))
    await space.until_state("known", "Completed")
    await space.delete("known")
    await space.until_gone(FLUXJOBS, "known-job")
    await space.client.delete(JOBS, space.name, "two", propagation="Orphan")
    await space.until_gone(FLUXJOBS, "two-job")


async def _work_is_cancelled(space: Space) -> None:
    """The worker deletes the workload: a Job, a bare Pod, and all of a group."""
    await space.create(job("unwanted", cpu="1", run=FOR_EVER))
    await space.create(bare_pod("unwanted-too", run=FOR_EVER))
    await space.create_all(member(f"both-{n}", "both", 2, run=FOR_EVER) for n in range(2))
    for name in ("unwanted", "unwanted-too", "both"):
        fluxjob = await space.until_state(name, "Running")
        await steer.cancel(space.client, fluxjob)
    await space.until_gone(JOBS, "unwanted")
    await space.until_gone(PODS, "unwanted-too")
    await space.until_gone(PODS, "both-1")


async def _fluxjobs_are_deleted(space: Space) -> None:
    """The controller looks whether the workload, and the definition, are still there."""
    await space.create(job("unliked", cpu="1", run=FOR_EVER))
    await space.create(bare_pod("unliked-too", run=FOR_EVER))
    for name in ("unliked", "unliked-too"):
        fluxjob = await space.until_state(name, "Running")
        await space.delete(fluxjob["metadata"]["name"], FLUXJOBS)
    await space.until_gone(JOBS, "unliked")
    await space.until_gone(PODS, "unliked-too")


async def _claims(space: Space) -> list[Obj]:
    """A claim that names a volume, and one that waits for a volume of its class."""
    storage = {
        "metadata": {"name": space.name},
        "provisioner": "example.org/none",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    await space.client.create(STORAGE_CLASSES, None, storage)
    for name, more in (("old", {"volumeName": "none"}), ("new", {"storageClassName": space.name})):
        asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": name}, "spec": {**asked, **more}}
        await space.client.create(CLAIMS, space.name, body)
    return [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in ("old", "new")]


async def _a_reservation_has_a_status(space: Space) -> None:
    """The controller reads it, and the worker shows what it closes."""
    reservations = Reservations(space)
    try:
        name = await reservations.make(3600, duration="1h")
        await reservations.until(name, Valid="True", nodes=1)
    finally:
        await reservations.remove()


async def _a_sharing_policy_has_a_status(space: Space) -> None:
    """The worker writes it."""
    policies = Policies(space)
    name = await policies.make(policy="headroom", headroom={"cpu": "1"})
    await policies.until(name, nodes=1)
    await policies.remove()


async def _reviews_are_answered(space: Space) -> None:
    """The worker asks for rights to read, the controller refuses some and takes all away."""
    await space.create(job("asked", run=FOR_EVER))
    await space.until_state("asked", "Running")
    model = job("model")
    model["spec"]["template"]["spec"]["priorityClassName"] = "system-node-critical"
    model["spec"]["template"]["spec"]["runtimeClassName"] = "none"
    model["spec"]["template"]["spec"]["volumes"] = await _claims(space)
    for number in range(30):
        spec = {"manifest": model} if number == 0 else {"fluxJob": "asked-job"}
        body = {
            "apiVersion": PLACEMENT_REVIEWS.api_version,
            "kind": PLACEMENT_REVIEWS.kind,
            "metadata": {"name": f"ask-{number}"},
            "spec": spec,
        }
        await space.client.create(PLACEMENT_REVIEWS, space.name, body)

    async def are_told() -> bool:
        found = (await space.client.list(PLACEMENT_REVIEWS, space.name)).items
        told = {(one.get("status") or {}).get("reason") for one in found}
        return {"HasItsNodes", "TooMany"} <= told

    async def are_gone() -> bool:
        return not (await space.client.list(PLACEMENT_REVIEWS, space.name)).items

    await eventually(are_told, "some are answered, some refused")
    await eventually(are_gone, "they are taken away")
    await space.delete("asked")
    await space.until_gone(JOBS, "asked")


async def _owners_are_read(space: Space) -> None:
    """Pods of each kind that is built in ask to be queued: their maker is looked up. Objects of
    others are followed where their definitions are.
    """
    for resource in (*POD_GROUPS, NODE_TOPOLOGIES[0]):
        await define(space, resource)
    await kill_part(space.world, "controller")
    for resource in (DEPLOYMENTS, STATEFULSETS):
        await space.client.create(resource, space.name, a_set(resource, "set", replicas=1))
        await until_owner(space, f"set-{resource.kind.lower()}")
        await space.delete("set", resource)
    for one in BUILT_IN:
        if one.group == "apps":
            continue
        resource = ApiResource(one.group, "v1", one.resource, one.kind, True)
        made = await create(space, resource, "owner", {})
        asking = template()
        asking["metadata"]["labels"] = {"fluxqueue/managed": "true"}
        name = f"of-{one.kind.lower()}"
        await space.create(pod_of(reference(resource, made), name, asking))
        await until_owner(space, f"owner-{one.kind.lower()}")
        await space.delete(name, PODS)


async def _owners_wait_suspended(space: Space) -> None:
    """One of each kind is released, requeued, cancelled. One is left for the uninstallation."""
    entries = [one for one in BUILT_IN if one.suspend]
    for entry in entries:
        resource = ApiResource(entry.group, "v1", entry.resource, entry.kind, True)
        held = f"held-{entry.kind.lower()}"
        made = await create(space, resource, held, spec_of(entry, template()))
        if entry.templates_in is not None:
            await make_told(space, resource, made)
        fluxjob = await until_told(space, f"{held}-{entry.kind.lower()}", "Allocated")
        await steer.requeue(space.client, fluxjob)
        requeued = "SELECT requeues FROM fluxjobs WHERE uid = :uid AND requeues > 0"
        uid = fluxjob["spec"]["workload"]["uid"]

        async def is_requeued(sql: str = requeued, uid: str = uid) -> bool:
            return bool(await space.world.rows(sql, uid=uid))

        await eventually(is_requeued, f"{held} is requeued")
        await steer.cancel(space.client, fluxjob)
        await space.until_gone(resource, held)
        await create(space, resource, "left", spec_of(entry, template(cpu="17")))
        await until_owner(space, f"left-{entry.kind.lower()}")


async def make_told(space: Space, resource: ApiResource, made: Obj) -> None:
    """Its operator makes what tells what it asks for."""
    job_sets = replace(JOB_SET, version=resource.version)
    await define(space, job_sets)
    labels, by = {"fluxqueue/managed": "true"}, reference(resource, made)
    meta = {"name": made["metadata"]["name"], "labels": labels, "ownerReferences": [by]}
    head = {"apiVersion": job_sets.api_version, "kind": job_sets.kind, "metadata": meta}
    spec = job_set_spec(node=(1, template())) | {"suspend": True}
    await space.client.create(job_sets, space.name, head | {"spec": spec})


async def _nothing_waits_suspended(space: Space) -> None:
    """What waited suspended was released by the uninstallation, and bears none of our marks."""
    for entry in (one for one in BUILT_IN if one.suspend):
        resource = ApiResource(entry.group, "v1", entry.resource, entry.kind, True)
        left = await space.client.get(resource, space.name, "left")
        assert is_suspended(entry, left) is False, entry.kind
        assert SUSPENDED not in (left["metadata"].get("annotations") or {})


async def until_owner(space: Space, name: str) -> None:
    async def is_there() -> bool:
        found = (await space.client.list(FLUXJOBS, space.name)).items
        return any(one["metadata"]["name"] == name for one in found)

    await eventually(is_there, f"FluxJob {name}")


async def _what_passed_by_admission_is_reported(rights: RightsWorld) -> None:
    """A Job as stored elsewhere, with more values than a request may have, without admission."""
    space = await make_space(rights.world, {"fluxqueue/managed": "false"})
    body = job("boundless", suspend=True)
    # Whole as admission stores it, or the policies refuse it.
    body["metadata"].setdefault("labels", {})[MANAGED] = "true"
    body["metadata"]["annotations"][USER] = await read_user(space.client)
    inner = body["spec"]["template"]
    pools = [f"pool-{n}" for n in range(2 * BUILT.parts)]
    named = {"matchExpressions": [{"key": "pool", "operator": "In", "values": pools}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [named]}}
    inner["spec"]["affinity"] = {"nodeAffinity": required}
    inner["spec"]["schedulingGates"] = [{"name": GATE}]
    inner.setdefault("metadata", {}).setdefault("labels", {})[MANAGED] = "true"
    await space.create(body)

    async def is_reported() -> bool:
        found = (await space.client.list(EVENTS, space.name)).items
        return any(one["reason"] == "InvalidRequest" for one in found)

    await eventually(is_reported, "the event says so")
    await remove_space(space)


async def _certificates_are_made(rights: RightsWorld) -> None:
    client = rights.world.client

    async def is_served() -> bool:
        try:
            secret = await client.get(SECRETS, chart_rights.NAMESPACE, chart_rights.SECRET)
        except NotFound:
            return False
        return "tls.crt" in (secret.get("data") or {})

    await eventually(is_served, "the certificates are in the Secret")
    found = await client.get(MUTATING_WEBHOOKS, None, chart_rights.NAME)
    assert all(webhook["clientConfig"].get("caBundle") for webhook in found["webhooks"])


async def _uninstall(rights: RightsWorld) -> None:
    """Under its own account, with everything else alive."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "fluxqueue", "uninstall", "--keep-view"),
        *("--configuration", chart_rights.NAME, "--secret", chart_rights.SECRET),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            **os.environ,
            "KUBECONFIG": str(rights.kubeconfigs["uninstall"]),
            "FLUXQUEUE_NAMESPACE": chart_rights.NAMESPACE,
        },
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    client = rights.world.client
    with pytest.raises(NotFound):
        await client.get(SECRETS, chart_rights.NAMESPACE, chart_rights.SECRET)
    pods = (await client.list(PODS)).items
    assert not any(GATE in str(pod["spec"].get("schedulingGates")) for pod in pods)

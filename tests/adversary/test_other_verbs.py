"""What a tenant may send beside creations: other verbs, subresources, and owners that are not true.

One of the tenants has every right in their own namespace, subresources included. That is more than
the role ``admin`` grants. After each attempt the pods on each node are compared with what the rows
count of it.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.checking import check
from fluxqueue.clock import SystemClock
from fluxqueue.errors import Conflict, NotFound
from fluxqueue.kube.resources import (
    CLUSTER_ROLES,
    FLUXJOBS,
    JOBS,
    NAMESPACES,
    PLACEMENT_REVIEWS,
    PODS,
    ApiResource,
)
from fluxqueue.workload.pod_resources import raw_request
from tests.adversary.attacks import POOL
from tests.adversary.logs import Logs
from tests.adversary.probing import Probing
from tests.adversary.tenants import Answer, Tenant, let
from tests.support.e2e.health import PATIENCE_S
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import WAITING, Space, make_space
from tests.support.e2e.world import World
from tests.support.waiting import eventually, until

pytestmark = [pytest.mark.slow, pytest.mark.long("tenants act on Jobs that run")]

STAR = "tenant-star"
QUOTAS = ApiResource("", "v1", "resourcequotas", "ResourceQuota", True)


@pytest_asyncio.fixture(loop_scope="session")
async def star(mallory: Tenant) -> AsyncIterator[Tenant]:
    """A tenant with every right on pods, workloads and FluxJobs of their namespace."""
    groups = ["", "batch", "apps", "policy", FLUXJOBS.group]
    rule = {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}
    client = mallory.space.client
    with suppress(Conflict):
        await client.create(CLUSTER_ROLES, None, {"metadata": {"name": STAR}, "rules": [rule]})
    await let(mallory.space.world, mallory.space.name, mallory.user, STAR)
    probe = {"metadata": {"labels": {"x": "y"}}}

    async def is_heeded() -> bool:
        path = PODS.path(mallory.space.name, "none", "status")
        answer = await mallory.send("PATCH", path, probe, "application/merge-patch+json")
        return answer.code == 404

    await eventually(is_heeded, "the tenant may patch pods/status")
    yield mallory


def _in_use(pods: list[Obj]) -> Counter[str]:
    """Millicores of live pods on each node, as the API server has them."""
    found: Counter[str] = Counter()
    for pod in pods:
        node, phase = pod["spec"].get("nodeName"), pod["status"].get("phase")
        if node and phase not in ("Succeeded", "Failed"):
            found[node] += raw_request(pod["spec"], status=pod["status"]).get("cpu", 0)
    return found


async def _assert_counted(world: World, *, told: str = "") -> None:
    """Wait until the rows count exactly what the pods on each node ask for. Invariants hold.

    ``told``: a namespace in which the checker may name pods that run without a slot.
    """

    async def counts() -> tuple[dict[str, int], dict[str, int]]:
        rows = await world.rows(
            "SELECT node, sum(allocated + foreign_used) AS used FROM node_usage"
            " WHERE resource = 'cpu' GROUP BY node"
        )
        counted = {row["node"]: int(row["used"]) for row in rows if row["used"]}
        return counted, dict(+_in_use((await world.client.list(PODS)).items))

    await until(counts, lambda two: two[0] == two[1], "the rows count what runs")
    findings = await check(world.database, world.client, SystemClock(), patience_s=PATIENCE_S)
    invariant, where = "ungated pod without a slot", f"{told}/"
    others = [
        one for one in findings if one.invariant != invariant or not one.subject.startswith(where)
    ]
    assert not others, others


async def _run(tenant: Tenant, name: str, **more: Any) -> Obj:
    """A Job of the tenant that runs. Returns it."""
    body = job(name, pool=POOL, run=FOR_EVER, **more)
    assert (await tenant.create(JOBS, body)).is_taken
    await tenant.space.until_running(name, more.get("pods", 1))
    return await tenant.space.client.get(JOBS, tenant.space.name, name)


async def _outsider(tenant: Tenant, name: str, cpu: str, **meta: Any) -> Answer:
    """Create a pod that asks for a node itself."""
    body = bare_pod(name, cpu=cpu, run=FOR_EVER, nodeSelector={"pool": POOL})
    body["metadata"] = {**body["metadata"], **meta}
    return await tenant.create(PODS, body)


async def _runs(space: Space, name: str) -> bool:
    status = (await space.client.get(PODS, space.name, name))["status"]
    return status.get("phase") == "Running" and bool(status.get("containerStatuses"))


# --- requests that change nothing ----------------------------------------------------------------


async def test_dry_runs_leave_nothing(star: Tenant) -> None:
    """Creations, changes by hand and deletions, of one object and of all."""
    runs = await _run(star, "runs", cpu="1")
    await star.space.until_state("runs", "Running")
    name, client = star.space.name, star.space.client
    before = (await star.space.fluxjob("runs") or {})["spec"]
    dry = "?dryRun=All"
    for resource, body in (
        (JOBS, job("dry", pool=POOL)),
        (PODS, bare_pod("dry")),
        (PLACEMENT_REVIEWS, {"metadata": {"name": "dry"}, "spec": {"fluxJob": "runs-job"}}),
    ):
        answer = await star.create(resource, body, dry_run=True)
        assert answer.is_taken, answer
        with pytest.raises(NotFound):
            await client.get(resource, name, "dry")
    merge = "application/merge-patch+json"
    for resource, at, patch in (
        (FLUXJOBS, "runs-job", {"spec": {"cancel": True}}),
        (FLUXJOBS, "runs-job", {"spec": {"requeue": "now"}}),
        (JOBS, "runs", {"spec": {"suspend": True}}),
        (JOBS, "runs", {"metadata": {"annotations": {"fluxqueue/hold": "true"}}}),
    ):
        answer = await star.send("PATCH", resource.path(name, at) + dry, patch, merge)
        assert answer.is_taken, answer
    for resource in (FLUXJOBS, JOBS, PODS):
        assert (await star.send("DELETE", resource.path(name) + dry)).is_taken
    assert (await star.send("DELETE", FLUXJOBS.path(name, "runs-job") + dry)).is_taken
    await star.space.until_nothing_pending()
    assert (await star.space.fluxjob("runs") or {})["spec"] == before
    assert (await client.get(JOBS, name, "runs"))["spec"] == runs["spec"]
    rows = await star.space.world.rows(
        "SELECT workload_name, state FROM fluxjobs WHERE namespace = :name", name=name
    )
    assert rows == [{"workload_name": "runs", "state": "Running"}]
    await _assert_counted(star.space.world)
    assert not star.faults, star.faults


# --- pods that are more than they were -----------------------------------------------------------


async def test_a_pod_that_is_enlarged_counts_with_what_it_has(star: Tenant, victim: Tenant) -> None:
    """By its subresource: one of a Job, a bare one, and one outside of the queue."""
    if not await _is_served(star, "pods/resize"):
        pytest.skip("this API server serves no pods/resize")
    logs = Logs(star.space.world)
    await _run(star, "grows", cpu="1")
    await star.create(PODS, bare_pod("alone", cpu="1", run=FOR_EVER, nodeSelector={"pool": POOL}))
    await star.space.until_state("alone", "Running")
    assert (await _outsider(star, "out", "1", labels={"fluxqueue/managed": "false"})).is_taken
    (pod,) = await star.space.pods("grows")
    names = (pod["metadata"]["name"], "alone", "out")
    for name in names:
        await eventually(partial(_runs, star.space, name), f"{name} runs")
        await _say_held(star, name, "1")
    for cpu, name in itertools.product(("3", "2", "4"), names):
        await _resize(star, name, cpu)
    used = _in_use((await star.space.client.list(PODS, star.space.name)).items)
    assert used.total() == 12_000
    await _assert_counted(star.space.world)
    await _grow_beyond(star, names)
    assert (await victim.create(JOBS, job("next", cpu="8", pool=POOL))).is_taken
    await victim.space.until_job("next")
    assert not logs.tracebacks(), logs.tracebacks()[:3000]
    assert not star.faults, star.faults


async def _grow_beyond(star: Tenant, names: tuple[str, ...]) -> None:
    """Ask for nearly a node for each pod. A kubelet refuses that for now, and it counts."""
    waits = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
    for name in names:
        await _resize(star, name, "15")
        await _say_held(star, name, "4", waits)
    await star.space.until_nothing_pending()
    rows = await star.space.world.rows(
        "SELECT sum(allocated + foreign_used) AS used FROM node_usage WHERE resource = 'cpu'"
    )
    assert rows[0]["used"] == 45_000


async def _resize(star: Tenant, name: str, cpu: str) -> None:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    path = PODS.path(star.space.name, name, "resize")
    kind = "application/strategic-merge-patch+json"
    answer = await star.send("PATCH", path, {"spec": {"containers": [container]}}, kind)
    assert answer.is_taken, answer


async def _say_held(star: Tenant, name: str, cpu: str, *conditions: Obj) -> None:
    """Say what the container holds, as its kubelet would. Simulated nodes leave it out."""
    stored = await star.space.client.get(PODS, star.space.name, name)
    (told,) = stored["status"]["containerStatuses"]
    held = {**told, "resources": {"requests": {"cpu": cpu}}}
    change = {"status": {"containerStatuses": [held], "conditions": list(conditions)}}
    path = PODS.path(star.space.name, name, "status")
    kind = "application/strategic-merge-patch+json"
    answer = await star.send("PATCH", path, change, kind)
    assert answer.is_taken, answer


async def _is_served(tenant: Tenant, name: str) -> bool:
    served = (await tenant.space.client.request("GET", "/api/v1"))["resources"]
    return any(one["name"] == name for one in served)


async def test_other_subresources_of_queued_pods_release_nothing(star: Tenant) -> None:
    """A binding, a container for debugging, and an eviction."""
    held = bare_pod("held", cpu="1", run=FOR_EVER)
    held["metadata"]["annotations"]["fluxqueue/hold"] = "true"
    assert (await star.create(PODS, held)).is_taken
    await star.space.until_state("held", "Held")
    name = star.space.name
    nodes = await star.space.world.rows("SELECT name FROM nodes ORDER BY name LIMIT 1")
    target = {"apiVersion": "v1", "kind": "Node", "name": nodes[0]["name"]}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "held"}}
    for path in (PODS.path(name, "held", "binding"), f"/api/v1/namespaces/{name}/bindings"):
        answer = await star.send("POST", path, {**binding, "target": target})
        assert not answer.is_taken, answer
    if await _is_served(star, "pods/ephemeralcontainers"):
        await _debug(star, "held")
    pod = await star.space.client.get(PODS, name, "held")
    assert pod["spec"]["schedulingGates"] == [{"name": "fluxqueue"}]
    assert not pod["spec"].get("nodeName")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "held"}}
    assert (await star.send("POST", PODS.path(name, "held", "eviction"), eviction)).is_taken
    await star.space.until_gone(PODS, "held")
    await _assert_counted(star.space.world)
    assert not star.faults, star.faults


async def _debug(star: Tenant, name: str) -> None:
    debug = {"spec": {"ephemeralContainers": [{"name": "x", "image": "none"}]}}
    path = PODS.path(star.space.name, name, "ephemeralcontainers")
    await star.send("PATCH", path, debug, "application/strategic-merge-patch+json")


# --- owners and endings that are not true --------------------------------------------------------


def _owners(uid: str) -> dict[str, list[Obj]]:
    true = {"apiVersion": "batch/v1", "kind": "Job", "name": "decoy", "uid": uid}
    other = {**true, "kind": "ReplicaSet", "apiVersion": "apps/v1", "uid": str(uuid.uuid4())}
    return {
        "controller": [{**true, "controller": True}],
        "no-controller": [true],
        "not-controller": [{**true, "controller": False, "blockOwnerDeletion": True}],
        "old-version": [{**true, "apiVersion": "batch/v1beta1", "controller": True}],
        "other-group": [{**true, "apiVersion": "example.com/v1", "controller": True}],
        "no-group": [{**true, "apiVersion": "v1", "controller": True}],
        "two": [{**true, "controller": False}, {**true, "name": "decoi", "controller": True}],
        "twice": [{**other, "controller": True}, true],
        "pod": [{**true, "apiVersion": "v1", "kind": "Pod", "controller": True}],
    }


@pytest.mark.parametrize("managed", [None, "false", "true"])
async def test_pods_of_a_decoy_count_however_they_spell_their_owner(
    star: Tenant, managed: str | None
) -> None:
    """The decoy is held, so none of these pods may take its slot, and each of them counts."""
    decoy = job("decoy", cpu="100m", pool=POOL, wishes={"hold": "true"})
    assert (await star.create(JOBS, decoy)).is_taken
    await star.space.until_state("decoy", "Held")
    stored = await star.space.client.get(JOBS, star.space.name, "decoy")
    labels = {"batch.kubernetes.io/job-name": "decoy", "job-name": "decoy"}
    labels |= {} if managed is None else {"fluxqueue/managed": managed}
    taken = []
    for name, owners in _owners(stored["metadata"]["uid"]).items():
        answer = await _outsider(star, name, "1", labels=labels, ownerReferences=owners)
        taken += [name] if answer.is_taken else []
    await star.space.until_nothing_pending()
    # The checker reports a pod that runs and names a job that is held, as long as it runs.
    await _assert_counted(star.space.world, told=star.space.name)
    rows = await star.space.world.rows(
        "SELECT count(*) AS n FROM allocations a JOIN fluxjobs f USING (uid)"
        " WHERE a.is_live AND f.workload_name = 'decoy'"
    )
    assert rows == [{"n": 0}]
    for name in taken:
        try:
            await star.space.client.delete(PODS, star.space.name, name, grace_s=0)
        except NotFound:
            continue
    assert not star.faults, star.faults


async def test_pods_that_lose_their_job_count_until_they_end(star: Tenant) -> None:
    """Orphaned, and taken over by another Job of the tenant with a selector of its own."""
    await _run(star, "parent", pods=3, cpu="2")
    path = JOBS.path(star.space.name, "parent")
    assert (await star.send("DELETE", path, {"propagationPolicy": "Orphan"})).is_taken
    await star.space.until_gone(JOBS, "parent")
    await _assert_counted(star.space.world)
    left = await star.space.pods("parent")
    assert len(left) == 3
    heir = job("heir", pods=3, cpu="100m", pool=POOL, run=FOR_EVER, manualSelector=True)
    heir["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/job-name": "parent"}}
    heir["spec"]["template"]["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "parent"}
    await star.create(JOBS, heir)
    await star.space.until_nothing_pending()
    await _assert_counted(star.space.world)
    for pod in left:
        with suppress(NotFound):  # the heir is suspended, so its pods go
            await star.space.client.delete(
                PODS, star.space.name, pod["metadata"]["name"], grace_s=0
            )
    await star.delete(JOBS, "heir")
    await star.space.until_gone(JOBS, "heir")
    await _assert_counted(star.space.world)
    assert not star.faults, star.faults


@pytest.mark.parametrize("ending", ["Complete", "Failed"])
async def test_a_job_that_says_that_it_has_ended_keeps_its_slots(star: Tenant, ending: str) -> None:
    """Its pods run on. Their capacity is given to nothing else before they end."""
    runs = await _run(star, "liar", pods=2, cpu="4")
    now = runs["status"]["startTime"]
    criterion = "SuccessCriteriaMet" if ending == "Complete" else "FailureTarget"
    conditions = [
        {"type": kind, "status": "True", "reason": "X", "lastTransitionTime": now}
        for kind in (criterion, ending)
    ]
    status = {"conditions": conditions, "active": 0, "ready": 0, "terminating": 0, "failed": 2}
    if ending == "Complete":
        status |= {"completionTime": now, "succeeded": 2, "failed": 0}
    status["uncountedTerminatedPods"] = {}
    answer = await star.patch(JOBS, "liar", {"status": status}, "status")
    await star.space.until_nothing_pending()
    await _assert_counted(star.space.world)
    pods = await star.space.pods("liar")
    if answer.is_taken and pods:
        assert (await star.space.fluxjob("liar") or {})["status"]["state"] != "Pending"
    await star.delete(JOBS, "liar")
    await star.space.until_gone(JOBS, "liar")
    assert not star.faults, star.faults


# --- namespaces ----------------------------------------------------------------------------------


async def test_a_full_namespace_goes_and_comes_again(star: Tenant, victim: Tenant) -> None:
    """With what runs, waits, is held and depends in it. Its name is used again at once."""
    world = star.space.world
    space, client = await make_space(world), star.space.client
    for is_again in (False, True):
        if is_again:
            await client.create(NAMESPACES, None, {"metadata": {"name": space.name}})
        await space.create(job("runs", pods=2, cpu="2", pool=POOL, run=FOR_EVER))
        await space.until_state("runs", "Running")
        await space.create(job("waits", cpu="16", pods=9, run=FOR_EVER))
        await space.create(job("held", cpu="1", pool=POOL, wishes={"hold": "true"}))
        await space.create(job("after", cpu="1", pool=POOL, wishes={"depends-on": "afterok:runs"}))
        await space.create(bare_pod("alone", cpu="99"))
        for name in ("waits", "after"):
            await space.until_state(name, *WAITING, "Unsatisfiable")
        await client.delete(NAMESPACES, None, space.name)

        await eventually(partial(_is_gone, space), f"{space.name} is gone", timeout_s=150)
        await star.space.until_nothing_pending()
        await _assert_counted(world)
    rows = await world.rows(
        "SELECT count(*) AS n FROM fluxjobs WHERE namespace = :name AND ended_at IS NULL",
        name=space.name,
    )
    assert rows == [{"n": 0}]
    assert (await victim.create(JOBS, job("on", cpu="1"))).is_taken
    await victim.space.until_job("on")


async def _is_gone(space: Space) -> bool:
    try:
        await space.client.get(NAMESPACES, None, space.name)
    except NotFound:
        return True
    return False


async def test_a_namespace_that_lets_no_fluxjob_be_made_delays_no_other(
    star: Tenant, victim: Tenant
) -> None:
    """A quota of zero FluxJobs and one pod. Once it is gone, all that waited is queued."""
    if not await _is_served(star, "resourcequotas"):
        pytest.skip("this API server serves no quotas")
    hard = {f"count/{FLUXJOBS.plural}.{FLUXJOBS.group}": "0", "pods": "1"}
    client, name = star.space.client, star.space.name
    await client.create(QUOTAS, name, {"metadata": {"name": "none"}, "spec": {"hard": hard}})

    async def is_heeded() -> bool:
        found = await client.get(QUOTAS, name, "none")
        return bool((found.get("status") or {}).get("hard"))

    await eventually(is_heeded, "the quota is in force")
    names = [f"barred-{n}" for n in range(30)]
    async with Probing(victim, "barred") as probing:
        await star.create_all(JOBS, [job(one, cpu="100m", pool=POOL) for one in names])
        await probing.until(4)
    probing.assert_on_time()
    await client.delete(QUOTAS, name, "none")
    await star.space.until_all_complete(names, timeout_s=150)
    assert not star.faults, star.faults


async def test_all_of_a_namespace_deleted_at_once(star: Tenant, victim: Tenant) -> None:
    """FluxJobs, pods and Jobs by one request each, while they start."""
    names = [f"many-{n}" for n in range(24)]
    await star.create_all(JOBS, [job(one, cpu="1", pool=POOL, run=FOR_EVER) for one in names])
    for resource in (FLUXJOBS, PODS, JOBS):
        path = resource.path(star.space.name)
        answer = await star.send("DELETE", path, {"propagationPolicy": "Background"})
        assert answer.is_taken, answer
    for one in names:
        await star.space.until_gone(JOBS, one)
    await _assert_counted(star.space.world)
    assert (await victim.create(JOBS, job("on", cpu="1"))).is_taken
    await victim.space.until_job("on")
    assert not star.faults, star.faults


# --- under our name ------------------------------------------------------------------------------


async def test_the_name_of_a_field_manager_gives_no_right(star: Tenant) -> None:
    """Server-side apply and plain patches as ``fluxqueue``, forced."""
    held = job("held", cpu="1", pool=POOL, wishes={"hold": "true"})
    assert (await star.create(JOBS, held)).is_taken
    fluxjob = await star.space.until_state("held", "Held")
    stored = await star.space.client.get(JOBS, star.space.name, "held")
    template = {
        "metadata": {"labels": {"fluxqueue/jobid": "1"}},
        "spec": {**held["spec"]["template"]["spec"], "schedulingGates": []},
    }
    forced = "?fieldManager=fluxqueue&force=true"
    applied = "application/apply-patch+yaml"
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "held"}}
    for spec in ({"suspend": False}, {"suspend": False, "template": template}):
        path = JOBS.path(star.space.name, "held")
        await star.send("PATCH", path + forced, {**head, "spec": spec}, applied)
        merge = "application/merge-patch+json"
        await star.send("PATCH", path + "?fieldManager=fluxqueue", {"spec": spec}, merge)
    after = await star.space.client.get(JOBS, star.space.name, "held")
    assert after["spec"]["suspend"] is True
    assert after["spec"]["template"] == stored["spec"]["template"]
    head = {"apiVersion": FLUXJOBS.api_version, "kind": "FluxJob", "metadata": {"name": "held-job"}}
    path = FLUXJOBS.path(star.space.name, "held-job")
    for change in (
        {"spec": {"user": "vera", "size": 99}},
        {"spec": {"steeredBy": {"hold": "vera"}}},
        {"spec": {"workload": {**fluxjob["spec"]["workload"], "uid": str(uuid.uuid4())}}},
    ):
        await star.send("PATCH", path + forced, {**head, **change}, applied)
    state = {"status": {"state": "Completed", "nodes": "node-1"}}
    await star.send("PATCH", path + "/status" + forced, {**head, **state}, applied)
    await star.space.until_nothing_pending()
    told = await star.space.fluxjob("held")
    assert told is not None
    assert {**told["spec"], "steeredBy": {}} == {**fluxjob["spec"], "steeredBy": {}}
    assert not told["spec"].get("steeredBy")
    rows = await star.space.world.rows(
        "SELECT state, user_name FROM fluxjobs WHERE uid = :uid",
        uid=fluxjob["spec"]["workload"]["uid"],
    )
    assert rows == [{"state": "Held", "user_name": star.user}]
    assert not star.faults, star.faults

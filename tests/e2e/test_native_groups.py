"""Kubernetes' own groups: pods that name a PodGroup of ``scheduling.k8s.io``.

On the embedded cluster the kind is a definition of the same structure, and only we read it. On
a real one its feature gates are open, and kube-scheduler binds no such pod but with its group.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import DEPLOYMENTS, FLUXJOBS, JOBS, NODES, PODS, PRIORITY_CLASSES
from fluxqueue.workload.observed_pod import is_grouped
from fluxqueue.workload.pods import gate_index
from tests.support.control_plane import ControlPlane, Options, features_here, missing_reason
from tests.support.e2e.custom_kinds import RAY_CLUSTER, define
from tests.support.e2e.group_members import (
    SIZES,
    assert_each_ran_once_in_order,
    create_mixed,
    phases,
    until_reason,
)
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.lives import KINDS, POD_GROUP, served_group
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.owned_pods import ASKS, pod_of, reference, template
from tests.support.e2e.random_lives import SHORT_STEPS, live
from tests.support.e2e.replica_sets import a_set
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.e2e.starting import HELD_OPEN, close, let_in, released_pods, sent_to
from tests.support.e2e.world import World, embedded_world, real_world
from tests.support.kubernetes_minors import ALWAYS
from tests.support.waiting import eventually, until

ZONE = "topology.kubernetes.io/zone"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long("a world of its own, for a feature of Kubernetes that few clusters have"),
    pytest.mark.xdist_group("world of groups"),
]


@pytest_asyncio.fixture(
    loop_scope="session",
    scope="module",
    params=["embedded", pytest.param("real", marks=pytest.mark.real_cluster)],
)
async def gang_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A world of this module's own, on a cluster that has such groups."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-gang-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if request.param == "embedded":
            async with embedded_world(folder) as world:
                yield world
            return
        if reason := missing_reason():
            pytest.skip(reason)
        feature = features_here().groups
        if feature is None:
            pytest.skip("this minor has no groups of its own")
        options = Options(feature=feature)
        async with ControlPlane(options=options) as plane, real_world(folder, plane) as world:
            yield world


@pytest_asyncio.fixture(loop_scope="session")
async def gang_space(gang_world: World) -> AsyncIterator[Space]:
    """A namespace in it."""
    made = await make_space(gang_world)
    if gang_world.kind == "embedded":
        await define(made, POD_GROUP)
    yield made
    await remove_space(made)
    await assert_invariants(gang_world)


async def pod_group(space: Space, name: str, count: int, **spec: Any) -> Obj:
    kind = await served_group(space.client)
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
    policy = {"schedulingPolicy": {"gang": {"minCount": count}}}
    return await space.client.create(kind, space.name, body | {"spec": policy | spec})


def member(name: str, group: str, **more: Any) -> Obj:
    pod = bare_pod(name, nodeSelector={"pool": "main"}, **more)
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}
    return pod


async def test_a_group_of_kubernetes_gathers_and_starts_as_one(gang_space: Space) -> None:
    """Its object may come after its first pod. Pods beyond its least size grow it."""
    space = gang_space
    await space.create(member("a", "own", cpu="2", run=FOR_EVER))
    await until_reason(space, "own", "Gathering", "waits for PodGroup own")
    await pod_group(space, "own", 3)
    await until_reason(space, "own", "Gathering", "1 of 3 pods; missing 2")
    await space.create(member("b", "own", cpu="8", run=FOR_EVER))
    await until_reason(space, "own", "Gathering", "2 of 3 pods; missing 1")
    assert set((await phases(space)).values()) == {"Pending"}
    await space.create(member("c", "own", cpu="8", run=FOR_EVER))
    await all_run(space, 3)
    await space.create(member("d", "own", cpu="1", run=FOR_EVER))
    await all_run(space, 4)
    (fluxjob,) = (await space.client.list(FLUXJOBS, space.name)).items
    assert fluxjob["spec"]["size"] == 3
    for name in "abcd":
        await space.delete(name, PODS)
    await space.until_gone(FLUXJOBS, "own-group")


async def all_run(space: Space, count: int) -> None:
    await until(
        lambda: phases(space),
        lambda found: list(found.values()) == ["Running"] * count,
        f"{count} pods run",
    )


async def test_its_topology_and_priority_count(gang_space: Space) -> None:
    """Three pods of which a zone holds two never run in one. Its class is theirs."""
    space = gang_space
    value = {"metadata": {"name": f"urgent-{space.name}"}, "value": 77}
    await space.client.create(PRIORITY_CLASSES, None, value)
    topology = {"schedulingConstraints": {"topology": [{"key": ZONE}]}}
    said = topology | {"priorityClassName": value["metadata"]["name"]}
    # The admission of a cluster that has such groups resolves the class.
    said |= {"priority": 77} if space.world.kind == "embedded" else {}
    await pod_group(space, "near", 3, **said)
    for name in ("a", "b", "c"):
        await space.create(member(name, "near", cpu="9", run=FOR_EVER))
    found = await until_reason(space, "near", "Unsatisfiable", "")
    assert found["status"]["priority"] == 77
    await space.delete("c", PODS)
    await space.delete("a", PODS)
    await space.delete("b", PODS)
    await space.until_gone(FLUXJOBS, "near-group")
    await space.client.delete(PRIORITY_CLASSES, None, value["metadata"]["name"])


async def test_groups_of_kubernetes_do_not_clog(gang_space: Space) -> None:
    """Six of them on room for two, their pods mixed: each is released whole, and runs whole."""
    space = gang_space
    pods = []
    for group, size in enumerate(SIZES):
        await pod_group(space, f"g{group}", size)
        pods += [(n, member(f"g{group}-{n}", f"g{group}", cpu="5")) for n in range(size)]
    await create_mixed(space, pods)
    for group in range(len(SIZES)):
        await space.until_state(f"g{group}", "Completed")
    await assert_each_ran_once_in_order(space)


async def test_random_lives_with_groups_of_kubernetes(gang_space: Space) -> None:
    """They live beside all other kinds, through the same accidents."""
    await live(gang_space, 7, (*KINDS, *["NativeGroup"] * 4), steps=SHORT_STEPS)


async def test_a_job_of_such_a_group_waits_for_its_others(gang_space: Space) -> None:
    """Its template names the group: it is not suspended, its pods are counted."""
    space = gang_space
    await pod_group(space, "mixed", 3)
    part = job("part", pods=2, pool="main")
    part["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "mixed"}
    await space.create(part)
    await until_reason(space, "mixed", "Gathering", "2 of 3 pods; missing 1")
    await space.create(member("solo", "mixed"))
    await space.until_job("part")
    await space.until_state("mixed", "Completed")


@pytest.mark.real_cluster
async def test_with_closed_gates_nobody_is_of_such_a_group() -> None:
    """The API server drops the field: the pod is one like any other, and waits for no other."""
    if reason := missing_reason():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="fluxqueue-gang-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with (
            ControlPlane(options=Options(feature=ALWAYS)) as plane,
            real_world(folder, plane) as world,
        ):
            space = await make_space(world)
            made = await space.create(member("alone", "own"))
            assert "schedulingGroup" not in made["spec"]
            await space.until_state("alone", "Completed")
            await remove_space(space)


async def test_a_part_of_a_group_never_holds_nodes(gang_space: Space) -> None:
    """Five pods, at least three of them, and room for three.

    On Kubernetes 1.37.2, three of them were released before and held their nodes for ever: no pod
    ran, and none was Unschedulable. Now none is released before all five fit.
    """
    space = gang_space
    await space.create(job("first", pods=3, cpu="16", pool="main", run=FOR_EVER))
    await space.until_state("first", "Running")
    await pod_group(space, "five", 3)
    for name in "abcde":
        await space.create(member(name, "five", cpu="5", run=FOR_EVER))
    await space.until_state("five", "Pending")
    await space.create(job("small", cpu="1", pool="main"))
    await space.until_job("small")
    assert all(gate_index(pod["spec"]) is not None for pod in await own_pods(space, "abcde"))
    await space.delete("first")
    await until_run(space, "abcde")


async def own_pods(space: Space, names: str) -> list[Obj]:
    return [await space.client.get(PODS, space.name, name) for name in names]


async def until_run(space: Space, names: str) -> None:
    async def look() -> bool:
        pods = await own_pods(space, names)
        return all(pod["status"].get("phase") == "Running" for pod in pods)

    await eventually(look, f"{names} run", timeout_s=60)


async def test_a_running_group_grows_by_all_that_wait(gang_space: Space) -> None:
    """Two more pods, and room for one: neither is released, since it would wait for the other."""
    space = gang_space
    await pod_group(space, "grown", 2)
    for name in "ab":
        await space.create(member(name, "grown", cpu="16", run=FOR_EVER))
    await all_run(space, 2)
    await space.create(job("other", cpu="16", pool="main", run=FOR_EVER))
    await space.until_state("other", "Running")
    for name in "cd":
        await space.create(member(name, "grown", cpu="16", run=FOR_EVER))
    await until_reason(space, "grown", "Running", "2 of its pods wait")
    await space.create(job("small", cpu="1", pool="main"))
    await space.until_job("small")
    assert all(gate_index(pod["spec"]) is not None for pod in await own_pods(space, "cd"))
    await space.delete("other")
    await until_run(space, "abcd")


async def test_independent_pods_start_one_by_one(gang_space: Space) -> None:
    """A sweep of more pods than there is room for.

    On Kubernetes 1.37.2 with ``WorkloadWithJob``, its pods were in one PodGroup, and none of them
    was bound while the last one was gated. A policy takes them out of it.
    """
    space = gang_space
    sweep = job("sweep", pods=6, cpu="9", pool="main", wishes={"gang": "false"})
    await space.create(sweep)
    await space.until_job("sweep")


async def test_parts_of_a_composite_group_start_together(gang_space: Space) -> None:
    """Alone, a part would hold its nodes until the other parts start. So it says what to do.

    On Kubernetes 1.37.2, kube-scheduler bound no pod of a part while one of another was gated.
    """
    space = gang_space
    kinds = await find_served(space.client, {("scheduling.k8s.io", "CompositePodGroup")})
    if not kinds:
        pytest.skip("this minor has no CompositePodGroups")
    policy = {"gang": {"minGroupCount": 2}}
    of = {"workloadName": "tree", "templateName": "tree"}
    body = {"metadata": {"name": "tree"}, "spec": {"schedulingPolicy": policy, "workloadRef": of}}
    await space.client.create(kinds[0], space.name, body)
    for part in ("left", "right"):
        ref = {"workloadRef": {"workloadName": "tree", "templateName": part}}
        await pod_group(space, part, 1, parentCompositePodGroupName="tree", **ref)
    await space.create(member("alone", "left", cpu="1"))
    await until_reason(space, "left", "Gathering", "is a part of CompositePodGroup tree")
    await space.delete("alone", PODS)
    for name, part in (("a", "left"), ("b", "right"), ("c", "right")):
        pod = member(name, part, cpu="9", run=FOR_EVER)
        pod["metadata"]["labels"] = {"fluxqueue/pod-group": "both", "fluxqueue/group-size": "3"}
        await space.create(pod)
    await until_run(space, "abc")


async def test_a_deployment_in_a_group_starts_as_a_whole(gang_space: Space) -> None:
    """Its replicas are more than the group's least size, as are the workers of a RayCluster."""
    space = gang_space
    await pod_group(space, "web", 2)
    made = a_set(DEPLOYMENTS, "web", replicas=3, cpu="9")
    made["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "web"}
    await space.client.create(DEPLOYMENTS, space.name, made)

    async def run() -> bool:
        pods = (await space.client.list(PODS, space.name)).items
        return [pod["status"].get("phase") for pod in pods] == ["Running"] * 3

    await eventually(run, "three pods run", timeout_s=60)
    await space.client.delete(DEPLOYMENTS, space.name, "web", propagation="Background")


async def test_a_ray_cluster_starts_whole_although_its_group_asks_for_less(
    gang_space: Space,
) -> None:
    """KubeRay gives the group of a cluster the least workers as ``minCount``, here three of five.

    On Kubernetes 1.37.2, three released pods held their nodes while the others were gated.
    """
    space = gang_space
    await space.create(job("first", pods=4, cpu="13", pool="main", run=FOR_EVER))
    await space.until_state("first", "Running")
    await pod_group(space, "ray", 3)
    pod = template(cpu="5", run=FOR_EVER)
    pod["spec"]["schedulingGroup"] = {"podGroupName": "ray"}
    pod["metadata"]["labels"] = dict(ASKS)
    spec = {
        "headGroupSpec": {"template": pod},
        "workerGroupSpecs": [{"replicas": 4, "minReplicas": 2, "template": pod}],
    }
    await define(space, RAY_CLUSTER)
    meta = {"name": "ray"}
    body = {"apiVersion": RAY_CLUSTER.api_version, "kind": RAY_CLUSTER.kind, "metadata": meta}
    made = await space.client.create(RAY_CLUSTER, space.name, body | {"spec": spec})
    for name in "abcde":
        await space.create(pod_of(reference(RAY_CLUSTER, made), name, pod))
    await space.until_state("ray", "Pending")
    assert all(gate_index(one["spec"]) is not None for one in await own_pods(space, "abcde"))
    await space.delete("first")
    await until_run(space, "abcde")


GANGS, SIZE = 30, 3


@pytest.mark.real_cluster
async def test_gangs_that_foreign_pods_race_run_whole(gang_space: Space) -> None:
    """Pods that fluxqueue does not manage take nodes between its decision and the binding.

    No gang stays bound in part, and each completes.
    """
    space = gang_space
    if space.world.kind == "embedded":
        pytest.skip("its scheduler knows no groups")
    others = await make_space(space.world, {"fluxqueue/managed": "false"})
    partly: set[str] = set()
    try:
        for number in range(GANGS):
            await pod_group(space, f"g{number}", SIZE)
            for index in range(SIZE):
                name = f"g{number}-{index}"
                await space.create(member(name, f"g{number}", cpu="7", run={"duration": "200ms"}))
            foreign = bare_pod(f"f{number}", cpu="6", run={"duration": "500ms"})
            foreign["spec"]["nodeSelector"] = {"pool": "main"}
            await others.create(foreign)
            partly |= await bound_in_part(space)
        for number in range(GANGS):
            await space.until_state(f"g{number}", "Completed")
        assert not partly
    finally:
        await remove_space(others)


async def bound_in_part(space: Space) -> set[str]:
    """The gangs with a pod on a node and a pod without, twice in a row: binding takes a moment."""

    async def look() -> set[str]:
        found: dict[str, set[bool]] = {}
        for pod in (await space.client.list(PODS, space.name)).items:
            is_bound = bool(pod["spec"].get("nodeName"))
            found.setdefault(pod["spec"]["schedulingGroup"]["podGroupName"], set()).add(is_bound)
        return {name for name, states in found.items() if len(states) == 2}

    first = await look()
    return first and first & await look() & await look()


GANG = {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}}


async def test_a_job_that_asks_for_its_group_stays_in_it(gang_space: Space) -> None:
    """``spec.scheduling``: one zone for three pods, of which a zone holds two at most, or four."""
    space = gang_space
    topology = {"schedulingConstraints": {"topology": [{"key": ZONE}]}}
    near = job("near", pods=3, cpu="8", pool="main", run=FOR_EVER)
    near["spec"]["scheduling"] = GANG | topology
    made = await space.create(near)
    if "scheduling" not in made["spec"]:
        pytest.skip("this minor has no spec.scheduling of Jobs")
    await space.until_state("near", "Running")
    pods = await space.pods("near")
    assert len({pod["spec"]["nodeName"] in {"node-1", "node-2"} for pod in pods}) == 1
    if space.world.kind == "real":
        assert all(map(is_grouped, pods))
    far = job("far", pods=3, cpu="9", pool="main")
    far["spec"]["scheduling"] = GANG | topology
    await space.create(far)
    await space.until_state("far", "Unsatisfiable")
    wrong = job("wrong", pods=2, wishes={"within": "rack"})
    wrong["spec"]["scheduling"] = topology
    with pytest.raises(ApiError, match="contradicts"):
        await space.create(wrong)


async def test_a_job_that_changes_its_scheduling_while_it_waits(gang_space: Space) -> None:
    """Kubernetes lets ``minCount`` change, and nothing else. All pods start together anyway."""
    space = gang_space
    body = job("changed", pods=3, cpu="9", pool="main", wishes={"hold": "true"}, run=FOR_EVER)
    body["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    made = await space.create(body)
    if "scheduling" not in made["spec"] or space.world.kind == "embedded":
        pytest.skip("this cluster has no spec.scheduling of Jobs")
    await space.until_state("changed", "Held")
    at = (JOBS, space.name, "changed")
    fewer = {"spec": {"scheduling": {"schedulingPolicy": {"gang": {"minCount": 2}}}}}
    await space.client.patch(*at, fewer, kind=PatchKind.MERGE)
    topology = {"schedulingConstraints": {"topology": [{"key": ZONE}]}}
    with pytest.raises(ApiError, match="immutable"):
        await space.client.patch(*at, {"spec": {"scheduling": topology}}, kind=PatchKind.MERGE)
    free = {"metadata": {"annotations": {"fluxqueue/hold": None}}}
    await space.client.patch(*at, free, kind=PatchKind.MERGE)
    assert len(await space.until_running("changed", 3)) == 3


@pytest.mark.real_cluster
async def test_of_a_refused_group_only_the_refused_pod_goes_elsewhere(gang_space: Space) -> None:
    """A node is closed under one of three released pods of a gang.

    On Kubernetes 1.37.2, all three pods were Unschedulable, and so all three nodes were avoided.
    """
    space = gang_space
    if space.world.kind == "embedded":
        pytest.skip("its scheduler knows no groups")
    body = job("late", pods=3, cpu="10", pool="main", run=FOR_EVER, pod=HELD_OPEN)
    body["spec"]["scheduling"] = GANG
    made = await space.create(body)
    if "scheduling" not in made["spec"]:
        pytest.skip("this minor has no spec.scheduling of Jobs")
    pods = await released_pods(space, "late", 3)
    before = {pod["metadata"]["name"]: sent_to(pod) for pod in pods}
    closed = sorted(str(node) for node in before.values())[1]
    try:
        await close(space, closed, "taint")
        await let_in(space, "late", 3)
        after = {one["metadata"]["name"]: sent_to(one) for one in await space.pods("late")}
        assert closed not in after.values()
        kept = {name: node for name, node in before.items() if node != closed}
        assert kept.items() <= after.items(), "pods on other nodes are left alone"
    finally:
        open_again = {"spec": {"unschedulable": None, "taints": None}}
        await space.client.patch(NODES, None, closed, open_again, kind=PatchKind.MERGE)

"""What binds pods beside their size is known when they are placed: no pod has to be moved."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.kube.resources import CLAIMS, PODS, STORAGE_CLASSES, VOLUMES
from fluxqueue.workload.labels import HOSTNAME
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.refusals import was_refused
from tests.support.e2e.space import WAITING, Space
from tests.support.waiting import eventually, until

ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EAST = {"node-1", "node-2"}
WEST = {"node-3", "node-4"}


def marked(name: str, pods: int, **pod: Any) -> Obj:
    """A Job with small pods, which carry a label of their own."""
    body = job(name, pods=pods, pool="main", run=FOR_EVER, pod=pod)
    body["spec"]["template"]["metadata"]["labels"] = {"app": name}
    return body


def to_own(name: str, key: str) -> list[Obj]:
    """A required term about the pods of the Job itself."""
    return [{"labelSelector": {"matchLabels": {"app": name}}, "topologyKey": key}]


def spread(name: str, key: str) -> Obj:
    """As many of its pods in each place, or one more."""
    (term,) = to_own(name, key)
    return {**term, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}


async def places(space: Space, name: str, count: int) -> list[str]:
    """The nodes of its pods, once all run. None of them was sent elsewhere meanwhile."""
    pods = await space.until_running(name, count)
    fluxjob = await space.fluxjob(name)
    assert fluxjob is not None
    assert not await was_refused(space, name)
    assert "ConstraintsIgnored" not in {
        one["type"] for one in fluxjob["status"]["conditions"] if one["status"] == "True"
    }
    return sorted(pod["spec"]["nodeName"] for pod in pods)


async def test_pods_that_bind_each_other_get_their_nodes_at_once(space: Space) -> None:
    """By nodes and by zones. Without these rules all of them would share one node."""
    apart = {"podAntiAffinity": {REQUIRED: to_own("apart", HOSTNAME)}}
    await space.create(marked("apart", 3, affinity=apart))
    assert len(set(await places(space, "apart", 3))) == 3
    both = {
        "podAffinity": {REQUIRED: to_own("both", ZONE)},
        "podAntiAffinity": {REQUIRED: to_own("both", HOSTNAME)},
    }
    await space.create(marked("both", 2, affinity=both))
    assert set(await places(space, "both", 2)) in (EAST, WEST)
    rules = [spread("even", ZONE)]
    await space.create(marked("even", 5, topologySpreadConstraints=rules))
    found = await places(space, "even", 5)
    assert sorted(sum(node in zone for node in found) for zone in (EAST, WEST)) == [2, 3]
    port = [{"name": "p", "containerPort": 8080, "hostPort": 18080}]
    body = marked("ports", 2)
    body["spec"]["template"]["spec"]["containers"][0]["ports"] = port
    await space.create(body)
    assert len(set(await places(space, "ports", 2))) == 2
    await assert_invariants(space.world)
    # There are four nodes: no scheduler can place five.
    apart = {"podAntiAffinity": {REQUIRED: to_own("five", HOSTNAME)}}
    await space.create(marked("five", 5, affinity=apart))
    never = await space.until_state("five", "Unsatisfiable")
    assert "5 nodes" in never["status"]["reason"]


async def test_a_volume_keeps_its_pods_where_it_is(space: Space) -> None:
    """Its place is read from the volume, through the claim that is bound to it."""
    volume = {
        "metadata": {"name": f"disk-{space.name}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "local": {"path": "/disk"},
            "claimRef": {"namespace": space.name, "name": "data"},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": HOSTNAME, "operator": "In", "values": ["node-3"]}
                            ]
                        }
                    ]
                }
            },
        },
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "volumeName": volume["metadata"]["name"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    await space.client.create(VOLUMES, None, volume)
    try:
        await space.client.create(CLAIMS, space.name, claim)
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await eventually(lambda: _knows_the_claim(space, volumes), "the claim is known")
        # Node-1 would be the first choice.
        await space.create(marked("reader", 2, volumes=volumes))
        assert await places(space, "reader", 2) == ["node-3", "node-3"]
        await assert_invariants(space.world)
    finally:
        await space.client.delete(VOLUMES, None, volume["metadata"]["name"])


async def test_a_host_port_has_one_pod_on_each_node(space: Space, unmanaged: Space) -> None:
    """Of whatever job it is, or of none. A late job waits for a node with this port."""
    ports = [{"containerPort": 8080, "hostPort": 18_085}]
    theirs = bare_pod("web", run=FOR_EVER, nodeSelector={HOSTNAME: "node-1"})
    theirs["spec"]["containers"][0]["ports"] = ports
    await unmanaged.create(theirs)
    await eventually(lambda: _uses_its_port(space), "the port of the other pod is known")
    for name in ("one", "two", "three", "four"):
        body = marked(name, 1)
        body["spec"]["template"]["spec"]["containers"][0]["ports"] = ports
        await space.create(body)
    taken = [await places(space, name, 1) for name in ("one", "two", "three")]
    assert sorted(node for (node,) in taken) == ["node-2", "node-3", "node-4"]

    # The reason names the port, or the jobs on these nodes.
    waiting = await space.until_state("four", *WAITING)
    assert waiting["status"]["reason"]
    assert not await space.pods("four")
    await unmanaged.delete("web", PODS)
    assert await places(space, "four", 1) == ["node-1"]
    await assert_invariants(space.world)


async def _uses_its_port(space: Space) -> bool:
    rows = await space.world.rows(
        "SELECT FROM foreign_usage WHERE resources ? 'host-port:TCP:18085'"
    )
    return bool(rows)


async def test_a_claim_for_one_pod_keeps_the_next_job_waiting(space: Space) -> None:
    """It is queued with that reason, and starts when the other pod has ended. A gang never can."""
    spec = {"accessModes": ["ReadWriteOncePod"], "storageClassName": ""}
    volume = {
        "metadata": {"name": f"one-{space.name}"},
        "spec": {
            **spec,
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "csi.example.org", "volumeHandle": space.name},
            "claimRef": {"namespace": space.name, "name": "data"},
        },
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            **spec,
            "volumeName": volume["metadata"]["name"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    await space.client.create(VOLUMES, None, volume)
    try:
        await space.client.create(CLAIMS, space.name, claim)
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await eventually(
            lambda: _knows_the_claim(space, volumes, "one-pod-claim"), "the claim is known"
        )
        await space.create_all(marked(name, 1, volumes=volumes) for name in ("one", "two"))
        await places(space, "one", 1)

        async def waits() -> bool:
            status = (await space.fluxjob("two") or {}).get("status") or {}
            words = {one["reason"] for one in status.get("conditions") or ()}
            return "VolumeClaimInUse" in words and "volume claim data" in status["reason"]

        await eventually(waits, "the second waits for the claim")
        await space.finish("one")
        await places(space, "two", 1)

        # Two pods at once are impossible, and the reason says so. One after the other they run.
        await space.create(marked("gang", 2, volumes=volumes))
        never = (await space.until_state("gang", "Unsatisfiable"))["status"]["reason"]
        assert "volume claim data" in never
        assert "ReadWriteOncePod" in never
        assert "Fix: " in never
        apart = {"gang": "false"}
        body = job("apart", pods=2, pool="main", wishes=apart, pod={"volumes": volumes})
        await space.create(body)
        await space.until_state("apart", *WAITING)
        await space.finish("two")
        await space.until_job("apart")
        assert not await was_refused(space, "apart")
        await assert_invariants(space.world)
    finally:
        await space.client.delete(VOLUMES, None, volume["metadata"]["name"])


async def _knows_the_claim(space: Space, volumes: list[Obj], words: str = "node-3") -> bool:
    """Whether the request of a Job has what it gets from its volume."""
    body = job("try", pool="main", wishes={"hold": "true"}, pod={"volumes": volumes})
    await space.create(body)
    await space.until_state("try", "Held")
    fluxjob = await space.fluxjob("try")
    assert fluxjob is not None
    await space.delete("try")

    await until(lambda: space.fluxjob("try"), lambda found: found is None, "the trial is gone")
    return words in str(fluxjob["spec"]["jobspec"])


def local_volume(name: str, node: str, size: str, storage_class: str) -> Obj:
    """A disk of a node."""
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
    return {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


@pytest.mark.long("the real controllers bind a claim")
@pytest.mark.parametrize(
    "cluster_kind", [pytest.param("real", marks=pytest.mark.real_cluster)], indirect=True
)
async def test_a_claim_that_waits_for_its_pod_gets_a_disk_that_is_large_enough(
    space: Space,
) -> None:
    """The disk decides the node, before the claim is bound. The first pod binds it there."""
    local = {
        "metadata": {"name": f"local-{space.name}"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    disks = [
        local_volume(f"{space.name}-{node}", node, size, local["metadata"]["name"])
        for node, size in (("node-1", "1Gi"), ("node-3", "8Gi"), ("single-1", "8Gi"))
    ]
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": local["metadata"]["name"],
            "resources": {"requests": {"storage": "5Gi"}},
        },
    }
    await space.client.create(STORAGE_CLASSES, None, local)
    for disk in disks:
        await space.client.create(VOLUMES, None, disk)
    try:
        await space.client.create(CLAIMS, space.name, claim)
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await eventually(lambda: _knows_the_claim(space, volumes), "the claim is known")
        await space.create(marked("first", 1, volumes=volumes))
        assert await places(space, "first", 1) == ["node-3"]
        await space.create(marked("second", 2, volumes=volumes))
        assert await places(space, "second", 2) == ["node-3", "node-3"]
        await assert_invariants(space.world)
    finally:
        for disk in disks:
            await space.client.delete(VOLUMES, None, disk["metadata"]["name"])
        await space.client.delete(STORAGE_CLASSES, None, local["metadata"]["name"])

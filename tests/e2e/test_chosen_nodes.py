"""What the matcher cannot judge is left to kube-scheduler with a choice of nodes.

The pods want to be beside a pod of others. Only one node has it, and it is none that the matcher
would choose first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.kube.resources import PODS
from fluxqueue.workload.labels import HOSTNAME
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.refusals import was_refused
from tests.support.e2e.space import Space
from tests.support.e2e.world import late_node
from tests.support.waiting import eventually, until

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LATE = range(101, 131)


async def put_db(unmanaged: Space, node: str) -> None:
    """Run a pod of others on a node."""
    body = bare_pod("db", cpu="100m", run=FOR_EVER, nodeSelector={HOSTNAME: node})
    body["metadata"]["labels"] = {"app": f"db-{unmanaged.name}"}
    body["spec"]["tolerations"] = [{"operator": "Exists"}]
    await unmanaged.create(body)

    async def runs() -> bool:
        pod = await unmanaged.client.get(PODS, unmanaged.name, "db")
        return bool(pod["status"].get("phase") == "Running")

    await eventually(runs, "the pod of others runs")


def beside_db(name: str, unmanaged: Space, *, pool: str = "main", **more: Any) -> Obj:
    """A Job with pods beside that pod."""
    term = {
        "labelSelector": {"matchLabels": {"app": f"db-{unmanaged.name}"}},
        "topologyKey": HOSTNAME,
        "namespaces": [unmanaged.name],
    }
    affinity = {"podAffinity": {REQUIRED: [term]}, **more.pop("affinity", {})}
    return job(name, pool=pool, run=FOR_EVER, pod={"affinity": affinity}, **more)


async def until_booked(space: Space, name: str, node: str, count: int) -> None:
    """Wait until rows and status say where the pods are, and that nothing is beside their slots."""
    sql = (
        "SELECT s.node, s.others IS NULL AS is_settled, p.unmanaged FROM allocation_slots s"
        " JOIN pods p ON p.uid = s.pod_uid JOIN fluxjobs f ON f.uid = p.workload_uid"
        " WHERE f.namespace = :space AND f.workload_name = :name"
    )

    async def booked() -> list[Any]:
        rows = await space.world.rows(sql, space=space.name, name=name)
        status = (await space.fluxjob(name) or {}).get("status") or {}
        return [rows, status.get("nodes")]

    expected = [[{"node": node, "is_settled": True, "unmanaged": None}] * count, node]
    await until(booked, expected.__eq__, f"{name} is booked on {node}")


async def test_a_pod_runs_where_kube_scheduler_finds_its_place(
    space: Space, unmanaged: Space
) -> None:
    """It is booked there. A pod with node affinity of its own keeps it."""
    await put_db(unmanaged, "node-3")
    await space.create(beside_db("first", unmanaged, cpu="3"))
    (pod,) = await space.until_running("first", 1)
    assert pod["spec"]["nodeName"] == "node-3"
    await until_booked(space, "first", "node-3", 1)
    pools = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["main"]}]}
    on_nodes = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [pools]}}}
    await space.create(beside_db("second", unmanaged, cpu="3", affinity=on_nodes))
    (pod,) = await space.until_running("second", 1)
    assert pod["spec"]["nodeName"] == "node-3"
    await until_booked(space, "second", "node-3", 1)
    assert not await was_refused(space, "first")
    assert not await was_refused(space, "second")
    await assert_invariants(space.world)


async def test_pods_stay_away_from_pods_of_others(space: Space, unmanaged: Space) -> None:
    """The matcher would choose their node first."""
    await put_db(unmanaged, "node-1")
    (term,) = beside_db("away", unmanaged)["spec"]["template"]["spec"]["affinity"]["podAffinity"][
        REQUIRED
    ]
    affinity = {"podAntiAffinity": {REQUIRED: [term]}}
    body = job("away", pods=2, pool="main", run=FOR_EVER, pod={"affinity": affinity})
    await space.create(body)
    pods = await space.until_running("away", 2)
    assert "node-1" not in {pod["spec"]["nodeName"] for pod in pods}
    assert not await was_refused(space, "away")
    await assert_invariants(space.world)


async def test_a_pod_of_a_level_finds_its_node_inside_its_place(
    space: Space, unmanaged: Space
) -> None:
    """The other pod of the job stays in the same zone, and nothing has to be repaired."""
    await put_db(unmanaged, "node-2")
    within = {"within": "zone"}
    await space.create(beside_db("zone", unmanaged, cpu="3", pods=2, wishes=within))
    pods = await space.until_running("zone", 2)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-2"}
    assert not await was_refused(space, "zone")
    await until_booked(space, "zone", "node-2", 2)
    await assert_invariants(space.world)


async def test_the_tasks_of_a_sweep_find_their_node(space: Space, unmanaged: Space) -> None:
    """The first one and the further ones, which come in their turn."""
    await put_db(unmanaged, "node-3")
    apart = {"gang": "false"}
    await space.create(beside_db("tasks", unmanaged, cpu="2", pods=4, wishes=apart))
    pods = await space.until_running("tasks", 4)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-3"}
    assert not await was_refused(space, "tasks")
    await until_booked(space, "tasks", "node-3", 4)
    await assert_invariants(space.world)


async def test_a_gang_with_more_pods_than_its_least_number_of_zones_is_bound(
    space: Space,
) -> None:
    """Pods that name one node each see one zone of two, and could not share a node."""
    rule = {
        "labelSelector": {"matchLabels": {"app": "wide"}},
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 1,
        "minDomains": 2,
        "whenUnsatisfiable": "DoNotSchedule",
    }
    body = job(
        "wide",
        pods=6,
        cpu="2",
        pool="main",
        run=FOR_EVER,
        pod={"topologySpreadConstraints": [rule]},
    )
    body["spec"]["template"]["metadata"]["labels"] = {"app": "wide"}
    await space.create(body)
    pods = await space.until_running("wide", 6)
    east = sum(pod["spec"]["nodeName"] in {"node-1", "node-2"} for pod in pods)
    assert east == 3
    await assert_invariants(space.world)


@pytest.mark.long("a pod is left to kube-scheduler for 5 s, and a requeued Job waits for 10 s")
async def test_a_pod_that_takes_its_node_whole_is_repaired(space: Space, unmanaged: Space) -> None:
    """It names one node, which refuses it. The next try is on another idle one."""
    await put_db(unmanaged, "node-1")
    (term,) = beside_db("whole", unmanaged)["spec"]["template"]["spec"]["affinity"]["podAffinity"][
        REQUIRED
    ]
    affinity = {"podAntiAffinity": {REQUIRED: [term]}}
    body = job(
        "whole",
        pool="main",
        run=FOR_EVER,
        wishes={"exclusive": "true"},
        pod={"affinity": affinity},
    )
    await space.create(body)
    (pod,) = await space.until_running("whole", 1)
    assert pod["spec"]["nodeName"] != "node-1"
    assert await was_refused(space, "whole")
    await assert_invariants(space.world)


@pytest_asyncio.fixture(loop_scope="session")
async def many_nodes(space: Space) -> AsyncIterator[list[str]]:
    """Thirty more nodes, for the time of one test."""
    late = space.world.late_nodes
    for number in LATE:
        await late.add(late_node(number, "4"))
    yield [f"late-{number}" for number in LATE]
    for number in LATE:
        await late.fleet.remove(f"late-{number}")


@pytest.mark.long("thirty nodes join and leave")
async def test_one_node_of_thirty_is_found(
    space: Space, unmanaged: Space, many_nodes: list[str]
) -> None:
    """For one pod and for several, at once. Tried one by one, each would take five seconds."""
    right = many_nodes[-3]
    await put_db(unmanaged, right)
    await space.create(beside_db("one", unmanaged, pool="late"))
    (pod,) = await space.until_running("one", 1)
    assert pod["spec"]["nodeName"] == right
    assert not await was_refused(space, "one")
    await until_booked(space, "one", right, 1)
    await space.create(beside_db("three", unmanaged, pool="late", pods=3, cpu="500m"))
    pods = await space.until_running("three", 3)
    assert {pod["spec"]["nodeName"] for pod in pods} == {right}
    assert not await was_refused(space, "three")
    await assert_invariants(space.world)

"""Shapes of a jobspec in the cycle: levels with counts, exclusive racks, kinds of slots."""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import Count, Jobspec, Resource
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, workload


def slot(count: int, cpu: int = 1, label: str = "s") -> Resource:
    return Resource("slot", Count(count, count), (Resource(CPU, Count(cpu, cpu)),), label=label)


def above(kind: str, count: int, *below: Resource, exclusive: bool | None = None) -> Resource:
    return Resource(kind, Count(count, count), below, exclusive)


def asked(*resources: Resource, prefer: str = "") -> Jobspec:
    return Jobspec(9999, resources, prefer_within=prefer)


def node(name: str, zone: str, rack: str | None, cpu: int = 4) -> NodeFact:
    labels = {"topology.kubernetes.io/zone": zone}
    if rack is not None:
        labels["topology.kubernetes.io/rack"] = rack
    fact = cpu_node(name, cpu=cpu)
    return replace(fact, labels={**fact.labels, **labels})


def cluster() -> list[NodeFact]:
    """Two zones of two racks of two nodes each. The racks are called alike in both."""
    return [
        node(f"{zone}{rack}{number}", f"z{zone}", f"r{rack}")
        for zone in "ab"
        for rack in "01"
        for number in "01"
    ]


async def placed(rows: Rows, uid: str) -> list[str]:
    return [node for _, node, _, _ in await rows.slots(uid)]


async def test_racks_of_nodes_of_slots_in_one_zone(rows: Rows) -> None:
    """``zone[1] > rack[2] > node[2] > slot[2]``: slots in the order of the tree."""
    await rows.add_nodes(*cluster())
    tree = above("zone", 1, above("rack", 2, above("node", 2, slot(2))))
    await rows.see(workload("a", asked(tree)))
    await rows.match()
    found = await placed(rows, "a")
    assert found == [n for n in ("a00", "a01", "a10", "a11") for _ in range(2)]
    await rows.check()


async def test_racks_of_one_name_in_two_zones_are_two(rows: Rows) -> None:
    """Three nodes of one rack are nowhere, though three nodes are labelled ``r0``."""
    await rows.add_nodes(*cluster())
    await rows.see(workload("a", asked(above("rack", 1, above("node", 3, slot(1))))))
    await rows.match()
    assert await rows.states() == {"a": "Unsatisfiable"}
    assert "rack" in await rows.value("SELECT reason FROM fluxjobs WHERE uid = 'a'")


async def test_nodes_without_a_label_share_no_rack(rows: Rows) -> None:
    await rows.add_nodes(node("x0", "za", None), node("x1", "za", None), *cluster()[:1])
    near = asked(above("rack", 1, above("node", 2, slot(1))))
    await rows.see(workload("a", near), workload("b", asked(above("node", 3, slot(1)))))
    await rows.match()
    assert await rows.states() == {"a": "Unsatisfiable", "b": "Allocated"}


async def test_a_level_that_is_not_there_is_said(rows: Rows) -> None:
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", asked(above("rack", 1, slot(1)))))
    await rows.match()
    assert await rows.states() == {"a": "Unsatisfiable"}
    assert "rack" in await rows.value("SELECT reason FROM fluxjobs WHERE uid = 'a'")


async def test_an_exclusive_rack_is_nobody_else_s_after_a_restart_too(rows: Rows) -> None:
    """One slot holds all nodes of the rack. A new matcher reads that from the rows."""
    await rows.add_nodes(*cluster()[:2])
    await rows.see(workload("a", asked(above("rack", 1, slot(1), exclusive=True))))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    await rows.begin_term()
    await rows.see(workload("b", request(cpu=1)))
    await rows.match()
    assert (await rows.states())["b"] in {"Pending", "Reserved"}
    await rows.see(workload("a", asked(slot(1)), wanted=0, result="Completed"))
    await rows.reconcile("a")
    await rows.match()
    assert (await rows.states())["b"] == "Allocated"


async def test_launcher_and_workers(rows: Rows) -> None:
    """Two kinds of slots in one rack: the first slot is the launcher's, with room of its own."""
    await rows.add_nodes(*cluster())
    await rows.see(workload("a", asked(above("rack", 1, slot(1, 4, "launcher"), slot(3, 1)))))
    await rows.match()
    found = await rows.fetch("SELECT node, resources FROM allocation_slots ORDER BY number")
    assert [row["resources"][CPU] for row in found] == [4, 1, 1, 1]
    assert len({row["node"][:2] for row in found}) == 1, "one rack"


async def test_a_preferred_level(rows: Rows) -> None:
    """As low in the tree as possible, else one level up, else anywhere."""
    await rows.add_nodes(*cluster())
    for uid, nodes, levels in (("rack", 2, 2), ("zone", 4, 1), ("any", 8, 0)):
        near = asked(above("node", nodes, slot(1)), prefer="rack")
        await rows.see(workload(uid, near))
        await rows.match()
        found = await placed(rows, uid)
        assert len(found) == nodes
        assert len({name[:levels] for name in found}) == 1, uid


async def test_further_slots_stay_in_the_very_rack(rows: Rows) -> None:
    """A place is its whole path: the rack of the same name in the other zone is another one."""
    await rows.add_nodes(*cluster())
    near = asked(above("rack", 1, slot(1, 4)))
    pods = (pod("p0"), pod("p1"), pod("p2"))
    await rows.see(workload("a", near, pods=pods[:1]))
    await rows.match()
    await rows.reconcile("a")
    (first,) = await placed(rows, "a")
    await rows.see(workload("a", near, wanted=3, pods=pods))
    await rows.reconcile("a")
    await rows.match()
    found = await placed(rows, "a")
    assert len(found) == 2, "the rack has no third node, so the third pod waits"
    assert {name[:2] for name in found} == {first[:2]}
    await rows.add_nodes(node("a02", "za", "r0"))
    await rows.match()
    assert {name[:2] for name in await placed(rows, "a")} == {first[:2]}
    assert len(await placed(rows, "a")) == 3

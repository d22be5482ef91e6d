"""NUMA zones of nodes, and what of a pod has to fit one."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.never import why_never
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.jobspec.parse import parse_document
from fluxqueue.jobspec.render import render
from fluxqueue.workload.constraints import read_demand
from fluxqueue.workload.node_object import node_fact
from fluxqueue.workload.numa import NodeZones, read_bundles, read_zones

GIB = 1 << 30


def topology(*cores: int, scope: str | None = None, policy: str = "single-numa-node") -> Any:
    """A NodeResourceTopology v1alpha2: one zone for each number of cores."""
    said = [{"name": "topologyManagerPolicy", "value": policy}]
    if scope:
        said.append({"name": "topologyManagerScope", "value": scope})
    return {
        "metadata": {"name": "n1"},
        "attributes": said,
        "zones": [
            {"name": f"node-{n}", "type": "Node", "resources": [_resource("cpu", str(c))]}
            for n, c in enumerate(cores)
        ]
        + [{"name": "core-0", "type": "Core", "resources": [_resource("cpu", "1")]}],
    }


def _resource(name: str, allocatable: str) -> dict[str, str]:
    return {"name": name, "capacity": "999", "allocatable": allocatable, "available": "0"}


def pod(*cpus: str, guaranteed: bool = True, **devices: str) -> dict[str, Any]:
    """A pod spec with a container of some cpu each."""
    made = []
    for cpu in cpus:
        amounts = {"cpu": cpu, "memory": "1Gi"}
        more = {f"example.com/{name}": count for name, count in devices.items()}
        limits = {**amounts, **more} if guaranteed else more
        made.append({"name": "c", "resources": {"requests": amounts | more, "limits": limits}})
    return {"containers": made}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (topology(32, 30), NodeZones(({"cpu": 32000}, {"cpu": 30000}))),
        (topology(8, scope="pod"), NodeZones(({"cpu": 8000},), is_for_pods=True)),
        (topology(8, policy="best-effort"), NodeZones()),
        (topology(8, policy="restricted"), NodeZones()),
        ({**topology(8), "attributes": [], "topologyPolicies": ["SingleNUMANodePodLevel"]},
         NodeZones(({"cpu": 8000},), is_for_pods=True)),
        ({**topology(8), "attributes": None, "topologyPolicies": ["SingleNUMANodeContainerLevel"]},
         NodeZones(({"cpu": 8000},))),
        ({**topology(8), "attributes": [], "topologyPolicies": ["None"]}, NodeZones()),
        ({"metadata": {"name": "n1"}}, NodeZones()),
        ({**topology(8), "zones": [{"type": "Node", "resources": [_resource("cpu", "many")]}]},
         NodeZones()),
    ],
)  # fmt: skip
def test_zones(found: dict[str, Any], expected: NodeZones) -> None:
    """Only of a kubelet that insists. What cannot be read is no zone."""
    assert read_zones(found) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (pod("8"), ({"cpu": 8000, "memory": GIB},)),
        (pod("8", "2"), ({"cpu": 8000, "memory": GIB}, {"cpu": 2000, "memory": GIB})),
        (pod("500m"), ()),
        (pod("8", guaranteed=False), ()),
        (pod("500m", gpu="4"), ({"example.com/gpu": 4},)),
        (pod("8", guaranteed=False, gpu="2"), ({"example.com/gpu": 2},)),
        (pod("8", guaranteed=False, gpu="1"), ()),
        ({"containers": [{"name": "c"}]}, ()),
    ],
)
def test_bundles(spec: dict[str, Any], expected: tuple[dict[str, int], ...]) -> None:
    """Whole cores of Guaranteed pods, and several devices: nothing else is aligned."""
    assert tuple(map(dict, read_bundles(spec))) == expected


def test_init_containers_run_before_and_sidecars_beside() -> None:
    """What has ended before the others start is not beside them."""
    spec = pod("2")
    spec["initContainers"] = pod("8", "4")["containers"]
    spec["initContainers"][1]["restartPolicy"] = "Always"
    assert [dict(one)["cpu"] for one in read_bundles(spec)] == [4000, 2000]


def node(name: str, cores: int, found: Any = None) -> NodeFact:
    """A node, with or without zones."""
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {"cpu": str(cores), "memory": "64Gi"}, "conditions": ready}
    return node_fact({"metadata": {"name": name, "uid": name}, "status": status}, found)


def asked(spec: dict[str, Any], cpu: int) -> Jobspec:
    """A jobspec for one pod."""
    slot = Resource("slot", Count(1, 1), (Resource("cpu", Count(cpu, cpu)),), label="task")
    return Jobspec(9999, (slot,), where=read_demand(spec))


def matcher(*nodes: NodeFact) -> Matcher:
    made = Matcher(ShareLedger(), "lonode")
    for one in nodes:
        made.set_node(one, {})
    return made


def test_forty_cores_are_sent_past_a_node_of_two_sockets_of_32() -> None:
    """The kubelet would refuse it there. Elsewhere it stays possible, smaller ones stay there."""
    two_sockets, plain = node("n1", 64, topology(32, 32)), node("n2", 64)
    both = matcher(two_sockets, plain)
    assert both.match_now(asked(pod("40"), 40_000), 0).nodes == ("n2",)
    assert both.match_now(asked(pod("32"), 32_000), 0).nodes == ("n1",)
    assert both.match_now(asked(pod("40", guaranteed=False), 40_000), 0).nodes == ("n1",)


def test_the_scope_says_what_has_to_fit_one_zone() -> None:
    """Two containers of 20 cores: each in a zone of its own, or the pod in one."""
    pods = asked(pod("20", "20"), 40_000)
    assert matcher(node("n1", 64, topology(32, 32))).is_satisfiable(pods)
    assert not matcher(node("n1", 64, topology(32, 32, scope="pod"))).is_satisfiable(pods)
    assert matcher(node("n1", 64, topology(32, 40, scope="pod"))).is_satisfiable(pods)


def test_the_reason_names_the_zone() -> None:
    """What is needed of one zone, and what the largest has."""
    found = matcher(node("n1", 64, topology(32, 32)), node("n2", 64, topology(30, 30)))
    assert why_never(found.by_shares, asked(pod("40"), 40_000)) == (
        "needs 40 cpu in one NUMA zone, as every node that may be used insists;"
        " the largest zone has 32"
    )


def test_zones_come_and_go() -> None:
    """A mask is corrected by row when a node's zones change, also if there were none at all."""
    found, wide = matcher(node("n1", 64), node("n2", 64)), asked(pod("40"), 40_000)
    assert found.match_now(wide, 0).nodes == ("n1",)
    found.set_node(node("n1", 64, topology(32, 32)), {})
    assert found.match_now(wide, 0).nodes == ("n2",)
    found.set_node(node("n1", 64, topology(32, 32, policy="none")), {})
    assert found.match_now(wide, 0).nodes == ("n1",)
    found.set_node(node("n1", 64, topology(64)), {})
    assert found.match_now(wide, 0).nodes == ("n1",)


def test_stored_and_written() -> None:
    """Facts as rows have them, demands as FluxJobs have them."""
    fact = node("n1", 64, topology(32, 32, scope="pod"))
    assert NodeFact.from_json(fact.to_json()) == fact
    jobspec = asked(pod("40", "2"), 42_000)
    assert parse_document(render(jobspec)).where == jobspec.where

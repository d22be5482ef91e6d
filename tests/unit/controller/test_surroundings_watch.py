"""What a change of the surroundings marks, and what the watch answers from its objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.controller.observing.surroundings_watch import IsTouched, SurroundingsWatch
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.informer import Informer
from fluxqueue.workload.domains import DomainQuery
from tests.support.waiting import eventually

NOWHERE = ClusterConfig(server="http://127.0.0.1:1", ca_pem="", token="")
ZONE = "topology.kubernetes.io/zone"

Obj = dict[str, Any]


class Around:
    """A watch that has seen nothing yet, and what it has marked."""

    def __init__(self, client: KubeClient) -> None:
        self.nodes: dict[str, Obj] = {}
        self.marked: list[IsTouched] = []
        self.nodes_marked: list[str] = []
        self.watch = SurroundingsWatch(
            client,
            self.nodes.values,
            self.marked.append,
            self.nodes_marked.append,
            lambda *_: None,
        )
        self.watch._is_begun = True

    def put(self, informer: Informer, name: str, namespace: str = "", **fields: Any) -> None:
        """Show an object to the watch."""
        meta = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
        old = informer.get(namespace, name)
        if old is not None:
            meta["resourceVersion"] = str(int(old["metadata"]["resourceVersion"]) + 1)
        informer._upsert((namespace, name), {"metadata": meta, **fields})

    def node(self, name: str, zone: str) -> None:
        """Show a node to the watch."""
        new = {"metadata": {"name": name, "uid": name, "labels": {ZONE: zone}}, "spec": {}}
        old, self.nodes[name] = self.nodes.get(name), new
        self.watch.on_node(old, new)

    async def touched(self, *workloads: Obj) -> list[str]:
        """The workloads that the last changes touch."""

        await eventually(lambda: bool(self.marked), "the changes are passed on")
        tests, self.marked[:] = list(self.marked), []
        return [one["metadata"]["name"] for one in workloads if any(test(one) for test in tests)]


@pytest_asyncio.fixture
async def around() -> AsyncIterator[Around]:
    """No API server is asked."""
    async with KubeClient(NOWHERE) as client:
        made = Around(client)
        yield made
        await made.watch.stop()


def a_job(name: str, namespace: str = "ns", **spec: Any) -> Obj:
    """A BatchJob."""
    template = {"spec": {"containers": [], **spec}}
    return {
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": template},
    }


PLAIN, OTHER = a_job("plain"), a_job("other", "other")
BOXED = a_job("boxed", runtimeClassName="box")
STORED = a_job("stored", volumes=[{"persistentVolumeClaim": {"claimName": "data"}}])
SPREAD = a_job("spread", topologySpreadConstraints=[{"topologyKey": ZONE}])
ALL = PLAIN, OTHER, BOXED, STORED, SPREAD


async def test_each_change_marks_what_it_can_touch(around: Around) -> None:
    watch = around.watch
    around.put(watch._limits, "a", "other", spec={"limits": []})
    assert await around.touched(*ALL) == ["other"]
    around.put(watch._runtimes, "box")
    assert await around.touched(*ALL) == ["boxed"]
    around.put(watch._claims, "data", "ns", spec={})
    assert await around.touched(*ALL) == ["stored"]
    around.put(watch._volumes, "disk", spec={"storageClassName": "fast"})
    assert await around.touched(*ALL) == ["stored"]
    around.node("n", "z1")
    assert await around.touched(*ALL) == ["spread"]
    # Many changes are looked at together.
    for number in range(100):
        around.node(f"n{number}", "z1")
    assert await around.touched(*ALL) == [one["metadata"]["name"] for one in ALL]


async def test_an_unchanged_object_marks_nothing(around: Around) -> None:
    """Claims and nodes are written again all the time."""
    for _ in range(2):
        around.put(around.watch._claims, "data", "ns", spec={"volumeName": "disk"})
        around.node("n", "z1")
    assert await around.touched(*ALL) == ["stored", "spread"]
    around.put(around.watch._claims, "data", "ns", spec={"volumeName": "disk"})
    assert around.watch._alarm is None


async def test_answers_follow_the_objects(around: Around) -> None:
    watch = around.watch
    around.put(watch._volumes, "disk", spec={"storageClassName": "fast"})
    assert [one["metadata"]["name"] for one in watch.volumes_of_class("fast")] == ["disk"]
    around.put(watch._volumes, "disk", spec={"storageClassName": "slow"})
    assert watch.volumes_of_class("fast") == []
    query = DomainQuery(ZONE, (ZONE,))
    around.node("a", "z1")
    assert watch.domains(query).count == 1
    around.node("b", "z2")
    assert watch.domains(query).count == 2


async def test_limits_of_volumes_reach_the_nodes(around: Around) -> None:
    """The first limit of a driver concerns every node, a change of one only its own."""
    around.node("a", "z1")
    around.node("b", "z1")
    limited = {"drivers": [{"name": "csi", "allocatable": {"count": 2}}]}
    around.put(around.watch._csi_nodes, "a", spec=limited)
    assert sorted(around.nodes_marked) == ["a", "b"]
    assert around.watch.volumes_on("a") == {"attachable-volumes-csi-csi": 2}
    assert around.watch.volumes_on("b") == {"attachable-volumes-csi-csi": 1 << 20}
    around.nodes_marked.clear()
    limited = {"drivers": [{"name": "csi", "allocatable": {"count": 3}}]}
    around.put(around.watch._csi_nodes, "a", spec=limited)
    assert around.nodes_marked == ["a"]


@pytest.mark.parametrize("is_ours", [True, False])
async def test_webhooks_that_change_pods(around: Around, is_ours: bool) -> None:
    watch = around.watch
    watch._webhooks.synced.set()
    rule = {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods"]}
    of = "fluxqueue.converged-computing.org" if is_ours else "mesh.example.org"
    around.put(watch._webhooks, "w", webhooks=[{"name": f"pods.{of}", "rules": [rule]}])
    assert watch.are_pods_changed() is not is_ours

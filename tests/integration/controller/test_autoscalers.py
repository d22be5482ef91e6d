"""What adds nodes to a cluster, as the API server tells it, and the hint in a reason."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.autoscalers import STATUS_NAME, AutoscalerWatch
from fluxqueue.db import cluster_identity
from fluxqueue.db.database import Database
from fluxqueue.db.store.cluster_rows import save_autoscaler
from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, NODE_POOLS
from fluxqueue.workload.autoscaling import LAST_UPDATED, autoscalers_of_nodes
from localcluster import LocalClusterConfig
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload
from tests.support.waiting import eventually

QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)
NOW_S = 1_800_000_000  # 2027-01-15 08:00:00 UTC


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, set()),
        ({"karpenter.sh/nodepool": "general"}, {"Karpenter"}),
        ({"eks.amazonaws.com/compute-type": "fargate"}, set()),
        ({"eks.amazonaws.com/compute-type": "auto"}, {"EKS Auto Mode"}),
    ],
)
def test_labels_of_nodes(labels: dict[str, str], expected: set[str]) -> None:
    nodes = [{}, {"metadata": None}, node("a"), node("b", **labels)]
    assert autoscalers_of_nodes(nodes) == expected


@pytest.mark.parametrize(
    ("updated", "expected"),
    [
        ("2027-01-15 07:59:50.123456789 +0000 UTC", "cluster-autoscaler"),
        ("2027-01-15 07:00:00.123456789 +0000 UTC", ""),
        ("not a time", "cluster-autoscaler"),
        (None, "cluster-autoscaler"),
    ],
)
async def test_the_status_of_cluster_autoscaler(
    admin: KubeClient, updated: str | None, expected: str
) -> None:
    """An old one is of an autoscaler that was removed."""
    watch = AutoscalerWatch(admin, ManualClock(NOW_S), list)
    await watch.look()
    assert watch.found == ""
    await _namespace(admin)
    notes = {} if updated is None else {LAST_UPDATED: updated}
    body = {"metadata": {"name": STATUS_NAME, "annotations": notes}, "data": {"status": "x"}}
    await admin.create(CONFIGMAPS, "kube-system", body)
    await watch.look()
    assert watch.found == expected


async def _namespace(admin: KubeClient) -> None:
    names = {one["metadata"]["name"] for one in (await admin.list(NAMESPACES)).items}
    if "kube-system" not in names:
        await admin.create(NAMESPACES, None, {"metadata": {"name": "kube-system"}})


@pytest.mark.parametrize("version", [1, 0])
async def test_node_pools_of_karpenter(admin: KubeClient, version: int) -> None:
    """Of both versions. A pool with a limit of zero adds none."""
    resource = NODE_POOLS[version]
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await admin.create(
        CRDS,
        None,
        {
            "metadata": {"name": resource.key},
            "spec": {
                "group": resource.group,
                "scope": "Cluster",
                "names": {"kind": resource.kind, "plural": resource.plural, "singular": "nodepool"},
                "versions": [
                    {
                        "name": resource.version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": free},
                    }
                ],
            },
        },
    )
    watch = AutoscalerWatch(admin, ManualClock(NOW_S), lambda: [node("a")])

    async def is_served() -> bool:
        try:
            await admin.list(resource)
        except NotFound:
            return False
        return True

    await eventually(is_served, "the definition is served")
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    empty = {**kind, "metadata": {"name": "empty"}, "spec": {"limits": {"cpu": 0}}}
    await admin.create(resource, None, empty)
    await watch.look()
    assert watch.found == ""
    general = {**kind, "metadata": {"name": "general"}, "spec": {"limits": {"cpu": "1000"}}}
    await admin.create(resource, None, general)
    await watch.look()
    assert watch.found == "Karpenter"


async def test_the_reason_says_that_more_nodes_may_come(database_url: str) -> None:
    """Also of a job that is unsatisfiable already, and no longer when the autoscaler is gone."""
    settings = settings_for(database_url)
    async with Database(settings, role="test") as database:
        rows = Rows(database, settings=settings)
        await cluster_identity.bind(database, "a-cluster", "https://here")
        await rows.add_nodes(cpu_node("n0", cpu=4000))
        await rows.see(workload("a", request(cpu=8000)))
        await rows.match()
        sql = "SELECT reason FROM fluxjobs WHERE uid = 'a'"
        plain = "needs 8 cpu on one node; the largest of 1 node has 4"
        assert await rows.value(sql) == plain
        for names, hint in (
            ("Karpenter", "; Karpenter adds nodes to this cluster, so more may come"),
            ("", ""),
        ):
            async with database.begin() as tx:
                await save_autoscaler(tx, names)
            await rows.match()
            assert await rows.value(sql) == plain + hint
            assert await rows.states() == {"a": "Unsatisfiable"}
        await rows.begin_term()
        async with database.begin() as tx:
            await save_autoscaler(tx, "cluster-autoscaler")
        await rows.see(workload("b", request(cpu=9000)))
        await rows.match()
        assert "cluster-autoscaler adds nodes" in await rows.value(sql.replace("'a'", "'b'"))

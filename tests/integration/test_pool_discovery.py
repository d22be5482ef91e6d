"""FluxNodePools discovered on a served API: read, proposed, and accepted by their definition."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from fluxqueue.cli.user.access import ClusterAccess
from fluxqueue.cli.user.pools import _apply, discover
from fluxqueue.clock import ManualClock, SystemClock
from fluxqueue.errors import Invalid, InvalidInput, NotFound
from fluxqueue.fluxjob.times import from_rfc3339, to_rfc3339
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import (
    CONFIGMAPS,
    CRDS,
    FLUX_NODE_POOLS,
    NODE_CLAIMS,
    NODE_POOLS,
    NODES,
    PODS,
    ApiResource,
)
from fluxqueue.nodepools.cluster.pool_following import SETTLED_S, PoolFollower
from fluxqueue.nodepools.cluster.pool_sources import PoolSources, read_pool_sources
from fluxqueue.nodepools.proposals.following import GONE_S
from fluxqueue.nodepools.proposals.proposal import PoolProposal, render
from fluxqueue.workload.labels import SOURCE_MISSING
from localcluster import LocalClusterConfig
from tests.support.upstream import UpstreamFiles
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("definitions")

QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)
STATUS = ("kube-system", "cluster-autoscaler-status")
KARPENTER = "kubernetes-sigs/karpenter"
TOOK_S = 95
INSTANCE = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}


async def define(client: KubeClient, definition: dict[str, Any], resource: ApiResource) -> None:
    """Serve a kind."""
    await client.create(CRDS, None, definition)

    async def is_served() -> bool:
        try:
            await client.list(resource)
        except NotFound:
            return False
        return True

    await eventually(is_served, f"{resource.key} is served")


def named(resource: ApiResource, body: dict[str, Any]) -> dict[str, Any]:
    """An object with its kind, which custom ones need."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def loose(resource: ApiResource) -> dict[str, Any]:
    """A definition that accepts everything."""
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        },
    }
    return {
        "metadata": {"name": resource.key},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {"plural": resource.plural, "kind": resource.kind},
            "versions": [version],
        },
    }


async def make_claim(client: KubeClient, pool: dict[str, Any], number: int) -> None:
    """A NodeClaim of a NodePool as Karpenter makes it, with a node of one instance type."""
    template = pool["spec"]["template"]["spec"]
    name = pool["metadata"]["name"]
    labels = {"karpenter.sh/nodepool": name, "node.kubernetes.io/instance-type": "x5.4xlarge"}
    spec = {
        "nodeClassRef": template["nodeClassRef"],
        "requirements": [
            {key: one[key] for key in ("key", "operator", "values") if key in one}
            for one in template["requirements"]
        ],
    }
    made = {"metadata": {"name": f"{name}-{number}", "labels": labels}, "spec": spec}
    stored = await client.create(NODE_CLAIMS[0], None, named(NODE_CLAIMS[0], made))
    at_s = from_rfc3339(stored["metadata"]["creationTimestamp"]) + TOOK_S
    ready = {"type": "Initialized", "status": "True", "reason": "Initialized", "message": "",
             "lastTransitionTime": to_rfc3339(at_s)}  # fmt: skip
    status = {"status": {"capacity": INSTANCE, "allocatable": INSTANCE | {"cpu": "15890m"},
                         "nodeName": f"{name}-{number}", "conditions": [ready]}}  # fmt: skip
    at = (NODE_CLAIMS[0], None, made["metadata"]["name"])
    await client.patch(*at, status, kind=PatchKind.MERGE, subresource="status")


async def accepted(client: KubeClient, proposals: list[PoolProposal]) -> list[str]:
    """Apply all proposals twice. Return the names of the FluxNodePools."""
    for _ in range(2):
        await _apply(ClusterAccess(client, None), proposals)
    return [one["metadata"]["name"] for one in (await client.list(FLUX_NODE_POOLS)).items]


async def test_pools_of_both_sources_are_found(admin: KubeClient) -> None:
    """Karpenter and cluster-autoscaler in one cluster, with DaemonSets on a node."""
    for resource in (NODE_POOLS[0], NODE_CLAIMS[0]):
        await define(admin, loose(resource), resource)
    pool = {
        "metadata": {"name": "burst"},
        "spec": {
            "template": {"spec": {"nodeClassRef": {"name": "c"}, "requirements": []}},
            "limits": {"cpu": "64"},
        },
    }
    await admin.create(NODE_POOLS[0], None, named(NODE_POOLS[0], pool))
    await make_claim(admin, pool, 1)
    groups = {"nodeGroups": [{"name": "eks-old-7f", "health": {"minSize": 0, "maxSize": 9}}]}
    for name, labels in (("burst-1", {}), ("old-1", {"eks.amazonaws.com/nodegroup": "old"})):
        node = {"metadata": {"name": name, "labels": labels}}
        await admin.create(NODES, None, node)
        status = {"status": {"allocatable": INSTANCE}}
        await admin.patch(NODES, None, name, status, kind=PatchKind.MERGE, subresource="status")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "a", "uid": "u"}
    asks = {"name": "a", "image": "a", "resources": {"requests": {"cpu": "390m"}}}
    agent = {
        "metadata": {"name": "agent", "ownerReferences": [owner | {"controller": True}]},
        "spec": {"nodeName": "burst-1", "containers": [asks]},
    }
    await admin.create(PODS, "kube-system", agent)
    data = {"data": {"status": yaml.safe_dump(groups)}}
    await admin.create(CONFIGMAPS, STATUS[0], {"metadata": {"name": STATUS[1]}, **data})

    sources = await read_pool_sources(admin, STATUS)
    assert sources.notes == []
    proposals = sources.proposals()
    assert await accepted(admin, proposals) == ["burst", "old"]
    burst = {one.name: one.spec for one in proposals}["burst"]
    assert burst is not None
    assert burst["node"]["allocatable"]["cpu"] == "15500m", "the DaemonSet has the rest"
    assert (burst["max"], burst["provisioningTime"]) == (4, f"{TOOK_S}s")


async def test_a_cluster_without_autoscalers_has_no_pools(admin: KubeClient) -> None:
    """Nothing is served, and nothing is an error."""
    sources = await read_pool_sources(admin, STATUS)
    assert (sources.proposals(), sources.notes) == ([], [])
    assert render([]) == ""


def test_a_status_needs_namespace_and_name() -> None:
    with pytest.raises(InvalidInput, match="--status"):
        discover(kubeconfig=None, context="", impersonate="", status="just-a-name", apply=False)


async def test_examples_of_karpenter_are_understood(admin: KubeClient) -> None:
    """Each example NodePool of the AWS provider, checked by Karpenter's own definitions."""
    core, aws = UpstreamFiles(KARPENTER), UpstreamFiles("aws/karpenter-provider-aws")
    for resource in (NODE_POOLS[0], NODE_CLAIMS[0]):
        text = core.text(f"pkg/apis/crds/karpenter.sh_{resource.plural}.yaml")
        await define(admin, yaml.safe_load(text), resource)
    seen = 0
    for path in aws.names("examples/v1"):
        for pool in yaml.safe_load_all(aws.text(path)):
            if not pool or pool["kind"] != "NodePool":
                continue
            pool["metadata"]["name"] = f"example-{seen}"
            try:
                await admin.create(NODE_POOLS[0], None, pool)
            except Invalid:
                continue  # an example that their own definition refuses
            await make_claim(admin, pool, 1)
            seen += 1
    assert seen >= 10
    sources = await read_pool_sources(admin, STATUS)
    proposals = sources.proposals()
    assert len(await accepted(admin, proposals)) == seen
    limits = {one["metadata"]["name"]: one["spec"].get("limits") for one in sources.node_pools}
    for one in proposals:
        assert one.spec is not None
        bound = int(str((limits[one.name] or {}).get("cpu", 16))) // 16
        assert one.spec["max"] == bound, one


def test_sources_without_anything_propose_nothing() -> None:
    assert PoolSources().proposals() == []


async def test_discovered_pools_follow_their_sources(admin: KubeClient) -> None:
    """On a served API: a changed limit, a change of the administrator, and a source that goes."""
    for resource in (NODE_POOLS[0], NODE_CLAIMS[0]):
        await define(admin, loose(resource), resource)
    template = {"spec": {"nodeClassRef": {"name": "c"}, "requirements": []}}
    for name in ("burst", "steady"):
        spec = {"template": template, "limits": {"cpu": "64"}}
        pool = {"metadata": {"name": name}, "spec": spec}
        await admin.create(NODE_POOLS[0], None, named(NODE_POOLS[0], pool))
        await make_claim(admin, pool, 1)
        await admin.create(NODES, None, {"metadata": {"name": f"{name}-1"}})
        status = {"status": {"allocatable": INSTANCE}}
        at = (NODES, None, f"{name}-1")
        await admin.patch(*at, status, kind=PatchKind.MERGE, subresource="status")
    assert await accepted(admin, (await read_pool_sources(admin, STATUS)).proposals()) == [
        "burst",
        "steady",
    ]
    clock = ManualClock(SystemClock().now_s() + SETTLED_S)
    follower = PoolFollower(admin, clock)

    async def look() -> dict[str, Any]:
        await follower.look()
        found = (await admin.list(FLUX_NODE_POOLS)).items
        return {one["metadata"]["name"]: one for one in found}

    before = await look()
    assert {name: one["spec"]["max"] for name, one in before.items()} == {"burst": 4, "steady": 4}
    assert await look() == before, "nothing is written if nothing has changed"
    merge = PatchKind.MERGE
    await admin.patch(FLUX_NODE_POOLS, None, "steady", {"spec": {"max": 3}}, kind=merge)
    for name in ("burst", "steady"):
        limits = {"spec": {"limits": {"cpu": "160"}}}
        await admin.patch(NODE_POOLS[0], None, name, limits, kind=merge)
    now = await look()
    assert {name: one["spec"]["max"] for name, one in now.items()} == {"burst": 10, "steady": 3}

    for name in ("burst", "steady"):
        await admin.delete(NODE_POOLS[0], None, name)
    assert all(SOURCE_MISSING in one["metadata"]["annotations"] for one in (await look()).values())
    clock.advance(GONE_S)
    assert list(await look()) == ["steady"], "the administrator has changed it"

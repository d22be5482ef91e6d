"""Helpers of the end-to-end tests with node pools: pools, their nodes, and objects to scale."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from localcluster.client.resources import Resource

from fluxqueue.errors import Conflict, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import (
    CRDS,
    FLUX_NODE_POOLS,
    NODE_CLAIMS,
    NODE_POOLS,
    NODES,
    POD_TEMPLATES,
    PODS,
    PROVISIONING_REQUESTS,
    ApiResource,
)
from fluxqueue.nodepools.cluster.pool_sources import read_pool_sources
from fluxqueue.nodepools.proposals.karpenter import INSTANCE_TYPE
from fluxqueue.nodepools.proposals.karpenter import NODE_POOL as KARPENTER_POOL
from fluxqueue.workload.labels import NODE_POOL, OWN_NAMESPACE
from localcluster import NodeShape, SimulatedPool
from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space
from tests.support.waiting import eventually, until

CPU = 8
CLUSTER_API = "cluster.x-k8s.io"
MACHINES = ApiResource(
    CLUSTER_API, "v1beta1", "machinedeployments", "MachineDeployment", namespaced=True
)


KARPENTER_POOLS, KARPENTER_CLAIMS = NODE_POOLS[0], NODE_CLAIMS[0]
LOOSE: Obj = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""A schema that accepts everything."""

BUFFERS = ApiResource("autoscaling.x-k8s.io", "v1beta1", "capacitybuffers", "CapacityBuffer", True)
SIMULATED = ("delivers", "delay_s", "idle_s", "provisioning_class", "refuses", "fills_buffers")
"""Settings of a simulated pool. All others are those of the spec."""


class Pools:
    """Pools of one test, and the nodes that the autoscaler has added for them."""

    def __init__(self, space: Space) -> None:
        self.space, self.made = space, list[str]()
        self.autoscaler = space.world.late_nodes.autoscaler

    async def make(
        self, name: str, *, most: int = 3, scale: bool = False, is_known: bool = True, **more: Any
    ) -> str:
        """Create a pool, and let the autoscaler add such nodes unless it does not know it.

        ``more`` are settings of the simulated pool (``delivers``, ``delay_s``) and of the spec.
        Jobs choose its nodes by the label ``pool``: its name, or that of the pool ``labels_of``.
        """
        name = f"{name}-{self.space.name}"
        label = more.pop("labels_of", name)
        own = {key: more.pop(key) for key in SIMULATED if key in more}
        shape = NodeShape(name, cpu=str(CPU), memory="32Gi", labels={"pool": label, "own": name})
        scaled = Resource(MACHINES.group, MACHINES.version, MACHINES.plural, MACHINES.kind, True)
        if is_known:
            more_of_it = {"scaled": scaled, "namespace": self.space.name} if scale else {}
            own = {"delay_s": 0.3, "idle_s": 2.0, **own}
            pool = SimulatedPool(shape, 10, **own, **more_of_it)
            self.autoscaler.pools = [*self.autoscaler.pools, pool]
        provider: Obj = {"placeholder": {}}
        if scale:
            at = {"namespace": self.space.name, "name": name}
            provider = {
                "scale": {"apiVersion": MACHINES.api_version, "resource": MACHINES.plural, **at}
            }
        body = {
            "apiVersion": FLUX_NODE_POOLS.api_version,
            "kind": FLUX_NODE_POOLS.kind,
            "metadata": {"name": name},
            "spec": {
                "node": {
                    "labels": {"pool": label, "own": name},
                    "allocatable": {"cpu": str(CPU), "memory": "32Gi", "pods": "110"},
                },
                "max": most,
                "provisioningTime": "30s",
                "pricePerHour": "3.10",
                "provider": provider,
                **more,
            },
        }
        await self.space.client.create(FLUX_NODE_POOLS, None, body)
        self.made.append(name)
        return name

    async def make_source(self, name: str, *, most: int) -> str:
        """Create a NodePool of Karpenter with a NodeClaim, and no pool. Return its name."""
        name = f"{name}-{self.space.name}"
        for resource in (KARPENTER_POOLS, KARPENTER_CLAIMS):
            await _define(self.space, resource, LOOSE, {})
        own = {"pool": name, "own": name}
        labels = {**own, KARPENTER_POOL: name, INSTANCE_TYPE: "x5"}
        shape = NodeShape(name, cpu=str(CPU), memory="32Gi", labels=labels)
        made = SimulatedPool(shape, 10, delay_s=0.3, idle_s=2.0)
        self.autoscaler.pools = [*self.autoscaler.pools, made]
        size = {"cpu": str(CPU), "memory": "32Gi", "pods": "110"}
        pool = {"template": {"metadata": {"labels": own}}, "limits": limits(most)}
        claim = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": size}}
        for resource, body in (
            (KARPENTER_POOLS, {"metadata": {"name": name}, "spec": pool}),
            (KARPENTER_CLAIMS, claim),
        ):
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            await self.space.client.create(resource, None, {**kind, **body})
        self.made.append(name)
        return name

    async def bound_source(self, name: str, *, most: int) -> None:
        """Change the limits of a NodePool of Karpenter."""
        patch = {"spec": {"limits": limits(most)}}
        await self.space.client.patch(KARPENTER_POOLS, None, name, patch, kind=PatchKind.MERGE)

    async def delete_source(self, name: str) -> None:
        """Delete a NodePool of Karpenter, and its NodeClaim."""
        for resource in (KARPENTER_CLAIMS, KARPENTER_POOLS):
            await self.space.client.delete(resource, None, name)

    async def discover(self, name: str) -> None:
        """Create the pool that is proposed for a source, as ``pools discover --apply`` does."""
        sources = await read_pool_sources(self.space.client, ("kube-system", "none"))
        (one,) = [one for one in sources.proposals() if one.name == name]
        await self.space.client.create(FLUX_NODE_POOLS, None, one.manifest())

    async def status(self, name: str) -> Obj:
        """What it shows."""
        found = await self.space.client.get(FLUX_NODE_POOLS, None, name)
        return dict(found.get("status") or {})

    async def until(self, name: str, **wanted: Any) -> Obj:
        """Wait until its status has these values."""
        what = f"pool {name} with {wanted}"
        return await until(
            lambda: self.status(name), lambda told: wanted.items() <= told.items(), what
        )

    async def nodes(self, name: str) -> list[str]:
        """The nodes of a pool that exist."""
        found = (
            await self.space.client.list(NODES, label_selector=f"localcluster/node-pool={name}")
        ).items
        return sorted(one["metadata"]["name"] for one in found)

    async def placeholders(self, name: str) -> list[Obj]:
        """The pods that hold a place on new nodes of a pool."""
        selector = f"{NODE_POOL}={name}"
        found = (await self.space.client.list(PODS, OWN_NAMESPACE, label_selector=selector)).items
        return [one for one in found if not one["metadata"].get("deletionTimestamp")]

    async def requests(self, name: str) -> list[Obj]:
        """Its rows, oldest first."""
        sql = (
            "SELECT count, ended, reason, is_settled, asked_at, ready_at FROM node_requests"
            " WHERE pool = :name ORDER BY number"
        )
        return await self.space.world.rows(sql, name=name)

    async def until_none_is_left(self, name: str) -> None:
        """Wait until nothing is asked for, and the autoscaler has taken every node back."""

        async def is_over() -> bool:
            rows = await self.requests(name)
            is_settled = all(row["is_settled"] for row in rows)
            return is_settled and not await self.placeholders(name) and not await self.nodes(name)

        await eventually(is_over, f"nothing of pool {name} is left")

    async def delete(self, name: str) -> None:
        """Delete a pool, and leave everything else to fluxqueue."""
        await self.space.client.delete(FLUX_NODE_POOLS, None, name)

    async def remove(self) -> None:
        """Remove all pools, and wait until no row has one."""
        await self.autoscaler.give_up()
        for name in self.made:
            with suppress(NotFound):  # the test has deleted it, and its nodes stayed
                await self.space.client.delete(FLUX_NODE_POOLS, None, name)
            for node in await self.nodes(name):
                await self.space.world.late_nodes.fleet.remove(node)

        async def are_gone() -> bool:
            names = "ANY(CAST(:names AS text[]))"
            sql = (
                f"SELECT name FROM rules WHERE name = {names}"
                f" UNION ALL SELECT pool FROM node_requests WHERE NOT is_settled AND pool = {names}"
                f" UNION ALL SELECT node FROM pool_nodes WHERE pool = {names}"
            )
            rows = await self.space.world.rows(sql, names=self.made)
            return not rows and not [p for name in self.made for p in await self.placeholders(name)]

        await eventually(are_gone, "no pool is left")

    async def make_scaled(self, name: str, *, most: int = 5, **more: Any) -> str:
        """Create a pool that scales an object, and the object with no replicas."""
        await define_machines(self.space)
        pool = await self.make(name, scale=True, most=most, **more)
        body = {
            "apiVersion": MACHINES.api_version,
            "kind": MACHINES.kind,
            "metadata": {"name": pool, "namespace": self.space.name},
            "spec": {"replicas": 0},
        }
        await self.space.client.create(MACHINES, self.space.name, body)
        return pool

    async def make_requested(self, name: str, **more: Any) -> str:
        """Create a pool with nodes that come by ProvisioningRequests of a class of its own."""
        await define_provisioning_requests(self.space)
        own_class = f"{self.space.name}.example.org"
        given = {
            "provisioningClassName": own_class,
            "parameters": {"ValidUntilSeconds": "600"},
        }
        return await self.make(
            name, provisioning_class=own_class, provider={"provisioningRequest": given}, **more
        )

    async def make_buffered(self, name: str, **more: Any) -> str:
        """Create a pool with nodes that come by CapacityBuffers."""
        await define_buffers(self.space)
        provider = {"capacityBuffer": {}}
        return await self.make(name, fills_buffers=True, provider=provider, **more)

    async def buffers(self, pool: str) -> list[Obj]:
        """The CapacityBuffers of a pool."""
        return await self._own(BUFFERS, pool)

    async def provisioning_requests(self, pool: str) -> list[Obj]:
        """The ProvisioningRequests of a pool."""
        return await self._own(PROVISIONING_REQUESTS, pool)

    async def templates(self, pool: str) -> list[Obj]:
        """The PodTemplates of a pool."""
        return await self._own(POD_TEMPLATES, pool)

    async def _own(self, resource: ApiResource, pool: str) -> list[Obj]:
        selector = f"{NODE_POOL}={pool}"
        found = await self.space.client.list(resource, OWN_NAMESPACE, label_selector=selector)
        return [one for one in found.items if not one["metadata"].get("deletionTimestamp")]

    async def replicas(self, pool: str) -> int:
        """The replicas of the object that a pool scales."""
        found = await self.space.client.get(MACHINES, self.space.name, pool)
        return int(found["spec"]["replicas"])


def limits(nodes: int) -> dict[str, str]:
    """Limits of a NodePool of Karpenter.

    With a limit of zero, it does not count as an autoscaler in the reasons of other tests.
    """
    return {"cpu": str(nodes * CPU), "example.com/none": "0"}


async def define_machines(space: Space) -> None:
    """Serve MachineDeployments, with the only part that counts here: the scale subresource."""
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        },
    }
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    await _define(space, MACHINES, schema, {"status": {}, "scale": scale})


async def define_provisioning_requests(space: Space) -> None:
    """Serve ProvisioningRequests, with the rules that their users feel: specs do not change."""
    fixed = [{"rule": "self == oldSelf", "message": "Value is immutable"}]
    name = {"type": "string", "maxLength": 253, "x-kubernetes-validations": fixed}
    template = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "maxLength": 253}},
    }
    pod_set = {
        "type": "object",
        "required": ["count", "podTemplateRef"],
        "properties": {"count": {"type": "integer", "minimum": 1}, "podTemplateRef": template},
    }
    parameters = {
        "type": "object",
        "maxProperties": 100,
        "additionalProperties": {"type": "string", "maxLength": 255},
        "x-kubernetes-validations": fixed,
    }
    spec = {
        "type": "object",
        "required": ["podSets", "provisioningClassName"],
        "properties": {
            "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": pod_set},
            "provisioningClassName": name,
            "parameters": parameters,
        },
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": spec, "status": status},
    }
    await _define(space, PROVISIONING_REQUESTS, schema, {"status": {}})


async def define_buffers(space: Space) -> None:
    """Serve CapacityBuffers, with the fields that count here."""
    template = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "minLength": 1}},
    }
    spec = {
        "type": "object",
        "properties": {
            "podTemplateRef": template,
            "provisioningStrategy": {"type": "string"},
            "replicas": {"type": "integer", "minimum": 0},
        },
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": spec, "status": status},
    }
    await _define(space, BUFFERS, schema, {"status": {}})


async def _define(space: Space, resource: ApiResource, schema: Obj, subresources: Obj) -> None:
    """Install a definition, unless another test has done so."""
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
    }
    body = {
        "apiVersion": CRDS.api_version,
        "kind": CRDS.kind,
        "metadata": {"name": resource.key},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {"plural": resource.plural, "kind": resource.kind},
            "versions": [version],
        },
    }
    try:
        await space.client.create(CRDS, None, body)
    except Conflict:
        return  # another test has defined them

    async def is_served() -> bool:
        try:
            await space.client.list(resource)
        except NotFound:
            return False
        return True

    await eventually(is_served, f"{resource.plural} are served")

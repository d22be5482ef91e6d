"""``SimulatedNodes``: nodes for a control plane without kubelets.

It is for a cluster that has its own API server, controllers and scheduler, but nothing that runs
pods (envtest, a bare control plane on a laptop). The embedded cluster uses the same node agents.
Never use it for a cluster with real nodes: every node has the label ``localcluster/simulated``, and
a pod bound to it only pretends to run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from localcluster.client.access import Access
from localcluster.client.calls import Client
from localcluster.client.http import HttpTransport
from localcluster.client.resources import CLUSTER_ROLE_BINDINGS, REVIEWS
from localcluster.errors import Conflict
from localcluster.loops.context import Context
from localcluster.loops.event_recorder import EventRecorder
from localcluster.loops.informers import InformerSet
from localcluster.loops.options import ControllerOptions
from localcluster.nodes.autoscaler import Autoscaler
from localcluster.nodes.fleet import NodeFleet
from localcluster.nodes.pool import SimulatedPool
from localcluster.nodes.shape import NodeShape

BINDING = "localcluster-simulated-nodes"
ALLOWED_POLL_S = 0.1
ALLOWED_POLLS_MAX = 100
"""After this many polls a node tries anyway, and the error says what is wrong."""


class SimulatedNodes:
    """Nodes for the duration of the ``async with`` block.

    ``fleet`` silences, revives and removes them. ``pools`` are nodes that are added when pods need
    them. ``access`` must be allowed to impersonate and to
    bind the ClusterRole ``system:node``, as a cluster's administrator is. The Node objects stay
    after the block, as with kubelets that stop.
    """

    def __init__(
        self,
        access: Access,
        shapes: list[NodeShape],
        options: ControllerOptions | None = None,
        pools: Sequence[SimulatedPool] = (),
    ) -> None:
        self._client = Client(HttpTransport(access), headers={"User-Agent": "localcluster-nodes"})
        self._context = Context(
            self._client,
            InformerSet(self._client),
            EventRecorder(self._client),
            options or ControllerOptions(),
        )
        self._names = [shape.name for shape in shapes]
        self._adding = asyncio.Lock()
        self.fleet = NodeFleet(self._context, shapes)
        self.autoscaler = Autoscaler(self._context, pools, self.add, self.fleet.remove)
        """Adds and removes the nodes of ``pools``."""

    async def __aenter__(self) -> Self:
        try:
            await self._allow()
            await self.fleet.register()
            await self._context.informers.start()
        except BaseException:
            await self._context.informers.stop()
            await self._client.close()
            raise
        self.fleet.start()
        self.autoscaler.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.autoscaler.stop()
        await self.fleet.stop()
        await self._context.informers.stop()
        await self._client.close()

    async def add(self, shape: NodeShape) -> None:
        """Add one more node."""
        # One at a time: the binding is replaced as a whole, and an older list would come last.
        async with self._adding:
            self._names.append(shape.name)
            await self._allow()
        await self.fleet.add(shape)

    async def _allow(self) -> None:
        """Give our kubelets their rights, for a cluster in which only RBAC checks them."""
        users = [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "User",
                "name": f"system:node:{name}",
            }
            for name in self._names
        ]
        role = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node",
        }
        body = {
            "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
            "kind": CLUSTER_ROLE_BINDINGS.kind,
            "metadata": {"name": BINDING},
            "roleRef": role,
            "subjects": users,
        }
        try:
            await self._client.create(CLUSTER_ROLE_BINDINGS, None, body)
        except Conflict:
            await self._client.patch(CLUSTER_ROLE_BINDINGS, None, BINDING, {"subjects": users})
        if self._names:
            await self._wait_until_allowed(self._names[-1])

    async def _wait_until_allowed(self, name: str) -> None:
        """Wait until a binding takes effect.

        The authorizer learns of it through a watch of its own, a moment later.
        """
        question = {
            "apiVersion": REVIEWS.api_version,
            "kind": REVIEWS.kind,
            "spec": {"resourceAttributes": {"verb": "create", "resource": "nodes"}},
        }
        newest = self._client.acting_as(f"system:node:{name}")
        for _ in range(ALLOWED_POLLS_MAX):
            answer = await newest.create(REVIEWS, None, question)
            if answer["status"]["allowed"]:
                return
            await asyncio.sleep(ALLOWED_POLL_S)

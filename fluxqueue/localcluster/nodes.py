"""``python -m fluxqueue.localcluster.nodes``: simulated nodes for a control plane without kubelets.

For a cluster that has an API server, controllers and a scheduler of its own but nothing that runs
pods (envtest, a bare control plane on a laptop). The same node agents serve the embedded cluster.
Never for a cluster with real nodes: every node made here carries the label
``localcluster.fluxqueue/simulated``, and a pod bound to it only pretends to run.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from types import TracebackType
from typing import Self

from fluxqueue.errors import Conflict
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig, load_kubeconfig
from fluxqueue.kube.resources import CLUSTER_ROLE_BINDINGS, Resource
from fluxqueue.localcluster.controllers.context import Context
from fluxqueue.localcluster.controllers.events import EventRecorder
from fluxqueue.localcluster.controllers.informers import InformerSet
from fluxqueue.localcluster.controllers.node_fleet import NodeFleet
from fluxqueue.localcluster.controllers.node_shape import NodeShape
from fluxqueue.localcluster.controllers.options import ControllerOptions

BINDING = "localcluster-simulated-nodes"
REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False
)
ALLOWED_POLL_S = 0.1
ALLOWED_POLLS_MAX = 100
"""Then a node tries all the same, and the refusal says what is wrong."""


class SimulatedNodes:
    """Nodes for as long as the ``async with`` block; ``fleet`` silences, revives and removes them.

    Parameters: ``config`` must be allowed to impersonate and to bind the ClusterRole
    ``system:node``, as a cluster's administrator is. The Node objects stay behind, as those of
    kubelets that stop do.
    """

    def __init__(
        self,
        config: ClusterConfig,
        shapes: list[NodeShape],
        options: ControllerOptions | None = None,
    ) -> None:
        self._client = KubeClient(config, concurrency=100, user_agent="fluxqueue-nodes")
        self._context = Context(
            self._client,
            InformerSet(self._client),
            EventRecorder(self._client),
            options or ControllerOptions(),
        )
        self._names = [shape.name for shape in shapes]
        self.fleet = NodeFleet(self._context, shapes)

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
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.fleet.stop()
        await self._context.informers.stop()
        await self._client.close()

    async def add(self, shape: NodeShape) -> None:
        """One more node joins."""
        self._names.append(shape.name)
        await self._allow()
        await self.fleet.add(shape)

    async def _allow(self) -> None:
        """Let our kubelets do what kubelets may, where nothing but RBAC asks who they are."""
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
        """The authorizer learns of a binding through a watch of its own, a moment later."""
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


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fluxqueue.localcluster.nodes", description="simulated nodes"
    )
    parser.add_argument("--kubeconfig", required=True, help="an administrator's kubeconfig")
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes (default 3)")
    parser.add_argument("--cpu", default="32", help="cpu of each node (default 32)")
    parser.add_argument("--memory", default="128Gi", help="memory of each node (default 128Gi)")
    parser.add_argument("--gpus", type=int, default=0, help="nvidia.com/gpu of each node")
    parser.add_argument("--pods", type=int, default=110, help="pods per node (default 110)")
    return parser.parse_args()


async def _run(arguments: argparse.Namespace) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    shapes = [
        NodeShape(
            f"node-{number}",
            cpu=arguments.cpu,
            memory=arguments.memory,
            gpus=arguments.gpus,
            pods=arguments.pods,
        )
        for number in range(1, arguments.nodes + 1)
    ]
    async with SimulatedNodes(load_kubeconfig(arguments.kubeconfig), shapes):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await done.wait()


def main() -> None:
    """Parse the arguments and run until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    asyncio.run(_run(_parse()))


if __name__ == "__main__":
    main()

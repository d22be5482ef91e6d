"""The cluster that the recordings assume: node-1 ready, controllers and scheduler, no kubelets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from localcluster.cluster import LocalCluster, LocalClusterConfig
from localcluster.nodes.shape import NodeShape, node_object
from tests.conformance.hooks import HookServer
from tests.conformance.runner import Replay, Server, load

NODE = NodeShape("node-1", cpu="64", memory="256Gi")
LEASE_RENEWAL_S = 10.0
READY_TIMEOUT_S = 20.0
RECORDINGS = Path(__file__).parent / "recordings"


@dataclass
class ReplayCluster:
    """A running cluster with its webhook server. :meth:`replay` runs one scenario on it."""

    server: Server
    hooks: HookServer
    cluster: LocalCluster
    is_controlled: bool = True

    async def replay(
        self,
        name: str,
        *,
        by_object: bool = False,
        skip_steps: frozenset[int] = frozenset(),
        timeout_s: float = 150.0,
    ) -> list[str]:
        """The differences of one scenario."""
        scenario = load(RECORDINGS / f"{name}.json")
        run = Replay(scenario, self.server, self.hooks, by_object, skip_steps, self.is_controlled)
        if any(step.get("note", "").startswith("compact") for step in scenario["steps"]):
            return ["the store cannot be compacted from outside"]
        async with asyncio.timeout(timeout_s):
            return await run.run()


@asynccontextmanager
async def replay_cluster(*, is_controlled: bool = True) -> AsyncIterator[ReplayCluster]:
    """Start everything. ``is_controlled`` False leaves controllers and scheduler out."""
    config = LocalClusterConfig(
        run_controllers=is_controlled, run_scheduler=is_controlled, run_nodes=False
    )
    hooks = HookServer()
    async with LocalCluster(config) as cluster:
        context = ssl.create_default_context(cadata=cluster.ca_pem.decode())
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        await hooks.start()
        try:
            async with aiohttp.ClientSession(connector=connector) as session:
                server = Server(cluster.url, cluster.token, session)
                made = ReplayCluster(server, hooks, cluster, is_controlled)
                admin = Replay({"name": "admin", "steps": []}, made.server, hooks)
                await _add_node(admin, is_controlled=is_controlled)
                renewal = asyncio.create_task(_renew_lease(admin))
                yield made
                renewal.cancel()
                with suppress(asyncio.CancelledError):
                    await renewal
        finally:
            await hooks.stop()


async def _add_node(admin: Replay, *, is_controlled: bool) -> None:
    node = node_object(NODE, "10.0.0.1", datetime.now(UTC))
    node["status"]["nodeInfo"] |= {
        "kubeletVersion": "v1.36.2",
        "osImage": "none",
        "kernelVersion": "0",
        "containerRuntimeVersion": "none://0",
    }
    node["metadata"]["labels"] = {
        key: value
        for key, value in node["metadata"]["labels"].items()
        if key.startswith("kubernetes.io/")
    }
    code, body, _ = await admin.send({"method": "POST", "path": "/api/v1/nodes", "body": node})
    assert code == 201, body
    async with asyncio.timeout(READY_TIMEOUT_S):
        while is_controlled:
            _, found = await admin.get(f"/api/v1/nodes/{NODE.name}")
            if not found["spec"].get("taints"):
                return
            await asyncio.sleep(0.05)


async def _renew_lease(admin: Replay) -> None:
    """What the kubelet of node-1 would do."""
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NODE.name},
        "spec": {"holderIdentity": NODE.name, "leaseDurationSeconds": 40},
    }
    await admin.send({"method": "POST", "path": path, "body": lease})
    while True:
        await admin.send(
            {
                "method": "PATCH",
                "path": f"{path}/{NODE.name}",
                "headers": {"content-type": "application/merge-patch+json"},
                "body": {"spec": {"renewTime": "<microtime>"}},
            }
        )
        await asyncio.sleep(LEASE_RENEWAL_S)

"""``LocalCluster``: API server, controllers, scheduler and nodes in one asyncio process.

For laptops, demos and tests where no cluster is at hand; it is honest about being that: every
node carries the label ``localcluster/simulated``, and what is not served answers 501.
Made by the command (``__main__``), by the pytest plugin and by tests.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from localcluster.client.calls import Client
from localcluster.controllers.daemonset_controller import DaemonSetController
from localcluster.controllers.deployment_controller import DeploymentController
from localcluster.controllers.disruption_controller import DisruptionController
from localcluster.controllers.garbage_collector import GarbageCollector
from localcluster.controllers.job_controller import JobController
from localcluster.controllers.namespaces import NamespaceController
from localcluster.controllers.node_lifecycle import NodeLifecycle
from localcluster.controllers.replicaset_controller import ReplicaSetController
from localcluster.controllers.role_aggregation import RoleAggregation
from localcluster.controllers.stateful_controller import StatefulSetController
from localcluster.controllers.ttl import TtlController
from localcluster.inprocess import InProcessTransport
from localcluster.loops.context import Context, Controller
from localcluster.loops.event_recorder import EventRecorder
from localcluster.loops.informers import InformerSet
from localcluster.loops.options import ControllerOptions
from localcluster.nodes.fleet import NodeFleet
from localcluster.nodes.shape import NodeShape
from localcluster.scheduler.scheduler import Scheduler
from localcluster.server.server import ApiServer, ApiServerConfig


@dataclass(frozen=True, slots=True)
class LocalClusterConfig:
    """``data_dir`` None: nothing survives the process. ``port`` 0: any free one.

    ``has_rbac`` False: no access control, every known user may do everything. ``audit_log``: a
    file for a line about each request.
    ``host`` is the address to listen on, or a name that leads to it and that clients use.
    """

    data_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    nodes: list[NodeShape] = field(default_factory=list)
    run_controllers: bool = True
    run_scheduler: bool = True
    run_nodes: bool = True
    has_rbac: bool = True
    audit_log: Path | None = None
    options: ControllerOptions = field(default_factory=ControllerOptions)


class LocalCluster:
    """A cluster for as long as the ``async with`` block (or until ``stop``)."""

    def __init__(self, config: LocalClusterConfig | None = None) -> None:
        self.config = config or LocalClusterConfig()
        self.server = ApiServer(
            ApiServerConfig(
                data_dir=self.config.data_dir,
                host=self.config.host,
                port=self.config.port,
                has_rbac=self.config.has_rbac,
                audit_log=self.config.audit_log,
            )
        )
        self.nodes: NodeFleet | None = None
        self._client: Client | None = None
        self._context: Context | None = None
        self._controllers: list[Controller] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve, register the nodes, run the controllers; returns when all have caught up."""
        await self.server.start()
        try:
            await self._start_controllers()
        except BaseException:
            await self.stop()
            raise

    async def _start_controllers(self) -> None:
        config = self.config
        self._client = Client(
            InProcessTransport(self.server),
            headers={"User-Agent": "localcluster", "Authorization": f"Bearer {self.token}"},
        )
        context = self._context = Context(
            self._client,
            InformerSet(self._client),
            EventRecorder(self._client),
            config.options,
            self.ca_pem.decode(),
        )
        if config.run_controllers:
            self._controllers += [
                JobController(context),
                ReplicaSetController(context),
                DeploymentController(context),
                StatefulSetController(context),
                DaemonSetController(context),
                TtlController(context),
                DisruptionController(context),
                GarbageCollector(context),
                NamespaceController(context),
                NodeLifecycle(context),
                RoleAggregation(context),
            ]
        if config.run_scheduler:
            self._controllers.append(Scheduler(context))
        if config.run_nodes:
            self.nodes = NodeFleet(context, config.nodes)
            await self.nodes.register()
            self._controllers.append(self.nodes)
        context.events.start()
        await context.informers.start()
        for controller in self._controllers:
            controller.start()

    async def stop(self) -> None:
        """Stop in the order in which nothing waits for what is gone. Harmless to repeat."""
        controllers, self._controllers = self._controllers, []
        await asyncio.gather(*(controller.stop() for controller in controllers))
        context, self._context = self._context, None
        if context is not None:
            await context.events.stop()
            await context.informers.stop()
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await self.server.stop()

    # -- how to reach it -------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """``https://HOST:PORT``."""
        return self.server.url

    @property
    def ca_pem(self) -> bytes:
        """The authority that signed the server's certificate."""
        return self.server.ca_pem

    @property
    def token(self) -> str:
        """The administrator's bearer token."""
        return self.server.token

    @property
    def kubeconfig(self) -> dict[str, Any]:
        """A kubeconfig for the administrator."""
        return self.server.kubeconfig()

    def write_kubeconfig(self, path: Path) -> None:
        """Write the kubeconfig, readable by its owner alone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.server.write_kubeconfig(path)

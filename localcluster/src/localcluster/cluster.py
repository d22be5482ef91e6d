"""``LocalCluster``: API server, controllers, scheduler and nodes in one asyncio process.

It is for laptops, demos and tests without a real cluster, and does not pretend to be one. Every
node has the label ``localcluster/simulated``, and what is not served gets a 501. The command
(``__main__``), the pytest plugin and tests create it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from localcluster.client.calls import Client
from localcluster.controllers import jobset_controller
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
from localcluster.nodes.autoscaler import Autoscaler
from localcluster.nodes.fleet import NodeFleet
from localcluster.nodes.pool import SimulatedPool
from localcluster.nodes.shape import NodeShape
from localcluster.scheduler.scheduler import Scheduler
from localcluster.server.server import ApiServer, ApiServerConfig


@dataclass(frozen=True, slots=True)
class LocalClusterConfig:
    """Configuration of a cluster.

    ``data_dir`` None keeps nothing after the process. ``port`` 0 takes any free one. ``has_rbac``
    False turns access control off: every known user has all rights. ``audit_log`` is a file that
    gets a line for each request. ``host`` is the address to listen on, or a name for it that
    clients use. ``has_jobsets`` adds the definition of JobSets and a simple controller for them.
    With ``runs_programs``, the commands of pods run on this machine, as the user of this process.
    ``node_pools`` are nodes that an autoscaler adds when pods need them. The API server shows
    ``tls.crt`` and ``tls.key`` of the folder ``webhook_certificate`` to webhooks.
    """

    data_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    nodes: list[NodeShape] = field(default_factory=list)
    run_controllers: bool = True
    run_scheduler: bool = True
    run_nodes: bool = True
    has_rbac: bool = True
    has_jobsets: bool = False
    runs_programs: bool = False
    node_pools: list[SimulatedPool] = field(default_factory=list)
    audit_log: Path | None = None
    webhook_certificate: Path | None = None
    options: ControllerOptions = field(default_factory=ControllerOptions)


class LocalCluster:
    """A cluster for the duration of the ``async with`` block (or until ``stop``)."""

    def __init__(self, config: LocalClusterConfig | None = None) -> None:
        self.config = config or LocalClusterConfig()
        self.server = ApiServer(
            ApiServerConfig(
                data_dir=self.config.data_dir,
                host=self.config.host,
                port=self.config.port,
                has_rbac=self.config.has_rbac,
                audit_log=self.config.audit_log,
                webhook_certificate=self.config.webhook_certificate,
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
        """Serve, register the nodes, run the controllers. Return when all have caught up."""
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
        if config.has_jobsets:
            await jobset_controller.install(self._client)
            self._controllers.append(jobset_controller.JobSetController(context))
        if config.run_scheduler:
            self._controllers.append(Scheduler(context))
        if config.run_nodes:
            self.nodes = NodeFleet(context, config.nodes, runs_programs=config.runs_programs)
            await self.nodes.register()
            self._controllers.append(self.nodes)
            if config.node_pools:
                add, remove = self.nodes.add, self.nodes.remove
                self._controllers.append(Autoscaler(context, config.node_pools, add, remove))
        context.events.start()
        await context.informers.start()
        for controller in self._controllers:
            controller.start()

    async def stop(self) -> None:
        """Stop, in an order in which no part waits for a stopped part.

        Calling it again is harmless.
        """
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

    # -- connection ------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Return ``https://HOST:PORT``."""
        return self.server.url

    @property
    def ca_pem(self) -> bytes:
        """Return the authority that signed the server's certificate."""
        return self.server.ca_pem

    @property
    def token(self) -> str:
        """Return the administrator's bearer token."""
        return self.server.token

    @property
    def kubeconfig(self) -> dict[str, Any]:
        """Return a kubeconfig for the administrator."""
        return self.server.kubeconfig()

    def write_kubeconfig(self, path: Path) -> None:
        """Write the kubeconfig, readable by its owner only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.server.write_kubeconfig(path)

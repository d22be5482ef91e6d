"""The world of the end-to-end tests: every part of fluxqueue as a real process, on a cluster.

Made once per kind of cluster by ``conftest.world``. *embedded* is our own cluster, *real* a real
control plane with our simulated nodes. Tests must not ask which of the two it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxqueue.db.database import Database
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.process.settings import Settings
from fluxqueue_devtools import tutorial
from fluxqueue_devtools.stack import Stack
from fluxqueue_devtools.stack_options import ClusterShape, StackOptions
from localcluster import ControllerOptions, NodeShape, SimulatedNodes
from tests.support.embedded_plane import Plane
from tests.support.sql import dicts

WORKERS = 2
READ_ATTEMPTS = 5
GATED_QUEUE = "waits-gated"
"""A queue in which Jobs wait with gated pods. A test that uses it makes it."""

GATED = {"FLUXQUEUE_GATED_QUEUES": GATED_QUEUE}
"""The setting of the webhook that names it, for every world."""

SOONER = {
    "FLUXQUEUE_STATUS_INTERVAL_S": "0.2",
    "FLUXQUEUE_WORKER_POLLING_S": "0.2",
    **GATED,
}
"""Else they would wait most of their time until a state is shown, at most every two seconds: of
``test_queueing`` 60 s in 90."""

NODES = tuple(
    NodeShape(one.name, one.cpu, one.memory, gpus=one.gpus, labels=one.labels)
    for one in tutorial.NODES
)
"""The nodes of ``fluxqueue up``, which the pages use. Tests choose a pool by nodeSelector: ``main``
has 4x16 cores in two zones and racks, ``single`` 1x16, ``gpu`` 2x8 with four GPUs each."""


def late_node(number: int, cpu: str) -> NodeShape:
    """One that joins during a test (fixture ``late``), ``late-1`` or ``late-2``, pool ``late``.

    Engines that know no other label choose it by its instance type, ``late``, too.
    """
    labels = {"pool": "late", "node.kubernetes.io/instance-type": "late"}
    return NodeShape(f"late-{number}", cpu=cpu, memory="32Gi", labels=labels)


@dataclass(frozen=True, slots=True)
class World:
    """Everything running, and the doors to it. ``late_nodes`` lets nodes join and leave."""

    kind: str
    stack: Stack
    client: KubeClient
    database: Database
    late_nodes: SimulatedNodes

    @property
    def kubeconfig(self) -> Path:
        """For kubectl."""
        return self.stack.kubeconfig

    async def rows(self, sql: str, **values: Any) -> list[dict[str, Any]]:
        """What a statement finds in the queue's database. Reading survives a restart of it."""
        for _ in range(READ_ATTEMPTS - 1):
            with suppress(DatabaseUnavailable):
                return await self._read(sql, values)
            await asyncio.sleep(0.2)
        return await self._read(sql, values)

    async def _read(self, sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        async with self.database.begin() as tx:
            return await dicts(tx, sql, **values)

    async def has_view(self) -> None:
        """Start its view server, unless one runs."""
        if not self.stack.view_url:
            await self.stack.start_view()

    def pid(self, part: str) -> int:
        """Process id of a running part of the stack."""
        pid = self.stack.parts[part].pid
        assert pid is not None, f"{part} is not running"
        return pid


@asynccontextmanager
async def embedded_world(folder: Path, **more: Any) -> AsyncIterator[World]:
    """A world on the embedded cluster, with the waiting times of Kubernetes shortened.

    ``more`` are further options of the stack.
    """
    arguments = ["--quick", *tutorial.node_arguments()]
    options = StackOptions(
        data_dir=folder,
        shape=ClusterShape(nodes=0),
        cluster_arguments=tuple(arguments),
        **{"workers": WORKERS, "environ": SOONER, **more},
    )
    async with (
        Stack(options) as stack,
        SimulatedNodes(
            load_kubeconfig(str(stack.kubeconfig)), [], ControllerOptions.quick()
        ) as late_nodes,
        _doors("embedded", stack, late_nodes) as world,
    ):
        yield world


@asynccontextmanager
async def real_world(
    folder: Path, control_plane: Plane, *, kind: str = "real", **more: Any
) -> AsyncIterator[World]:
    """A world on a control plane that runs already, with our node agents as kubelets.

    ``more`` are further options of the stack.
    """
    times = ControllerOptions() if kind == "real" else ControllerOptions.quick()
    options = StackOptions(
        data_dir=folder,
        kubeconfig=control_plane.kubeconfig_path,
        **{"workers": WORKERS, "environ": SOONER, **more},
    )
    async with (
        SimulatedNodes(control_plane.config, list(NODES), times) as nodes,
        Stack(options) as stack,
        _doors(kind, stack, nodes) as world,
    ):
        yield world


@asynccontextmanager
async def _doors(kind: str, stack: Stack, late_nodes: SimulatedNodes) -> AsyncIterator[World]:
    settings = Settings(database_url=stack.database_url)
    async with (
        KubeClient(load_kubeconfig(str(stack.kubeconfig))) as client,
        Database(settings, role="test") as database,
    ):
        yield World(kind, stack, client, database, late_nodes)

"""Typing a verb of ``fluxqueue`` against an embedded cluster, and FluxJobs to type about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from fluxqueue.cli.main import app
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.config import load_config
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import FLUXJOBS, FLUXQUEUES
from fluxqueue.scheduler.resource_set import to_resource_set
from fluxqueue.workload.fluxjob_object import FluxJobStatus, status_patch
from localcluster import LocalCluster, LocalClusterConfig, NodeShape
from tests.support.control_plane import ControlPlane

Obj = dict[str, Any]


@dataclass
class Told:
    """What a verb said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        """Words of each line of output."""
        return [line.split() for line in self.out.splitlines()]


@dataclass
class Typist:
    """A shell on a cluster. ``client`` is the administrator's."""

    client: KubeClient
    kubeconfig: Path

    async def type(self, *words: str) -> Told:
        """Run one command line, beside the loop in which the cluster lives."""
        env = {"KUBECONFIG": str(self.kubeconfig), "COLUMNS": "200", "FLUXQUEUE_IMAGE": ""}
        result: Any = await asyncio.to_thread(CliRunner().invoke, app, list(words), env=env)
        return _told(result)

    async def queue(self, name: str, **spec: Any) -> None:
        """Make a FluxQueue."""
        body = {
            "apiVersion": FLUXQUEUES.api_version,
            "kind": FLUXQUEUES.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        await self.client.create(FLUXQUEUES, None, body)

    async def job(
        self,
        name: str,
        state: FluxJobState = FluxJobState.PENDING,
        *,
        namespace: str = "default",
        user: str = "alice",
        kind: str = "Job",
        slots: list[tuple[str, dict[str, int]]] | None = None,
        **status: Any,
    ) -> Obj:
        """Make a FluxJob in a state. ``slots`` is what it was allocated."""
        made = await self.client.create(
            FLUXJOBS, namespace, fluxjob(name, namespace=namespace, user=user, kind=kind)
        )
        if slots:
            status["resource_set"] = to_resource_set(slots, starts_at=1_700_000_000, until=None)
            status.setdefault("nodes", [node for node, _ in slots])
            status.setdefault("started_at_s", 1_700_000_000)
        return await self.tell(made, state, **status)

    async def tell(self, made: Obj, state: FluxJobState, **status: Any) -> Obj:
        """Write its status."""
        uid = made["spec"]["workload"]["uid"]
        body = status_patch(FluxJobStatus(state=state, workload_uid=uid, **status).render())
        meta = made["metadata"]
        return await self.client.patch(
            FLUXJOBS,
            meta["namespace"],
            meta["name"],
            body,
            kind=PatchKind.JSON,
            subresource="status",
        )

    async def read(self, name: str) -> Obj:
        """A FluxJob as it is now."""
        return await self.client.get(FLUXJOBS, "default", name)


def fluxjob(
    name: str, *, namespace: str = "default", user: str = "alice", kind: str = "Job"
) -> Obj:
    """One as the controller makes it."""
    version = "v1" if kind == "Pod" else "batch/v1"
    workload = {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}-{kind}"}
    return {
        "apiVersion": FLUXJOBS.api_version,
        "kind": FLUXJOBS.kind,
        "metadata": {"name": f"{name}-{kind.lower()}", "namespace": namespace},
        "spec": {"workload": workload, "size": 2, "user": user, "queue": "default", "jobspec": {}},
    }


def _told(result: Result) -> Told:
    code, err = result.exit_code, result.stderr
    if isinstance(result.exception, InvalidInput):
        code, err = 2, f"fluxqueue: {result.exception}"  # as cli.main prints it
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Told(code, result.stdout, err)


@asynccontextmanager
async def typist(folder: Path, **config: Any) -> AsyncIterator[Typist]:
    """A cluster of three nodes in two racks, with our definitions."""
    nodes = [
        NodeShape("n1", labels={"topology.kubernetes.io/rack": "r1"}),
        NodeShape("n2", labels={"topology.kubernetes.io/rack": "r1"}),
        NodeShape("n3", labels={"topology.kubernetes.io/rack": "r2"}),
    ]
    given: dict[str, Any] = {"run_controllers": False, "run_scheduler": False, **config}
    async with LocalCluster(LocalClusterConfig(nodes=nodes, **given)) as running:
        kubeconfig = folder / "kubeconfig"
        running.write_kubeconfig(kubeconfig)
        async with KubeClient(load_config(str(kubeconfig))) as client:
            await install_definitions(client, "fluxqueue-system")
            yield Typist(client, kubeconfig)


@asynccontextmanager
async def real_typist(control_plane: ControlPlane) -> AsyncIterator[Typist]:
    """A shell on a real API server."""
    async with KubeClient(load_config(str(control_plane.kubeconfig_path))) as client:
        await install_definitions(client, "fluxqueue-system")
        yield Typist(client, control_plane.kubeconfig_path)

"""The cluster under test, with nothing of fluxqueue in it until ``add_rights``.

A real control plane (the folder of ``KUBEBUILDER_ASSETS``), with simulated nodes in a process of
their own, or the embedded cluster. On the real one fluxqueue runs under the chart's service
accounts, so that API priority and fairness treats it as in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fluxqueue.controller.removal import remove_policies
from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS, NODES
from fluxqueue_devtools.supervisor import StackPart, python
from tests.support import chart_rights
from tests.support.control_plane import ControlPlane, Options

NODE_CPU_M, NODE_CPU, NODE_MEMORY = 32_000, "32", "128Gi"
POLICY_KINDS = frozenset({ADMISSION_POLICIES.kind, ADMISSION_POLICY_BINDINGS.kind})
CLIENT_LIMITS = ("--kube-api-qps=5000", "--kube-api-burst=10000")
"""Of controller manager and scheduler: their defaults, 20 and 50 requests a second, would be what
is measured."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A running cluster.

    ``pids``: process id of each part of the cluster by its name. ``counts_requests``: whether its
    ``/metrics`` have the API server's request counters. ``kubeconfigs``: accounts of our parts.
    """

    client: KubeClient
    kubeconfig: Path
    pids: Mapping[str, Callable[[], int | None]]
    counts_requests: bool
    kubeconfigs: dict[str, Path] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    plane: ControlPlane | None = None

    async def add_rights(self, folder: Path) -> None:
        """What the chart brings beside the parts: accounts and rights.

        The parts are started by ``Stack``, which installs the policies. A second set of them would
        double what they cost.
        """
        if self.plane is None:
            return
        await chart_rights.install(self.client, without=POLICY_KINDS)
        made = await chart_rights.write_kubeconfigs(self.client, self.plane, folder)
        self.kubeconfigs.update({part: made[part] for part in ("controller", "worker")})
        self.environ.update(chart_rights.ENVIRON)

    async def remove_rights(self) -> None:
        """Take it away again: Kubernetes is measured without our policies.

        ``Stack`` leaves its policies in the cluster, because they guard what is still queued.
        """
        if self.plane is None:
            return
        await chart_rights.remove(self.client)
        await remove_policies(self.client)


@asynccontextmanager
async def real_ground(
    folder: Path, assets: Path, nodes: int, flags: Mapping[str, Sequence[str]] | None = None
) -> AsyncIterator[Ground]:
    """A control plane from the programs in ``assets``, and ``nodes`` simulated nodes.

    ``flags`` are further ones of its programs by name.
    """
    limits: dict[str, Sequence[str]] = {
        "kube-controller-manager": CLIENT_LIMITS,
        "kube-scheduler": CLIENT_LIMITS,
        **(flags or {}),
    }
    async with (
        ControlPlane(assets, options=Options(extra_args=limits)) as plane,
        KubeClient(plane.config) as client,
    ):
        part = StackPart(
            "nodes",
            [
                *python("localcluster", "--nodes", str(nodes)),
                *("--cpu", NODE_CPU, "--memory", NODE_MEMORY),
                *("--join", str(plane.kubeconfig_path)),
            ],
            log=folder / "nodes.log",
        )
        await part.start()
        try:
            await part.wait_ready(lambda: _has_nodes(client, nodes))
            names = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
            pids: dict[str, Callable[[], int | None]] = {
                name: lambda name=name: plane.pid(name)  # type: ignore[misc]
                for name in names
            }
            pids["nodes"] = lambda: part.pid
            yield Ground(client, plane.kubeconfig_path, pids, counts_requests=True, plane=plane)
        finally:
            await part.stop()


@asynccontextmanager
async def embedded_ground(folder: Path, nodes: int) -> AsyncIterator[Ground]:
    """The embedded cluster, which is all its parts in one process."""
    kubeconfig = folder / "kubeconfig"
    part = StackPart(
        "cluster",
        [
            *python("localcluster", "--quick", "--nodes", str(nodes)),
            *("--cpu", NODE_CPU, "--memory", NODE_MEMORY),
            *("--kubeconfig-out", str(kubeconfig)),
        ],
        log=folder / "cluster.log",
    )
    await part.start()
    try:
        await part.wait_ready(lambda: _answers(kubeconfig))
        async with KubeClient(load_kubeconfig(str(kubeconfig))) as client:
            await part.wait_ready(lambda: _has_nodes(client, nodes))
            pids = {"cluster": lambda: part.pid}
            yield Ground(client, kubeconfig, pids, counts_requests=False)
    finally:
        await part.stop()


async def _answers(kubeconfig: Path) -> bool:
    if await asyncio.to_thread(kubeconfig.is_file):
        with suppress(ApiError, ApiUnavailable):
            async with KubeClient(load_kubeconfig(str(kubeconfig))) as client:
                await client.get_text("/readyz", timeout_s=2)
                return True
    return False


async def _has_nodes(client: KubeClient, number: int) -> bool:
    with suppress(ApiUnavailable, NotFound):
        return len((await client.list(NODES)).items) >= number
    return False

"""Where the chart is installed: on the embedded cluster, or on real programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import helm_python
import pytest
import pytest_asyncio

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import NAMESPACES, ApiResource
from fluxqueue.kube.resources import NODES as NODE_OBJECTS
from localcluster import LocalCluster, LocalClusterConfig, NodeShape, SimulatedNodes
from tests.chart.rendering import CHART, merged
from tests.support.control_plane import missing_reason
from tests.support.waiting import until

RELEASE, NAMESPACE = "blue", "blue-system"
NODES = [NodeShape(f"chart-{number}", cpu="32", memory="64Gi") for number in (1, 2)]
HELM_TIMEOUT_S = 300
NOT_EMBEDDED = {
    "networkPolicy": {"enabled": False},
    **{part: {"priorityClassName": ""} for part in ("controller", "worker", "webhook", "postgres")},
}
"""What the embedded cluster does not serve, and would not enforce if it took it: network policies,
and the quota that comes with classes of the system."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, Helm's way into it and ours."""

    kind: str
    helm: helm_python.Config
    client: KubeClient
    values: dict[str, Any]

    async def run(self, action: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call Helm, which blocks."""
        return await asyncio.to_thread(action, *arguments, timeout=HELM_TIMEOUT_S, **options)

    async def install(self, values: dict[str, Any] | None = None) -> dict[str, Any]:
        """Install the release."""
        return await self.run(
            self.helm.install,
            CHART,
            RELEASE,
            merged(values or {}, self.values),
            create_namespace=True,
        )

    async def upgrade(self, values: dict[str, Any] | None = None) -> dict[str, Any]:
        """Upgrade it. Without values, Helm would take up the former ones."""
        return await self.run(
            self.helm.upgrade,
            CHART,
            RELEASE,
            merged(values or {}, self.values),
            reset_values=True,
        )

    async def find(self, resource: ApiResource, name: str) -> dict[str, Any] | None:
        """Read an object of the release, None where there is none."""
        namespace = NAMESPACE if resource.namespaced else None
        try:
            return await self.client.get(resource, namespace, name)
        except NotFound:
            return None


@pytest_asyncio.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_cluster)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A cluster without the release. What the test leaves of it is removed."""
    async with AsyncExitStack() as exits:
        kubeconfig = tmp_path / "kubeconfig"
        if request.param == "real":
            if reason := missing_reason():
                pytest.skip(reason)
            control_plane = request.getfixturevalue("control_plane")
            kubeconfig = control_plane.kubeconfig_path
            await exits.enter_async_context(SimulatedNodes(control_plane.config, NODES))
            values: dict[str, Any] = {}
        else:
            cluster = LocalCluster(LocalClusterConfig(nodes=NODES))
            await exits.enter_async_context(cluster)
            cluster.write_kubeconfig(kubeconfig)
            values = NOT_EMBEDDED
        config = load_kubeconfig(str(kubeconfig))
        client = await exits.enter_async_context(KubeClient(config))
        helm = exits.enter_context(
            helm_python.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE)
        )
        here = Place(request.param, helm, client, values)
        yield here
        await _remove(here)


async def _remove(place: Place) -> None:
    """Also what a failed test has left: others share the control plane."""
    await place.run(place.helm.uninstall, RELEASE, ignore_not_found=True)
    if place.kind == "embedded":
        return
    with suppress(NotFound):
        await place.client.delete(NAMESPACES, None, NAMESPACE)

    await until(
        lambda: place.find(NAMESPACES, NAMESPACE),
        lambda found: found is None,
        f"namespace {NAMESPACE} is gone",
    )
    for node in NODES:
        await place.client.delete(NODE_OBJECTS, None, node.name)

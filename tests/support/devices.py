"""Devices of Dynamic Resource Allocation, and a watch of the nodes that have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.device_watch import DeviceWatch
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES, ApiResource
from localcluster import LocalClusterConfig
from tests.support.waiting import eventually

DRIVER, RESOURCE = "gpu.example.com", "example.com/gpu"
QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)

NODES = ("n0", "n1")


class Watched:
    """A running watch, and the marks that it makes."""

    def __init__(self, admin: KubeClient) -> None:
        self.marks: set[str] = set()
        self.ours: set[str] = set()
        self.touched: list[Callable[[dict[str, Any]], bool]] = []
        self.watch = DeviceWatch(
            admin,
            ManualClock(),
            self.marks.add,
            lambda: NODES,
            self.ours.__contains__,
            self.touched.append,
        )

    def has(self, node: str = "n0", **own: int) -> tuple[int | None, int | None]:
        """The devices of a node, and those that are not usable."""
        fact = self.watch.on(NodeFact(node, "u", {"cpu": 1000, **own}))
        return fact.capacity.get(RESOURCE), fact.unusable.get(RESOURCE)

    async def until_marked(self, *nodes: str) -> None:
        """Wait until exactly these must be written. Forget all marks."""

        await eventually(lambda: self.marks == set(nodes), f"{nodes} are marked")
        self.marks.clear()


def body(resource: ApiResource, name: str, **more: Any) -> dict[str, Any]:
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**kind, "metadata": {"name": name}, **more}


def gpu_slice(name: str, count: int, generation: int = 1, **where: Any) -> dict[str, Any]:
    spec = {
        "driver": DRIVER,
        "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1},
        "devices": [{"name": f"{name}-{n}"} for n in range(count)],
        **where,
    }
    return body(RESOURCE_SLICES, name, spec=spec)


def gpu_class(name: str, expression: str) -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}]
    spec = {"selectors": selectors, "extendedResourceName": RESOURCE}
    return body(DEVICE_CLASSES, name, spec=spec)

"""The demo's own watches of the cluster: pods into the ledger, FluxJobs and nodes into time lines.

They are separate from the controller's informers on purpose: the demo claims only what it has seen
itself.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from fluxqueue.clock import Clock
from fluxqueue.fluxjob.request import CPU
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import FLUXJOBS, NODES, PODS
from fluxqueue.workload.objects import Object
from fluxqueue.workload.quantity import to_base_units
from fluxqueue_devtools.demo.ledger import DemoLedger, NodeSeen


class Watching:
    """Watches all pods, FluxJobs and nodes while the ``async with`` block lasts."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self.ledger = DemoLedger()
        self.said_at_s: dict[tuple[str, str, str], float] = {}
        """(namespace, workload's name, state) -> monotonic time when it was first seen."""
        self.reason: dict[tuple[str, str, str], str] = {}
        """The same, with the reason that was shown first."""
        self.nodes: dict[str, NodeSeen] = {}
        """All nodes by name, also those that are gone."""
        self._clock = clock
        self._informers = [
            Informer(client, PODS, on_change=self._on_pod),
            Informer(client, FLUXJOBS, on_change=self._on_fluxjob),
            Informer(client, NODES, on_change=self._on_node),
        ]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for informer in self._informers:
            informer.start()
            self._stack.push_async_callback(informer.stop)
        for informer in self._informers:
            await informer.synced.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def _on_pod(self, old: Object | None, new: Object | None) -> None:
        self.ledger.take(old, new, self._clock.monotonic_s())

    def _on_fluxjob(self, _: Object | None, new: Object | None) -> None:
        status = (new or {}).get("status") or {}
        state = status.get("state")
        if new is not None and state:
            key = (new["metadata"]["namespace"], new["spec"]["workload"]["name"], state)
            self.said_at_s.setdefault(key, self._clock.monotonic_s())
            self.reason.setdefault(key, str(status.get("reason") or ""))

    def _on_node(self, old: Object | None, new: Object | None) -> None:
        node, now_s = new or old, self._clock.monotonic_s()
        assert node is not None, "an informer tells of an object, old or new"
        name = node["metadata"]["name"]
        if new is None:
            self.nodes[name].gone_s = now_s
        elif old is None:
            self.nodes[name] = NodeSeen(_capacity_m(node), now_s)


def _capacity_m(node: Object) -> int:
    capacity = (node.get("status") or {}).get("capacity") or {}
    return to_base_units(CPU, capacity.get(CPU, "0"), where="status.capacity.cpu")

"""The demo's own watches of the cluster: pods into the ledger, FluxJobs into a time line.

They are separate from the controller's informers on purpose: the demo claims only what it has seen
itself.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from fluxqueue.clock import Clock
from fluxqueue.demo.ledger import DemoLedger
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import FLUXJOBS, PODS
from fluxqueue.objects import Object


class Watching:
    """Watches all pods and FluxJobs while the ``async with`` block lasts."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self.ledger = DemoLedger()
        self.said_at_s: dict[tuple[str, str, str], float] = {}
        """(namespace, workload's name, state) -> monotonic time when it was first seen."""
        self._clock = clock
        self._informers = [
            Informer(client, PODS, on_change=self._on_pod),
            Informer(client, FLUXJOBS, on_change=self._on_fluxjob),
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
        state = ((new or {}).get("status") or {}).get("state")
        if new is not None and state:
            key = (new["metadata"]["namespace"], new["spec"]["workload"]["name"], state)
            self.said_at_s.setdefault(key, self._clock.monotonic_s())

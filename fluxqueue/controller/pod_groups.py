"""PodGroup objects of coscheduling, as our predecessors' users wrote them: how many pods at least.

Part of ``observer``. They are read, never written, and only where their definition is: that may be
installed, or not, at any time, so it is asked for now and then. Who is a member the pods say
(``groups``); an object that nobody refers to means nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import POD_GROUPS

logger = logging.getLogger(__name__)

ASK_EVERY_S = 10.0

Declared = tuple[int, int | None]
"""``minMember``, and ``scheduleTimeoutSeconds`` if it says so."""


class PodGroups:
    """The PodGroup objects there are; ``on_change`` is told namespace and name."""

    def __init__(
        self, client: KubeClient, clock: Clock, on_change: Callable[[str, str], None]
    ) -> None:
        self._client, self._clock, self._on_change = client, clock, on_change
        self._informers: dict[str, Informer] = {}

    def find(self, namespace: str, name: str) -> Declared | None:
        """What the object of that name says; None where there is none, or it says no size."""
        for informer in self._informers.values():
            spec = (informer.get(namespace, name) or {}).get("spec") or {}
            least, patience_s = spec.get("minMember"), spec.get("scheduleTimeoutSeconds")
            if isinstance(least, int) and least > 0:
                return least, patience_s if isinstance(patience_s, int) else None
        return None

    async def run(self) -> None:
        """Follow each definition that appears, until cancelled."""
        try:
            while True:
                for resource in POD_GROUPS:
                    if resource.key not in self._informers and await self._is_there(resource):
                        informer = Informer(
                            self._client, resource, on_change=self._changed, retry_cap_s=60.0
                        )
                        self._informers[resource.key] = informer
                        informer.start()
                await self._clock.sleep(ASK_EVERY_S)
        finally:
            for informer in self._informers.values():
                await informer.stop()

    async def _is_there(self, resource: Any) -> bool:
        try:
            await self._client.list(resource)
        except (ApiUnavailable, ApiError):
            return False  # no such definition, or no right to read it: asked again
        return True

    def _changed(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        found = new or old
        if found is not None:
            meta = found["metadata"]
            self._on_change(meta["namespace"], meta["name"])

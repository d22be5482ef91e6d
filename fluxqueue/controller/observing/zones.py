"""NodeResourceTopology objects, where the cluster serves them: the NUMA zones of its nodes.

Few clusters do: an agent on each node writes them (NFD's topology updater, the resource topology
exporter). They are found by discovery, when a term begins and at each resync; without them
nothing is watched and no node has zones. Part of ``watches``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import NODE_TOPOLOGIES, Resource
from fluxqueue.objects import Object
from fluxqueue.workload.numa import read_zones

logger = logging.getLogger(__name__)


SYNC_S = 10.0
"""So long the first list is waited for; it may be forbidden, and no reason to observe nothing."""


@dataclass(slots=True)
class ZoneWatch:
    """Follows the objects, if there are any; ``mark`` is told the names of nodes to be written."""

    client: KubeClient
    mark: Callable[[str], None]
    _informer: Informer | None = None

    async def look(self) -> None:
        """Begin to follow them where they have come to be served, end where they are gone."""
        try:
            served = await self._served()
        except (ApiError, ApiUnavailable) as error:
            logger.warning("discovery failed", extra={"action": "zones", "error": str(error)})
            return
        if self._informer is not None and self._informer.resource != served:
            await self.stop()
        if served is None or self._informer is not None:
            return
        informer = self._informer = Informer(
            self.client, served, transform=trim_topology, on_change=self._on_change
        )
        informer.start()
        try:
            await asyncio.wait_for(informer.synced.wait(), SYNC_S)
        except TimeoutError:
            logger.warning("no NUMA zones yet", extra={"action": "zones", "of": served.key})

    async def _served(self) -> Resource | None:
        try:
            group = await self.client.request("GET", f"/apis/{NODE_TOPOLOGIES[0].group}")
        except NotFound:
            return None
        versions = {one["version"] for one in group.get("versions") or ()}
        return next((one for one in NODE_TOPOLOGIES if one.version in versions), None)

    def of(self, node: str) -> Object | None:
        """What is said of a node."""
        return None if self._informer is None else self._informer.get("", node)

    async def stop(self) -> None:
        """Forget all zones."""
        informer, self._informer = self._informer, None
        if informer is not None:
            await informer.stop()
            for topology in informer.items():
                self.mark(topology["metadata"]["name"])

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        one = new or old
        assert one is not None, "an informer tells of an object, old or new"
        if old is None or new is None or read_zones(old) != read_zones(new):
            self.mark(one["metadata"]["name"])


def trim_topology(topology: Object) -> Object:
    """Keep what is read: what is in use of each zone changes with every pod."""
    meta = topology["metadata"]
    kept = ("name", "uid", "resourceVersion")
    return {
        "metadata": {key: meta[key] for key in kept if key in meta},
        "topologyPolicies": topology.get("topologyPolicies") or [],
        "attributes": topology.get("attributes") or [],
        "zones": [
            {
                "type": zone.get("type"),
                "resources": [
                    {key: one.get(key) for key in ("name", "allocatable")}
                    for one in zone.get("resources") or ()
                ],
            }
            for zone in topology.get("zones") or ()
        ],
    }

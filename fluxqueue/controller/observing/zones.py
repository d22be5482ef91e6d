"""NodeResourceTopology objects: the NUMA zones of nodes, if the cluster serves them.

Part of ``watches``. Few clusters serve them. An agent on each node writes them, such as NFD's
topology updater or the resource topology exporter. Discovery finds them when a term begins and at
each resync. Without them nothing is watched and no node has zones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import NODE_TOPOLOGIES, ApiResource
from fluxqueue.workload.numa import read_zones
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)


SYNC_S = 10.0
"""How long (seconds) the first list is awaited.

It may be forbidden, which must not stop the observation of everything else."""


@dataclass(slots=True)
class ZoneWatch:
    """Follows the objects, if there are any. ``mark`` receives the names of nodes to be written."""

    client: KubeClient
    mark: Callable[[str], None]
    _informer: Informer | None = None

    async def look(self) -> None:
        """Start to follow the objects if they are served now, stop if they no longer are."""
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

    async def _served(self) -> ApiResource | None:
        try:
            group = await self.client.request("GET", f"/apis/{NODE_TOPOLOGIES[0].group}")
        except NotFound:
            return None
        versions = {one["version"] for one in group.get("versions") or ()}
        return next((one for one in NODE_TOPOLOGIES if one.version in versions), None)

    def of(self, node: str) -> Object | None:
        """Return the topology object of a node, or None."""
        return None if self._informer is None else self._informer.get("", node)

    async def stop(self) -> None:
        """Stop, and mark the nodes that had zones."""
        # Cleared first: marked nodes must be written without their zones.
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
    """Keep the fields that are read. The usage of each zone changes with every pod."""
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

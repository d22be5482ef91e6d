"""WorkloadPriorityClasses of Kueue: the values of the classes, if the cluster serves them.

Part of ``watches``. The annotation ``fluxqueue/priority-class`` names them. Discovery finds them
when a term begins and at each resync. Without them nothing is watched.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import WORKLOAD_CLASSES
from fluxqueue.workload.pod_request import WORKLOAD_CLASS

logger = logging.getLogger(__name__)

SYNC_S = 10.0
"""How long (seconds) the first list is awaited. It may be forbidden, which stops nothing else."""


@dataclass(slots=True)
class WorkloadClassWatch:
    """Follows the classes, if there are any."""

    client: KubeClient
    _informer: Informer | None = None

    async def look(self) -> None:
        """Start to follow the classes if they are served now, stop if they no longer are."""
        try:
            served = await find_served(self.client, WORKLOAD_CLASSES)
        except (ApiError, ApiUnavailable) as error:
            extra = {"action": "workload-classes", "error": str(error)}
            logger.warning("discovery failed", extra=extra)
            return
        if self._informer is not None and self._informer.resource not in served:
            await self.stop()
        if not served or self._informer is not None:
            return
        informer = self._informer = Informer(self.client, served[0])
        informer.start()
        try:
            await asyncio.wait_for(informer.synced.wait(), SYNC_S)
        except TimeoutError:
            extra = {"action": "workload-classes", "of": served[0].key}
            logger.warning("no WorkloadPriorityClasses yet", extra=extra)

    def values(self) -> dict[str, int]:
        """Return the values by name, with the prefix ``WORKLOAD_CLASS``."""
        found = {}
        for item in self._informer.items() if self._informer is not None else ():
            value = item.get("value")
            if isinstance(value, int):  # a custom resource can have any type
                found[f"{WORKLOAD_CLASS}{item['metadata']['name']}"] = value
        return found

    async def stop(self) -> None:
        """Stop to follow them."""
        informer, self._informer = self._informer, None
        if informer is not None:
            await informer.stop()

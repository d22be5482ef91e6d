"""What adds nodes to the cluster: cluster-autoscaler, Karpenter, or what the nodes' labels say.

Part of ``watches``. It is looked at when a term begins and at each resync. What is not served, or
not permitted, counts as absent. Nothing depends on it but a hint in reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fluxqueue.clock import Clock
from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import CONFIGMAPS, NODE_POOLS
from fluxqueue.workload.autoscaling import (
    STATUS_NAME,
    STATUS_NAMESPACE,
    autoscaler_of_pools,
    autoscaler_of_status,
    autoscalers_of_nodes,
)
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class AutoscalerWatch:
    """Looks for autoscalers. ``nodes`` returns all nodes as last seen."""

    client: KubeClient
    clock: Clock
    nodes: Callable[[], Iterable[Object]]
    _told: frozenset[str] = frozenset()

    async def look(self) -> None:
        """Look again. A failure of one question leaves the others."""
        found = {await self._status(), await self._pools()} - {None}
        self._told = frozenset(one for one in found if one is not None)

    @property
    def found(self) -> str:
        """Return the names of the programs that add nodes, or nothing."""
        return ", ".join(sorted(self._told | autoscalers_of_nodes(self.nodes())))

    async def _status(self) -> str | None:
        try:
            status = await self.client.get(CONFIGMAPS, STATUS_NAMESPACE, STATUS_NAME)
        except NotFound:
            return None
        except (ApiError, ApiUnavailable) as error:
            self._tell_unread(STATUS_NAME, error)
            return None
        return autoscaler_of_status(status, self.clock.now_s())

    async def _pools(self) -> str | None:
        for resource in NODE_POOLS:
            try:
                pools = (await self.client.list(resource)).items
            except NotFound:
                continue
            except (ApiError, ApiUnavailable) as error:
                self._tell_unread(resource.key, error)
                return None
            return autoscaler_of_pools(pools)
        return None

    def _tell_unread(self, what: str, error: Exception) -> None:
        extra = {"action": "autoscalers", "what": what, "error": str(error)}
        logger.info("not read", extra=extra)

"""The interface of node providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fluxqueue.db.store.node_pools import PoolOrder
from fluxqueue.kube.client import KubeClient


class NodeProvider(Protocol):
    """Brings the nodes of pools."""

    async def apply(
        self, client: KubeClient, order: PoolOrder, namespace: str
    ) -> Mapping[int, str]:
        """Make the cluster bring what ``order`` says, and nothing else of this pool.

        It must be safe to repeat. ``namespace`` is fluxqueue's own, for objects of the provider.

        Returns
        -------
        Why open requests can never be fulfilled, by their number.

        Raises
        ------
        ApiError
            The cluster refuses. The open requests fail, unless the error is passing.
        ApiUnavailable
            The API server cannot be reached. It is called again.
        """
        ...

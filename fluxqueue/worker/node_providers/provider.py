"""The interface of node providers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fluxqueue.db.store.node_pools import PoolOrder
from fluxqueue.kube.client import KubeClient


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """What a provider could not do with an order.

    ``refused``: why open requests can never be fulfilled, by their number. ``unsettled``: the
    numbers of ended requests that it has not taken back yet. It is called again for them, and
    also if it ``is_busy`` with what no order names any more.
    """

    refused: Mapping[int, str] = field(default_factory=dict)
    unsettled: Collection[int] = ()
    is_busy: bool = False


DONE = OrderOutcome()


class NodeProvider(Protocol):
    """Brings the nodes of pools."""

    async def apply(self, client: KubeClient, order: PoolOrder, namespace: str) -> OrderOutcome:
        """Make the cluster bring what ``order`` says, and nothing else of this pool.

        It must be safe to repeat. ``namespace`` is fluxqueue's own, for objects of the provider.

        Raises
        ------
        ApiError
            The cluster refuses. The open requests fail, unless the error is passing.
        ApiUnavailable
            The API server cannot be reached. It is called again.
        """
        ...

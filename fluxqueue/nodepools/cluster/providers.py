"""What brings the nodes of a FluxNodePool: the providers, and their interface.

The worker calls them with what the rows say (``worker.node_pool_keeping``). A provider compares
that with the cluster and corrects the difference. It remembers nothing, so a call that is repeated,
or that comes after a crash, does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fluxqueue.kube.client import KubeClient
from fluxqueue.nodepools.cluster.placeholder import Placeholder
from fluxqueue.nodepools.cluster.scale import Scale
from fluxqueue.nodepools.cluster.template_objects import CAPACITY_BUFFER, PROVISIONING_REQUEST
from fluxqueue.nodepools.plan.node_orders import PoolOrder


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


PLACEHOLDER = "placeholder"
PROVIDERS: Mapping[str, NodeProvider] = {
    "capacityBuffer": CAPACITY_BUFFER,
    PLACEHOLDER: Placeholder(),
    "provisioningRequest": PROVISIONING_REQUEST,
    "scale": Scale(),
}
"""The providers by the name of their field in ``spec.provider``."""

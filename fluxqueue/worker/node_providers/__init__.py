"""What brings the nodes of a FluxNodePool: one small module for each kind of provider.

``worker.node_pool_keeping`` calls them with what the rows say. A provider compares that with the
cluster and corrects the difference. It remembers nothing, so a call that is repeated, or that comes
after a crash, does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxqueue.worker.node_providers.capacity_buffer import CapacityBuffer
from fluxqueue.worker.node_providers.placeholder import Placeholder
from fluxqueue.worker.node_providers.provider import NodeProvider
from fluxqueue.worker.node_providers.provisioning_request import ProvisioningRequest
from fluxqueue.worker.node_providers.scale import Scale

PLACEHOLDER = "placeholder"
PROVIDERS: Mapping[str, NodeProvider] = {
    "capacityBuffer": CapacityBuffer(),
    PLACEHOLDER: Placeholder(),
    "provisioningRequest": ProvisioningRequest(),
    "scale": Scale(),
}
"""The providers by the name of their field in ``spec.provider``."""

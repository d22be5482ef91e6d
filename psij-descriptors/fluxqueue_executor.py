"""Tells PSI/J where the executor ``fluxqueue`` is. PSI/J reads this folder beside each package."""

from packaging.version import Version
from psij.descriptor import Descriptor

__PSI_J_EXECUTORS__ = [
    Descriptor(
        name="fluxqueue",
        nice_name="fluxqueue",
        version=Version("0.1.0"),
        cls="fluxqueue.client.psij_executor.FluxQueueJobExecutor",
    )
]

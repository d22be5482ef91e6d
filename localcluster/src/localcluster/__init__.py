"""A Kubernetes API with controllers, a scheduler and simulated nodes, in one Python process.

These seven names are the interface. Everything below may change. Each is imported at first use,
because pytest loads our plugin in every run of an environment with this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localcluster.client.access import Access
    from localcluster.cluster import LocalCluster, LocalClusterConfig
    from localcluster.loops.options import ControllerOptions
    from localcluster.nodes.pool import SimulatedPool
    from localcluster.nodes.shape import NodeShape
    from localcluster.nodes.simulated import SimulatedNodes

__all__ = [
    "Access",
    "ControllerOptions",
    "LocalCluster",
    "LocalClusterConfig",
    "NodeShape",
    "SimulatedNodes",
    "SimulatedPool",
]

_MODULES = {
    "Access": "client.access",
    "ControllerOptions": "loops.options",
    "LocalCluster": "cluster",
    "LocalClusterConfig": "cluster",
    "NodeShape": "nodes.shape",
    "SimulatedNodes": "nodes.simulated",
    "SimulatedPool": "nodes.pool",
}


def __getattr__(name: str) -> Any:
    """Return one of the seven names (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

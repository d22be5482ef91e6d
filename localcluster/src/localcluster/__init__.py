"""A Kubernetes API with controllers, a scheduler and simulated nodes, in one Python process.

These six names are the interface; everything below is free to change.
"""

from localcluster.client.access import Access
from localcluster.cluster import LocalCluster, LocalClusterConfig
from localcluster.controllers.node_shape import NodeShape
from localcluster.controllers.options import ControllerOptions
from localcluster.nodes import SimulatedNodes

__all__ = [
    "Access",
    "ControllerOptions",
    "LocalCluster",
    "LocalClusterConfig",
    "NodeShape",
    "SimulatedNodes",
]

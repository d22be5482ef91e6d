"""A Kubernetes API with controllers, a scheduler and simulated nodes, in one Python process.

These six names are the interface; everything below is free to change.
"""

from localcluster.client.access import Access
from localcluster.cluster import LocalCluster, LocalClusterConfig
from localcluster.loops.options import ControllerOptions
from localcluster.nodes.shape import NodeShape
from localcluster.nodes.simulated import SimulatedNodes

__all__ = [
    "Access",
    "ControllerOptions",
    "LocalCluster",
    "LocalClusterConfig",
    "NodeShape",
    "SimulatedNodes",
]

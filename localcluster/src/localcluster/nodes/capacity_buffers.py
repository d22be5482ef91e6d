"""CapacityBuffers of the simulated autoscaler: how many empty nodes a pool must keep.

``Autoscaler`` calls it. One pod of a buffer stands for one node.
"""

from __future__ import annotations

from localcluster.client.calls import Client
from localcluster.client.resources import CAPACITY_BUFFERS, POD_TEMPLATES
from localcluster.errors import NotFound
from localcluster.nodes.pool import SimulatedPool


async def wanted_chunks(client: Client, pool: SimulatedPool) -> int:
    """Return the pods of all buffers whose template chooses nodes of ``pool``."""
    try:
        buffers = (await client.list(CAPACITY_BUFFERS)).items
    except NotFound:
        return 0  # no definition is installed
    wanted = 0
    for one in buffers:
        spec = one["spec"]
        name = spec["podTemplateRef"]["name"]
        try:
            template = await client.get(POD_TEMPLATES, one["metadata"]["namespace"], name)
        except NotFound:
            continue
        selector = template["template"]["spec"].get("nodeSelector") or {}
        if selector.items() <= pool.shape.labels.items():
            wanted += int(spec.get("replicas") or 0)
    return wanted

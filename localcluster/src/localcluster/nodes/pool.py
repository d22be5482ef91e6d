"""Node pools of the simulated autoscaler: what it may add, how fast, and what goes wrong. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from localcluster.client.resources import Resource
from localcluster.loops.objects import condition_of, is_deleting, node_name, phase_of
from localcluster.nodes.shape import NodeShape, node_object
from localcluster.obj import Obj
from localcluster.scheduler.decision import NodeState, PodDemand, why_not

POOL_LABEL = "localcluster/node-pool"
"""Label of each node that the autoscaler has added: the name of its pool."""


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """Nodes of one shape that the autoscaler can add.

    ``shape`` names the pool, and its labels are those of each node. ``most``: the most nodes.
    ``delay_s``: how long a node takes. ``idle_s``: how long a node without pods stays.
    ``delivers``: the most nodes that ever come, None for all. ``scaled``: an object of this
    resource, with the name of the pool in ``namespace``, has one replica for each node.
    ``provisioning_class``: ProvisioningRequests of this class get nodes. In both cases pods add
    none. ``refuses``: each ProvisioningRequest fails with this message. ``fills_buffers``: empty
    nodes are kept for CapacityBuffers.
    """

    shape: NodeShape
    most: int
    delay_s: float = 1.0
    idle_s: float = 10.0
    delivers: int | None = None
    scaled: Resource | None = None
    namespace: str = ""
    provisioning_class: str = ""
    refuses: str = ""
    fills_buffers: bool = False

    @property
    def follows_pods(self) -> bool:
        """Return whether unschedulable pods add nodes."""
        return self.scaled is None and not self.provisioning_class and not self.fills_buffers

    @property
    def name(self) -> str:
        """Return the name of the pool."""
        return self.shape.name

    def node(self, number: int) -> NodeShape:
        """Return the shape of one node."""
        labels = {POOL_LABEL: self.name, **self.shape.labels}
        return replace(self.shape, name=f"{self.name}-{number}", labels=labels)

    def template(self, now: datetime) -> NodeState:
        """Return an empty node as the scheduler would see it."""
        shape = self.node(0)
        state = NodeState(shape.name)
        state.take_object(node_object(shape, "", now))
        return state


def is_unschedulable(pod: Obj) -> bool:
    """Return whether the scheduler has found no node for a pod."""
    condition = condition_of(pod, "PodScheduled")
    return (
        not node_name(pod)
        and not is_deleting(pod)
        and phase_of(pod) == "Pending"
        and condition is not None
        and condition.get("reason") == "Unschedulable"
    )


@dataclass(slots=True)
class Room:
    """Nodes that pods may still use, and new ones that the pods need beyond them."""

    states: list[NodeState]
    new: dict[str, int] = field(default_factory=dict)

    def place(
        self, demand: PodDemand, pools: list[tuple[SimulatedPool, int]], at: datetime
    ) -> bool:
        """Place a pod on these nodes, or on a new node of the first pool that it fits.

        ``pools`` has the number of nodes that each pool can still add. Return whether it fits.
        """
        state = next((one for one in self.states if not why_not(demand, one)), None)
        if state is None:
            for pool, room in pools:
                template = pool.template(at)
                if self.new.get(pool.name, 0) < room and not why_not(demand, template):
                    self.new[pool.name] = self.new.get(pool.name, 0) + 1
                    self.states.append(template)
                    state = template
                    break
        if state is None:
            return False
        state.take_pod(demand.requests)
        return True

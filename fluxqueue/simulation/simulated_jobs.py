"""The input of a simulation: jobs with their real run times, nodes, and events of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import equal_slots, total
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE

MILLICORES = 1000
RACK = "rack"


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job. ``submit_s`` and ``runs_s`` (its real run time) are seconds of virtual time.

    ``number`` serves as its jobid: of equal jobs the smaller number was submitted first.
    """

    number: int
    submit_s: int
    request: Jobspec
    runs_s: int
    priority: int = 0
    user: str = ""
    queue: str = DEFAULT_QUEUE

    @property
    def uid(self) -> str:
        """Return the key of its allocation."""
        return str(self.number)

    @property
    def cpu_m(self) -> int:
        """Return all millicores that it asks for."""
        return total(self.request, CPU)


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """At ``at_s`` a node is lost with all that runs there, or comes back."""

    at_s: int
    node: str
    is_up: bool


def uniform_cluster(nodes: int, cores: int, *, rack_size: int = 16) -> list[NodeFact]:
    """Return equal nodes ``n0``, ``n1``, ... of ``cores`` cores, in racks ``r0``, ``r1``, ..."""
    width = len(str(max(nodes - 1, 0)))
    return [
        NodeFact(
            name=f"n{number:0{width}}",
            uid=f"uid-{number}",
            capacity={CPU: cores * MILLICORES},
            labels={RACK: f"r{number // rack_size}"},
        )
        for number in range(nodes)
    ]


def cores_request(
    cores: int, duration_s: int | None, *, cores_per_node: int, is_exclusive: bool = False
) -> Jobspec:
    """Return a request for ``cores`` as batch systems make it.

    It asks for a share of one node, or for whole nodes if one node is too small.
    """
    count = 1 if cores <= cores_per_node else -(-cores // cores_per_node)
    needs = {CPU: min(cores, cores_per_node) * MILLICORES}
    return replace(equal_slots(count, needs, duration_s=duration_s), is_node_exclusive=is_exclusive)

"""From a ``ResourceRequest`` to the canonical jobspec, which the matcher reads.

A slot is the place of one pod; pools carry Kubernetes' resource names and integer base units.
Spread is ``node -> slot``, *within* a level stands above, all on one host is ``node[1] -> slot``.
Pure.
"""

from __future__ import annotations

from functools import lru_cache

from fluxqueue.fluxjob.request import ResourceRequest, SlotRequest
from fluxqueue.jobspec.model import SLOT, Count, Jobspec, Place, Resource

HOSTNAME = "kubernetes.io/hostname"
NODE = "node"


@lru_cache(maxsize=4096)
def jobspec_of(request: ResourceRequest) -> Jobspec:
    """Say what ``request`` asks for as a jobspec."""
    kinds = [(f"slot{i}", slot) for i, slot in enumerate(request.slots) if slot.count]
    resources = tuple(_slots(label, slot, request) for label, slot in kinds)
    if request.within == HOSTNAME and not request.is_spread:
        resources = (_one(NODE, resources),)
    elif request.within is not None:
        resources = (_one(request.within, resources),)
    return Jobspec(
        version=1,
        resources=resources if kinds else (),
        duration_s=request.duration_s or 0,
        place=Place(
            policy="" if request.match_policy is None else str(request.match_policy),
            is_exclusive=request.is_exclusive,
        ),
        slot_nodes=tuple((label, slot.constraint) for label, slot in kinds),
    )


def _slots(label: str, slot: SlotRequest, request: ResourceRequest) -> Resource:
    pools = tuple(Resource(name, Count(n, n)) for name, n in slot.resources)
    if request.is_spread:
        inner = Resource(SLOT, Count(1, 1), pools, label=label)
        return Resource(NODE, Count(slot.count, slot.count), (inner,))
    return Resource(SLOT, Count(slot.count, slot.count), pools, label=label)


def _one(kind: str, below: tuple[Resource, ...]) -> Resource:
    return Resource(kind, Count(1, 1), below)

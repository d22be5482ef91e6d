"""Between a ``ResourceRequest`` and the canonical jobspec, until the whole cycle speaks the latter.

A slot is the place of one pod; pools carry Kubernetes' resource names and integer base units.
Pure.
"""

from __future__ import annotations

from functools import lru_cache

from fluxqueue.fluxjob.request import (
    NodeConstraint,
    NodeRequirement,
    Operator,
    ResourceRequest,
    SlotRequest,
)
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS, Constraint, all_of
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import NODE, SLOT, Count, Jobspec, Resource

HOSTNAME = "kubernetes.io/hostname"


@lru_cache(maxsize=4096)
def jobspec_of(request: ResourceRequest) -> Jobspec:
    """Say what ``request`` asks for as a jobspec."""
    # Of work without slots the last kind is kept, with a count of 0: it may be scaled up.
    slots = [slot for slot in request.slots if slot.count] or list(request.slots[-1:])
    labels = ["task"] if len(slots) == 1 else [f"task{i}" for i in range(len(slots))]
    resources = tuple(
        _slots(label, slot, request) for label, slot in zip(labels, slots, strict=True)
    )
    if request.within == HOSTNAME:
        resources = (Resource(NODE, Count(1, 1), resources),)
    elif request.within is not None:
        resources = (Resource(request.within, Count(1, 1), resources),)
    demands = [_demand(slot.constraint) for slot in slots]
    return Jobspec(
        version=1,
        resources=resources if slots else (),
        duration_s=float(request.duration_s or 0),
        where=demands[0] if len(set(demands)) == 1 else NodeDemand(),
        slot_where=tuple(zip(labels, demands, strict=True)) if len(set(demands)) > 1 else (),
        match_policy=request.match_policy,
        is_node_exclusive=request.is_exclusive,
    )


def _slots(label: str, slot: SlotRequest, request: ResourceRequest) -> Resource:
    pools = tuple(Resource(name, Count(n, n)) for name, n in slot.resources)
    if request.is_spread:
        inner = Resource(SLOT, Count(1, 1), pools, label=label)
        return Resource(NODE, Count(slot.count, slot.count), (inner,))
    return Resource(SLOT, Count(slot.count, slot.count), pools, label=label)


def _demand(where: NodeConstraint) -> NodeDemand:
    parts = []
    if where.selector:
        pairs = (NodeRequirement(key, Operator.IN, (value,)) for key, value in where.selector)
        parts.append(Constraint(MATCH_EXPRESSIONS, requirements=tuple(pairs)))
    if where.terms:
        terms = [Constraint(MATCH_EXPRESSIONS, requirements=term) for term in where.terms]
        parts.append(terms[0] if len(terms) == 1 else Constraint("or", operands=tuple(terms)))
    return NodeDemand(all_of(parts), where.tolerations)

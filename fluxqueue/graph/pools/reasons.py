"""Why a request can never fit this cluster, in words a user can act on.

Called by the cycle only for requests that ``PoolSet.is_satisfiable`` refused; looks at one cause
after the other, the narrowest first, and names the largest there is.
"""

from __future__ import annotations

import numpy as np

from fluxqueue.fluxjob.request import (
    NodeConstraint,
    ResourceRequest,
    SlotRequest,
    describe,
    describe_amount,
)
from fluxqueue.graph.pools.pool_set import PoolSet


def why_never(pools: PoolSet, request: ResourceRequest) -> str:
    """Say why ``request`` is unsatisfiable on the nodes as they are."""
    present = pools.masks.present()
    if not present.any():
        return "the cluster has no nodes"
    for slot in request.slots:
        reason = _one_slot(pools, slot)
        if reason is not None:
            return reason
    return _all_slots(pools, request)


def _one_slot(pools: PoolSet, slot: SlotRequest) -> str | None:
    """The first resource that no admissible node has enough of, or the constraint itself."""
    allowed = pools.masks.matching(slot.constraint) & pools.masks.present()
    if not allowed.any():
        return f"no node is allowed by {_constraint(slot.constraint)}"
    for name, need in slot.resources:
        column = pools.columns.get(name)
        largest = int(pools.capacity[allowed, column].max()) if column is not None else 0
        if need > largest:
            wanted = describe_amount(name, need)
            if largest == 0:
                return f"needs {wanted} on one node; no node that may be used has any"
            return f"needs {wanted} on one node; the largest has {_bare(name, largest)}"
    counts = _empty_counts(pools, slot)
    if not counts[allowed].any():
        return f"no single node has {describe(slot.needs)} together"
    return None


def _all_slots(pools: PoolSet, request: ResourceRequest) -> str:
    rooms = [
        int(pools.counts(slot, pools.capacity, pools.masks.present(), request).sum())
        for slot in request.slots
    ]
    for slot, room in zip(request.slots, rooms, strict=True):
        if room < slot.count:
            return _too_few(request, slot, room)
    if request.within:
        words = _groups(request)
        return f"needs {words} within one {request.within}; none is so large"
    return f"needs {_groups(request)}; each alone fits the empty cluster, but not all together"


def _too_few(request: ResourceRequest, slot: SlotRequest, room: int) -> str:
    each = describe(slot.needs)
    if request.is_spread:
        return f"needs {slot.count} nodes with {each}; the cluster has {room}"
    return f"needs {slot.count} slots of {each}; the empty cluster holds {room}"


def _groups(request: ResourceRequest) -> str:
    return " and ".join(f"{slot.count} slots of {describe(slot.needs)}" for slot in request.slots)


def _empty_counts(pools: PoolSet, slot: SlotRequest) -> np.ndarray:
    single = ResourceRequest(slots=(slot,))
    return pools.counts(slot, pools.capacity, pools.masks.present(), single)


def _bare(name: str, amount: int) -> str:
    """An amount without the resource's name, which the sentence has just said."""
    return describe_amount(name, amount).removesuffix(f" {name}")


def _constraint(where: NodeConstraint) -> str:
    parts = [f"{key}={value}" for key, value in where.selector]
    parts += [
        " ".join([r.key, str(r.operator), *(",".join(r.values),)]).strip()
        for term in where.terms
        for r in term
    ]
    chosen = f"the node selector or affinity ({'; '.join(parts)})" if parts else "the taints"
    return chosen if not parts else f"{chosen} and the taints"

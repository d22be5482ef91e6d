"""Further slots for workloads that run already: a node was lost, or they were scaled up.

Called by the worker's ``schedule`` task before the queue is walked: what runs goes before what
waits. The slots of one workload are independent here, each is given as soon as there is room; only
the wishes that bind them to the slots it has (one topology domain, one slot a node) are kept.
Pure, like ``cycle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.fluxjob.request import (
    NodeConstraint,
    NodeRequirement,
    Operator,
    ResourceRequest,
)
from fluxqueue.graph.pools.pool_set import FOREVER, Placement, PoolSet


@dataclass(frozen=True, slots=True)
class Lack:
    """A running workload whose pods wait for ``count`` slots more.

    ``nodes`` are those of the slots it has; ``until`` is its allocation's end (epoch seconds);
    ``refused`` are nodes that would not take a pod of it: only if there is no other.
    """

    uid: str
    count: int
    request: ResourceRequest
    nodes: tuple[str, ...]
    until: int | None
    refused: tuple[str, ...] = ()


def top_up(pools: PoolSet, lacks: Sequence[Lack], now: int) -> list[tuple[Lack, list[Placement]]]:
    """Place what fits now, workload by workload; it is booked in ``pools``.

    Must be asked before anything is reserved in this cycle.
    """
    given: list[tuple[Lack, list[Placement]]] = []
    for lack in lacks:
        placed: list[Placement] = []
        nodes = list(lack.nodes)
        for _ in range(lack.count):
            found = _match(pools, lack, nodes, now)
            if found is None:
                break
            one = replace(found, until=FOREVER if lack.until is None else lack.until)
            pools.extend(lack.uid, one)
            placed.append(one)
            nodes += one.nodes
        if placed:
            given.append((lack, placed))
    return given


def _match(pools: PoolSet, lack: Lack, nodes: Sequence[str], now: int) -> Placement | None:
    """One more slot: elsewhere than where a pod was refused, else there."""
    wish = _one_slot(pools, lack, nodes, now)
    wishes = [wish]
    if lack.refused:
        (slot,) = wish.slots
        elsewhere = NodeRequirement(NAME_KEY, Operator.NOT_IN, tuple(sorted(lack.refused)))
        slot = replace(slot, constraint=_and(slot.constraint, elsewhere))
        wishes.insert(0, replace(wish, slots=(slot,)))
    for one in wishes:
        with suppress(InsufficientResources):
            return pools.match_now(one, now)
    return None


def _one_slot(pools: PoolSet, lack: Lack, nodes: Sequence[str], now: int) -> ResourceRequest:
    """One more slot of the request, bound to the slots that are there."""
    slot = lack.request.slots[-1]
    where = slot.constraint
    level = lack.request.within
    domains = sorted(
        {
            value
            for name in nodes
            if level and (value := pools.masks.label(pools.rows.get(name), level)) is not None
        }
    )
    if level and domains:
        where = _and(where, NodeRequirement(level, Operator.IN, tuple(domains)))
    if lack.request.is_spread and nodes:
        where = _and(where, NodeRequirement(NAME_KEY, Operator.NOT_IN, tuple(sorted(set(nodes)))))
    return replace(
        lack.request,
        slots=(replace(slot, count=1, constraint=where),),
        duration_s=None if lack.until is None else max(1, lack.until - now),
        within=level if not domains else None,
    )


def _and(where: NodeConstraint, requirement: NodeRequirement) -> NodeConstraint:
    terms = where.terms or ((),)
    return replace(where, terms=tuple((*term, requirement) for term in terms))

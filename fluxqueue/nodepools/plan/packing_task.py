"""The waiting jobs of a plan and the nodes that could hold them, as a task for ``node_packing``.

``provisioning`` makes one of each plan that may become cheaper. Jobs within a level, of
several kinds of slots or of a variable size make no task, because a packing cannot judge them.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from fluxqueue.fluxjob.exclusive_use import is_exclusive
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.arrays import Matrix, Vector
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.share_table import SHARES
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import SlotKind, levels_named, moldable_counts, slot_kinds
from fluxqueue.jobspec.shape import takes_whole_nodes as is_whole
from fluxqueue.nodepools.plan.coming_nodes import ComingNodes, PoolState
from fluxqueue.nodepools.plan.node_packing import (
    SLOTS_MAX,
    JobToPack,
    NodeKind,
    PackingTask,
)

NODES_MAX = 12
"""The most nodes that are there or under way, and that a packing looks at."""


@dataclass(frozen=True, slots=True)
class MovableJob:
    """A job that gets nodes in a plan. Other nodes may hold it until ``due_at``.

    ``pools``: those that may bring nodes for it. ``nodes``: its nodes in the plan.
    """

    uid: str
    request: Jobspec
    due_at: int
    pools: Set[str]
    nodes: Set[str]


def packing_task(
    jobs: Sequence[MovableJob],
    now_table: ComingNodes,
    table: ComingNodes,
    offers: Sequence[tuple[PoolState, int]],
    now: int,
) -> PackingTask | None:
    """Return the task, or None if the jobs are too many or too special.

    Parameters
    ----------
    now_table, table : Nodes that are there or under way, with what is free from now on, and at the
        time of the slowest pool of the plan. Nothing of ``jobs`` is booked there.
    offers : The pools that may bring nodes, and how many.
    now : Epoch seconds.
    """
    kinds = [_kind_of(one.request) for one in jobs]
    found = [kind for kind in kinds if kind is not None]
    if len(found) < len(jobs) or sum(_units(kind) for kind in found) > SLOTS_MAX:
        return None
    names = sorted({name for kind in found for name, _ in kind.needs})
    facts = {state.pool.name: state.pool.node(0) for state, _ in offers}
    nodes = [_new(state, room, names, now) for state, room in offers]
    there = _there(jobs, found, now_table, table, names)
    facts |= {kind.name: fact for kind, fact in there[:NODES_MAX]}
    nodes += [kind for kind, _ in there[:NODES_MAX]]
    packed = [_job(one, kind, names, facts) for one, kind in zip(jobs, found, strict=True)]
    return PackingTask(packed, nodes, is_complete=len(there) <= NODES_MAX)


def packed_placement(request: Jobspec, nodes: Sequence[str], now: int) -> Placement:
    """Return the placement of a job on the nodes of its units."""
    (kind,) = slot_kinds(request)
    each = kind.count // len(nodes)
    slots = tuple(PlacedSlot(name, kind.needs) for name in nodes for _ in range(each))
    return Placement(slots, now, FOREVER, is_exclusive=is_whole(request))


def _kind_of(request: Jobspec) -> SlotKind | None:
    """Return the only kind of slots of a request, or None if a packing cannot judge it."""
    kinds = slot_kinds(request)
    if len(kinds) != 1 or not kinds[0].count or request.prefer_within:
        return None
    if levels_named(request) or moldable_counts(request):
        return None
    return None if any(is_exclusive(name) for name, _ in kinds[0].needs) else kinds[0]


def _units(kind: SlotKind) -> int:
    return kind.node_count or kind.count


def _job(
    one: MovableJob, kind: SlotKind, names: Sequence[str], facts: Mapping[str, NodeFact]
) -> JobToPack:
    units = _units(kind)
    needs = dict(kind.needs)
    each = kind.count // units
    return JobToPack(
        one.uid,
        tuple(each * needs.get(name, 0) for name in names),
        units,
        one.due_at,
        one.pools,
        {name for name, fact in facts.items() if kind.where.admits(fact)},
        is_distinct=bool(kind.node_count),
        is_whole=is_whole(one.request),
    )


def _new(state: PoolState, room: int, names: Sequence[str], now: int) -> NodeKind:
    pool = state.pool
    free = tuple(pool.capacity.get(name, 0) for name in names)
    numbers = range(min(room, SLOTS_MAX))
    own = tuple(pool.node(number).name for number in numbers)
    return NodeKind(pool.name, free, now + state.wait_s, pool.price, own, is_new=True)


def _there(
    jobs: Sequence[MovableJob],
    kinds: Sequence[SlotKind],
    now_table: ComingNodes,
    table: ComingNodes,
    names: Sequence[str],
) -> list[tuple[NodeKind, NodeFact]]:
    """Return nodes that cost nothing more and could hold a slot, those of the plan first.

    There is one more than a packing looks at, if there are so many.
    """
    ledger = table.matcher.ledger
    rows = np.flatnonzero(ledger.masks.usable())
    free = _free(table, rows, names)
    needs = np.array([[dict(kind.needs).get(name, 0) for name in names] for kind in kinds])
    fits = np.any(np.all(free[:, None, :] >= needs[None, :, :], axis=2), axis=1)
    used = {name for one in jobs for name in one.nodes}
    nodes = [ledger.names[row] for row in rows[fits].tolist()]
    nodes = [name for name in nodes if name not in table.pool_of]
    nodes.sort(key=lambda name: name not in used)
    return [_present(name, now_table, table, names) for name in nodes[: NODES_MAX + 1]]


def _present(
    name: str, now_table: ComingNodes, table: ComingNodes, names: Sequence[str]
) -> tuple[NodeKind, NodeFact]:
    """Return one node that is there or under way, with what is free once it can be used."""
    ledger = table.matcher.ledger
    row = ledger.rows[name]
    free = _free(table, np.array([row]), names)[0].tolist()
    known = now_table.matcher.ledger.rows.get(name)
    before = None if known is None else _free(now_table, np.array([known]), names)[0].tolist()
    # Some of it may be in use until the slowest pool has brought its nodes.
    since = 0 if free == before else table.start
    is_empty = not ledger.keys_on(row) and not ledger.foreign[row, ledger.columns[SHARES]]
    fact = ledger.masks.facts[row]
    assert fact is not None, "a usable row has a node"
    ready_at = max(since, table.ready_at.get(name, 0))
    own = f"/{name}"  # no pool is named so
    kind = NodeKind(
        own, tuple(free), ready_at, Decimal(0), (name,), is_new=False, is_empty=is_empty
    )
    return kind, fact


def _free(table: ComingNodes, rows: Vector, names: Sequence[str]) -> Matrix:
    """Return what is free on ``rows`` of a table (rows x names)."""
    ledger = table.matcher.ledger
    found = np.zeros((len(rows), len(names)), dtype=np.int64)
    free = ledger.free_during(rows, table.start, FOREVER)
    for place, name in enumerate(names):
        if name in ledger.columns:
            found[:, place] = free[:, ledger.columns[name]]
    return np.maximum(found, 0)

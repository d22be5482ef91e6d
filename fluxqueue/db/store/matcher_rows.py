"""What the rows tell the matcher: its graph, the changes since, and jobs that lack slots.

``worker.schedule`` calls it in the transaction of a cycle. A damaged row costs only what it is
about. Reads, but for the changes, which are taken.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.rule_rows import RuleRowKind
from fluxqueue.db.store.sharing import read_sharing_rules, read_unmanaged_pods
from fluxqueue.fluxjob.exclusive_use import is_exclusive
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.placement import (
    FOREVER,
    Others,
    PlacedSlot,
    Placement,
    PolicyOnNode,
)
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.policy.queue_rules import PLANNED_S, QueueRules
from fluxqueue.policy.sharing.node_grants import NodeGrant, NodeSharing
from fluxqueue.process import metrics
from fluxqueue.scheduler.lack import Lack
from fluxqueue.workload.constraints import is_more_than_preferred

logger = logging.getLogger(__name__)

Rules = Mapping[str, QueueRules]
NO_RULES: Rules = MappingProxyType({})

RESERVED_REASON = "has a reservation; nothing behind it may delay it"


class GraphNodeRow(NamedTuple):
    """A node as the controller saw it last."""

    name: str
    fact: Any


class ForeignUseRow(NamedTuple):
    """What unmanaged pods use of a node. ``is_read``: the amounts can be read."""

    node: str
    used: Mapping[str, int]
    namespaces: Sequence[str]
    permanent: Mapping[str, int]
    is_read: bool


class BookedRow(NamedTuple):
    """A slot of a live allocation. ``own_start``: that of a sweep's slot, which has its own end.

    An allocation that was read because it changed, and holds nothing now, has a row without a node.
    """

    uid: str
    starts_at: int
    until: int | None
    is_exclusive: bool
    held: Sequence[str]
    node: str
    resources: Mapping[str, Any]
    own_start: int | None
    duration_s: int | None
    grace_s: int | None
    is_limited: bool
    queue: str
    plan_s: int | None


class LackingRow(NamedTuple):
    """A running FluxJob with pods that wait for further slots. ``kinds``: of unequal pods."""

    uid: str
    lacking: int
    request: Mapping[str, Any]
    nodes: Sequence[str]
    starts_at: int
    until: int | None
    grace_s: int | None
    refused: Sequence[str]
    kinds: Sequence[str]
    queue: str
    user_name: str
    cpu_m: int
    is_independent: bool
    priority: int
    jobid: int
    duration_s: int | None
    ignored: Sequence[str] | None
    is_limited: bool
    is_whole: bool
    place: int


Changes = Sequence[tuple[str, str]]
"""Changes since the last cycle: kind and key."""


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """What has changed since the last cycle, apart from the ledger, which already contains it.

    ``booked`` are the UIDs of all allocations that were read, and ``damaged`` says of some of them
    why they cannot be read. ``prolonged`` are UIDs of those with a later planned end than before.
    """

    have_nodes_changed: bool  # not by what unmanaged pods use of them for a while
    queues: frozenset[str]
    booked: frozenset[str] = frozenset()
    have_pools_changed: bool = False
    damaged: Mapping[str, str] = field(default_factory=dict)
    prolonged: tuple[str, ...] = ()
    has_calendar_changed: bool = False


async def load_graph(
    tx: Transaction,
    ledger: ShareLedger,
    sharing: NodeSharing | None = None,
    now: int = 0,
    rules: Rules = NO_RULES,
) -> NodeChanges:
    """Fill an empty ledger from the rows. They contain all changes recorded so far.

    ``sharing`` is filled, too, and decides from ``now`` on what of each node jobs may have.
    ``rules`` of the queues say how long jobs without a duration are planned.
    """
    changes: Changes = await tx.fetch(Q.take_changes, columns)
    if sharing is not None:
        sharing.set_rules(*await read_sharing_rules(tx))
    facts = _facts(await tx.fetch(Q.graph_nodes, GraphNodeRow))
    ledger.autoscaler = await _autoscaler(tx)
    ledger.add_rows([fact.name for fact in facts])
    await _set_nodes(tx, ledger, facts, None, sharing, now)
    slots = await tx.fetch(Q.booked_slots, BookedRow)
    damaged = _book(ledger, slots, rules)
    booked = frozenset(row.uid for row in slots)
    return NodeChanges(True, _queues_in(changes), booked, True, damaged, has_calendar_changed=True)


def _queues_in(changes: Changes) -> frozenset[str]:
    return frozenset(_keys(changes, "queue"))


def _keys(changes: Changes, *kinds: str) -> set[str]:
    return {key for kind, key in changes if kind in kinds}


async def take_changes(
    tx: Transaction,
    ledger: ShareLedger,
    sharing: NodeSharing | None = None,
    now: int = 0,
    rules: Rules = NO_RULES,
) -> NodeChanges:
    """Bring a filled ledger and ``sharing`` up to date, and return what else has changed.

    Changes are consumed by deleting them. The next cycle therefore finds a change that commits
    late. Each change stands for a whole present state, so applying it twice is harmless.
    """
    changes: Changes = await tx.fetch(Q.take_changes, columns)
    have_rules_changed = bool(_keys(changes, RuleRowKind.SHARING))
    due = [] if sharing is None else sharing.take_due(now)
    changed = _keys(changes, "node", "foreign") | set(due)
    if sharing is not None and have_rules_changed:
        sharing.set_rules(*await read_sharing_rules(tx))
        changed |= ledger.rows.keys()
    names = sorted(changed)
    keys = _keys(changes, "allocation")
    ids = sorted(int(key) for key in keys if key.isdecimal() and len(key) <= 18)
    booked: frozenset[str] = frozenset()
    damaged: Mapping[str, str] = {}
    prolonged: tuple[str, ...] = ()
    if names:
        present = _facts(await tx.fetch(Q.graph_nodes_of, GraphNodeRow, names=names))
        for name in set(names) - {fact.name for fact in present}:
            ledger.remove_node(name)
            if sharing is not None:
                sharing.forget(name)
        await _set_nodes(tx, ledger, present, names, sharing, now)
    if ids:
        booked_rows = await tx.fetch(Q.booked_slots_of, BookedRow, ids=ids)
        booked = frozenset(row.uid for row in booked_rows)
        ends = {uid: ledger.live[uid].bound for uid in booked if uid in ledger.live}
        for uid in booked:
            ledger.cancel(uid)
        damaged = _book(ledger, [row for row in booked_rows if row.node is not None], rules)
        # Of a sweep, each slot has its own end. The next slot has another end than the last one.
        sweeps = {row.uid for row in booked_rows if row.own_start is not None}
        prolonged = tuple(
            uid
            for uid, until in ends.items()
            if uid in ledger.live and ledger.live[uid].bound > until and uid not in sweeps
        )
    is_cluster_changed = bool(_keys(changes, "cluster"))
    if is_cluster_changed:
        ledger.autoscaler = await _autoscaler(tx)
    # A policy may give more or less of what can ever be had.
    have_nodes_changed = have_rules_changed or bool(due) or is_cluster_changed
    have_nodes_changed |= bool(_keys(changes, "node"))
    # A pool may bring what no present node has.
    have_pools_changed = bool(_keys(changes, RuleRowKind.POOL))
    return NodeChanges(
        have_nodes_changed or have_pools_changed,
        _queues_in(changes),
        booked,
        have_pools_changed,
        damaged,
        prolonged,
        bool(_keys(changes, RuleRowKind.RESERVATION)),
    )


async def _autoscaler(tx: Transaction) -> str:
    return await tx.fetch_one(Q.autoscaler, str) or ""


def _facts(rows: Sequence[GraphNodeRow]) -> list[NodeFact]:
    """Return the nodes of rows. Leave out a node that cannot be read."""
    found = []
    for row in rows:
        try:
            found.append(NodeFact.from_json(row.fact))
        except Exception as error:  # noqa: BLE001  one row must not stop all matching
            _skip("node", row.name, error)
    return found


def _skip(step: str, key: str, error: Exception) -> None:
    metrics.ROWS_SKIPPED.labels(step).inc()
    extra = {"action": "cycle", "step": step, "key": key, "error": str(error)}
    logger.error("row cannot be used, and is left out", extra=extra)


async def _set_nodes(
    tx: Transaction,
    ledger: ShareLedger,
    facts: Sequence[NodeFact],
    names: Sequence[str] | None,
    sharing: NodeSharing | None,
    now: int,
) -> None:
    if names is None:
        rows = await tx.fetch(Q.foreign_use, ForeignUseRow)
    else:
        rows = await tx.fetch(Q.foreign_use_of, ForeignUseRow, names=list(names))
    used = {row.node: row for row in rows}
    grants = {} if sharing is None else await _grants(tx, sharing, facts, used, now)
    for fact in facts:
        try:
            _set_node(ledger, fact, used.get(fact.name), grants.get(fact.name))
        except Exception as error:  # noqa: BLE001  nothing is placed on one that cannot be used
            _skip("node", fact.name, error)
            ledger.remove_node(fact.name)


async def _grants(
    tx: Transaction,
    sharing: NodeSharing,
    facts: Sequence[NodeFact],
    used: Mapping[str, ForeignUseRow],
    now: int,
) -> dict[str, NodeGrant]:
    """Ask the sharing policies of nodes. A node without a policy is left out.

    Single pods are read only for nodes with a policy: a cluster may have very many.
    """
    governed = [fact for fact in facts if sharing.is_governed(fact)]
    damaged = {name for name, others in used.items() if not others.is_read}
    names = [one.name for one in governed if one.name not in damaged]
    pods = await read_unmanaged_pods(tx, names) if names else {}
    asked = {fact.name: sharing.grant(fact, pods.get(fact.name, ()), now) for fact in governed}
    for fact in facts:
        if fact.name not in asked:
            sharing.grants.pop(fact.name, None)
    return {name: grant for name, grant in asked.items() if grant is not None}


def _set_node(
    ledger: ShareLedger,
    fact: NodeFact,
    others: ForeignUseRow | None,
    grant: NodeGrant | None = None,
) -> None:
    if others is not None and not others.is_read:
        raise ValueError("what unmanaged pods use there cannot be read")
    namespaces = () if others is None else tuple(others.namespaces)
    if grant is not None:
        policy = PolicyOnNode(grant.policy, grant.why, fact.capacity)
        there = Others(namespaces, grant.permanent, policy)
        fact_at_best = replace(fact, capacity=grant.at_best)
        used = _plus(grant.withheld, fact.unusable)
        # Ports and claims are no part of a capacity that a policy could give.
        shared = {} if others is None else others.used
        apart = {name: amount for name, amount in shared.items() if is_exclusive(name)}
        ledger.set_node(fact_at_best, {**used, **apart}, there)
    elif others is None:
        ledger.set_node(fact, fact.unusable)
    else:
        used = _plus(others.used, fact.unusable)
        ledger.set_node(fact, used, Others(namespaces, others.permanent))


def _plus(used: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    return {**used, **{name: used.get(name, 0) + n for name, n in more.items()}} if more else used


AMOUNT_MAX = TIME_MAX = 1 << 62
"""The largest amounts and times of an allocation that can be booked."""


def _book(ledger: ShareLedger, rows: Sequence[BookedRow], rules: Rules) -> dict[str, str]:
    """Book live allocations. Return, by UID, why some of them cannot be read.

    What such an allocation really uses is unknown, so it holds its nodes whole.
    """
    of: dict[str, list[BookedRow]] = {}
    for row in rows:
        of.setdefault(row.uid, []).append(row)
    placements: list[tuple[str, list[Placement]]] = []
    damaged: dict[str, str] = {}
    for uid, slots in of.items():
        try:
            by_end = _by_end(slots, rules)
            placements.append((uid, [_placement(part, until) for until, part in by_end.items()]))
        except Exception as error:  # noqa: BLE001  one allocation must not stop all matching
            _skip("allocation", uid, error)
            damaged[uid] = f"its allocation cannot be read ({error}), so it holds its nodes whole"
            placements.append((uid, [_whole_nodes(slots)]))
    ledger.book_all([(uid, parts[0]) for uid, parts in placements])
    for uid, parts in placements:
        for one in parts[1:]:
            ledger.extend_apart(uid, one)
    return damaged


def _by_end(slots: Sequence[BookedRow], rules: Rules) -> dict[int, list[BookedRow]]:
    """Return slots by their planned end: those of a sweep have ends of their own."""
    parts: dict[int, list[BookedRow]] = {}
    for slot in slots:
        parts.setdefault(_asked_until(slot, rules), []).append(slot)
    return parts


def _asked_until(slot: BookedRow, rules: Rules) -> int:
    """Return when what holds a slot ends by its request. Without one, its queue plans it."""
    own_start, until = slot.own_start, slot.until
    if own_start is None and until is not None:
        return int(until)
    start = slot.starts_at if own_start is None else own_start
    duration_s = slot.duration_s or _planned_s(rules, slot.queue)
    return int(start + duration_s + (slot.grace_s or 0))


def _planned_s(rules: Rules, queue: str) -> int:
    return rules[queue].planned_s if queue in rules else PLANNED_S


def _placement(slots: Sequence[BookedRow], until: int) -> Placement:
    """Return the placement that the rows of an allocation's slots hold.

    Raises
    ------
    ValueError, TypeError, AttributeError
        They are damaged.
    """
    first = slots[0]
    for what, at in (("starts_at", first.starts_at), ("until", until)):
        if abs(at) > TIME_MAX:
            raise ValueError(f"{what} is {at}")
    is_firm, planned = bool(first.is_limited), _planned_until(first, until)
    return Placement(
        slots=tuple(PlacedSlot(slot.node, _resources(slot.resources)) for slot in slots),
        starts_at=first.starts_at,
        until=planned,
        is_exclusive=first.is_exclusive,
        held=tuple(str(node) for node in first.held if node),
        is_firm=is_firm,
        ends_by=until if is_firm and planned < until else None,
    )


def _planned_until(slot: BookedRow, until: int) -> int:
    """Return when a slot is planned to be free by ended runs, within its limit ``until``."""
    if slot.plan_s is None:
        return until
    start = slot.starts_at if slot.own_start is None else slot.own_start
    planned = int(start + slot.plan_s + (slot.grace_s or 0))
    return min(planned, until) if slot.is_limited else planned


def _resources(stored: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    found = tuple(sorted((name, int(amount)) for name, amount in stored.items()))
    for name, amount in found:
        if not 0 <= amount <= AMOUNT_MAX:
            raise ValueError(f"{name} is {amount}")
    return found


def _whole_nodes(slots: Sequence[BookedRow]) -> Placement:
    nodes = dict.fromkeys(slot.node for slot in slots)
    return Placement(tuple(PlacedSlot(node, ()) for node in nodes), 0, FOREVER, is_exclusive=True)


async def lacking(tx: Transaction, rules: Rules = NO_RULES) -> list[Lack]:
    """Return running FluxJobs with pods that wait for further slots, first in queue order."""
    rows = await tx.fetch(Q.lacking, LackingRow)
    found = []
    for row in rows:
        try:
            found.append(_lack(row, _planned_s(rules, row.queue)))
        except Exception as error:  # noqa: BLE001  it keeps what it has, and others grow
            _skip("lacking", row.uid, error)
    return found


def _lack(row: LackingRow, planned_s: int) -> Lack:
    until = row.until
    return Lack(
        row.uid,
        row.lacking,
        read_stored(row.request),
        tuple(row.nodes),
        row.starts_at + planned_s + (row.grace_s or 0) if until is None else until,
        tuple(row.refused),
        tuple(row.kinds),
        row.queue,
        row.user_name,
        row.cpu_m,
        row.is_independent,
        row.priority,
        row.jobid,
        row.duration_s or planned_s,
        is_more_than_preferred(row.ignored or ()),
        has_limit=row.is_limited,
        is_whole=row.is_whole,
        place=row.place,
    )

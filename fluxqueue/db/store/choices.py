"""Slots follow their pods where kube-scheduler has chosen among several nodes.

``worker.schedule`` calls it after each cycle, while it has the matcher. No other process books
slots, so a slot is never moved to a node that has no room for it. ``scheduler.node_choices`` has
given the nodes, and they are in ``allocation_slots.others`` until the pod is bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.cluster_rows import tell_matcher
from fluxqueue.db.store.pod_rows import count_unmanaged
from fluxqueue.graph.ledger.shares import ShareLedger


class LandedRow(NamedTuple):
    """A slot with a choice of nodes, where it is booked, and the node that its pod is bound to."""

    uid: str
    allocation_id: int
    number: int
    node: str
    landed: str
    resources: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Landed:
    """How many slots have followed their pods. ``are_open``: some pods still have a choice."""

    moved: int = 0
    are_open: bool = False


async def follow_choices(tx: Transaction, ledger: ShareLedger) -> Landed:
    """Book the slots of pods that were bound where they landed.

    If the node has no room for a slot any more, the slot stays where it is, and the pod counts as
    unmanaged use. kube-scheduler has bound it, so the node is not too small.

    Parameters
    ----------
    ledger : all bookings, as after the last cycle. The next cycle reads the moved slots again.
    """
    found = await tx.fetch(Q.open_choices, columns)
    bound = sorted(uid for uid, is_bound in found if is_bound)
    if not bound:
        return Landed(are_open=bool(found))
    await tx.execute(Q.lock_quietly, uids=bound)
    rows = await tx.fetch(Q.landed_slots, LandedRow, uids=bound)
    moved = _moved(ledger, rows)
    to = {(row.allocation_id, row.number): row.landed for row in moved}
    await tx.execute(
        Q.move_slots,
        ids=[row.allocation_id for row in rows],
        numbers=[row.number for row in rows],
        nodes=[to.get((row.allocation_id, row.number)) for row in rows],
    )
    await tx.execute(Q.show_again, uids=sorted({row.uid for row in moved}))
    await tell_matcher(tx, "allocation", [str(row.allocation_id) for row in moved])
    await count_unmanaged(tx, {row.uid for row in rows if row.landed != row.node})
    return Landed(len(moved), are_open=True)


def _moved(ledger: ShareLedger, rows: Sequence[LandedRow]) -> list[LandedRow]:
    """Return the slots that have room where their pods are bound."""
    moved, taken = [], dict[str, dict[str, int]]()
    for row in rows:
        node, needs = row.landed, row.resources
        there = taken.setdefault(node, {})
        if node != row.node and _has_room(ledger, node, needs, there):
            moved.append(row)
            for name, amount in needs.items():
                there[name] = there.get(name, 0) + int(amount)
    return moved


def _has_room(
    ledger: ShareLedger, node: str, needs: Mapping[str, Any], taken: Mapping[str, int]
) -> bool:
    """Return whether a node has room for a slot beside what is booked there and ``taken``."""
    row = ledger.rows.get(node)
    if row is None:
        return False
    booked = ledger.capacity[row] - ledger.foreign[row] - ledger.now.free[row]
    return all(
        int(ledger.capacity[row, column] - booked[column]) >= int(amount) + taken.get(name, 0)
        for name, amount in needs.items()
        for column in [ledger.columns.get(name)]
        if column is not None
    )

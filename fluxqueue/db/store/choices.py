"""Slots follow their pods where kube-scheduler has chosen among several nodes.

``worker.schedule`` calls it after each cycle, while it has the matcher. No other process books
slots, so a slot is never moved to a node that has no room for it. ``scheduler.choices`` has given
the nodes, and they are in ``allocation_slots.others`` until the pod is bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.db.database import Transaction
from fluxqueue.db.store.observations import count_unmanaged, tell_matcher
from fluxqueue.graph.ledger.shares import ShareLedger

_OPEN = """
SELECT a.uid
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
LEFT JOIN pods p ON p.uid = s.pod_uid
WHERE s.others IS NOT NULL AND a.is_live AND s.state <> 'returned' AND s.refused_at IS NULL
"""

_LANDED = """
SELECT a.uid, s.allocation_id, s.number, s.node, p.node AS landed, s.resources
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
JOIN pods p ON p.uid = s.pod_uid
WHERE s.others IS NOT NULL AND a.is_live AND s.state = 'held' AND p.node IS NOT NULL
  AND a.uid = ANY(CAST(:uids AS text[]))
ORDER BY a.uid, s.number
"""


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
    still = {row["uid"] for row in await tx.fetch(_OPEN)}
    if not still:
        return Landed()
    bound = [row["uid"] for row in await tx.fetch(f"{_OPEN} AND p.node IS NOT NULL")]
    if not bound:
        return Landed(are_open=True)
    # In the order of the UIDs, as everywhere. Another order could deadlock.
    await tx.fetch(
        "SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid"
        " FOR NO KEY UPDATE",
        uids=sorted(set(bound)),
    )
    rows = await tx.fetch(_LANDED, uids=sorted(set(bound)))
    moved = _moved(ledger, rows)
    to = {(row["allocation_id"], row["number"]): row["landed"] for row in moved}
    await tx.execute(
        "UPDATE allocation_slots s SET node = coalesce(r.node, s.node), others = NULL"
        " FROM unnest(CAST(:ids AS bigint[]), CAST(:numbers AS int[]), CAST(:nodes AS text[]))"
        " AS r (id, number, node) WHERE s.allocation_id = r.id AND s.number = r.number",
        ids=[row["allocation_id"] for row in rows],
        numbers=[row["number"] for row in rows],
        nodes=[to.get((row["allocation_id"], row["number"])) for row in rows],
    )
    # Its status has the node that was booked first.
    uids = sorted({row["uid"] for row in moved})
    await tx.execute(
        "UPDATE fluxjobs SET version = version + 1 WHERE uid = ANY(CAST(:uids AS text[]))",
        uids=uids,
    )
    await tell_matcher(tx, "allocation", [str(row["allocation_id"]) for row in moved])
    await count_unmanaged(tx, {row["uid"] for row in rows if row["landed"] != row["node"]})
    return Landed(len(moved), are_open=True)


def _moved(ledger: ShareLedger, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the slots that have room where their pods are bound."""
    moved, taken = [], dict[str, dict[str, int]]()
    for row in rows:
        node, needs = row["landed"], row["resources"]
        there = taken.setdefault(node, {})
        if node != row["node"] and _has_room(ledger, node, needs, there):
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

"""Repairs of drift: each kind that has a safe repair, under the rows' locks, looked at anew.

The worker's ``maintain`` calls it for drift that it has seen twice. Drift means a defect of
fluxqueue or a manual change in the tables. Nothing here stops a pod or moves one. Drift without a
safe repair is left to people, with the way out (docs/admin/runbook.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.store.moves import Moved, apply_move
from fluxqueue.db.store.observations import tell_matcher
from fluxqueue.db.tables import LIVING
from fluxqueue.fluxjob.lifecycle import ALLOCATION_LOST
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import slot_needs, takes_whole_nodes
from fluxqueue.jobspec.stored import read_stored

OVER_CAPACITY = "node over capacity"
ENDED_HOLDS = "ended workload holds an allocation"
NO_ALLOCATION = "running workload without an allocation"
NOT_RETURNED = "slot of an ended allocation not returned"
NO_SLOT = "ungated pod without a slot"

WAY_OUT: Mapping[str, str] = {
    OVER_CAPACITY: "passes when pods on it end; kubectl drain it if it must pass now",
    ENDED_HOLDS: "its pods still run and hold it; delete them if they should not",
    NO_ALLOCATION: "see docs/admin/runbook.md, 'drift that stays'",
    NOT_RETURNED: "see docs/admin/runbook.md, 'drift that stays'",
    NO_SLOT: "it has ended or is not bound; delete the pod if it should not be there",
}
"""What people can do where the repair does not apply."""


async def drift(database: Database) -> list[dict[str, Any]]:
    """Return the rows of the ``drift`` view: broken invariants, none in health."""
    async with database.begin() as tx:
        return await tx.fetch("SELECT invariant, subject, detail FROM drift")


async def repair(database: Database, invariant: str) -> int:
    """Repair what can be repaired safely of one kind of drift, and return how many places."""
    mend = _REPAIRS.get(invariant)
    if mend is None:
        return 0
    async with database.begin() as tx:
        return await mend(tx)


async def _return_slots(tx: Transaction) -> int:
    """Free the slots that no allocation holds."""
    rows = await tx.fetch(
        "UPDATE allocation_slots s SET state = 'returned', pod_uid = NULL, returned_at = now()"
        " FROM allocations a WHERE a.id = s.allocation_id AND NOT a.is_live"
        " AND s.state <> 'returned' RETURNING a.id"
    )
    await tell_matcher(tx, "allocation", [str(row["id"]) for row in rows])
    return len(rows)


async def _end_allocations(tx: Transaction) -> int:
    """End allocations that nothing uses.

    An allocation with running pods is given back to its workload.
    """
    rows = await tx.fetch(
        """
        SELECT f.uid, a.id, f.ended_at IS NOT NULL AS is_over,
               EXISTS (SELECT FROM allocation_slots s JOIN pods p ON p.uid = s.pod_uid
                       WHERE s.allocation_id = a.id) AS is_used
        FROM fluxjobs f JOIN allocations a ON a.uid = f.uid AND a.is_live
        WHERE f.state NOT IN ('Allocated', 'Running') ORDER BY f.uid FOR UPDATE OF f, a
        """
    )
    idle = [row["id"] for row in rows if not row["is_used"]]
    await tx.execute(
        "UPDATE allocations SET is_live = false, ended_at = now()"
        " WHERE id = ANY(CAST(:ids AS bigint[]))",
        ids=idle,
    )
    await _return_slots(tx)
    back = [row["uid"] for row in rows if row["is_used"] and not row["is_over"]]
    await _set_allocated(tx, back)
    return len(idle) + len(back)


async def _give_allocations(tx: Transaction) -> int:
    """Give running workloads without an allocation one for what runs.

    A workload that does not run waits again.
    """
    rows = await tx.fetch(
        """
        SELECT uid FROM fluxjobs f WHERE state IN ('Allocated', 'Running')
        AND NOT EXISTS (SELECT FROM allocations a WHERE a.uid = f.uid AND a.is_live)
        ORDER BY uid FOR UPDATE
        """
    )
    uids = [row["uid"] for row in rows]
    adopted = await _adopt(tx, uids)
    idle = [uid for uid in uids if uid not in adopted]
    await apply_move(
        tx,
        ALLOCATION_LOST,
        [Moved(uid, "what it was given is lost") for uid in idle],
        also="allocated_at = NULL, lacking = 0, release_at = now(), reconcile_at = now()",
    )
    return len(uids)


async def _give_slots(tx: Transaction) -> int:
    """Give each running pod without a slot a slot where it runs."""
    rows = await tx.fetch(
        f"""
        SELECT uid, state FROM fluxjobs f WHERE {LIVING} AND EXISTS (
            SELECT FROM pods p WHERE p.workload_uid = f.uid AND NOT p.is_gated
            AND NOT p.is_terminating AND p.node IS NOT NULL
            AND NOT EXISTS (SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid))
        ORDER BY uid FOR UPDATE
        """  # noqa: S608 constants
    )
    adopted = await _adopt(tx, [row["uid"] for row in rows])
    waiting = [r["uid"] for r in rows if r["state"] not in {"Allocated", "Running"}]
    await _set_allocated(tx, [uid for uid in waiting if uid in adopted])
    return len(adopted)


async def _set_allocated(tx: Transaction, uids: Sequence[str]) -> None:
    """Set them to ``Allocated`` by way of ``Pending``, the only state that leads there."""
    for state in ("Pending", "Allocated"):
        await tx.execute(
            "UPDATE fluxjobs SET state = CAST(:state AS text), reason = '', held_by = NULL,"
            " expected_start = NULL, allocated_at = now(), reconcile_at = now()"
            " WHERE uid = ANY(CAST(:uids AS text[])) AND state <> CAST(:state AS text)",
            state=state,
            uids=list(uids),
        )


async def _adopt(tx: Transaction, uids: Sequence[str]) -> set[str]:
    """Give slots to bound pods of ``uids`` that have none, and return workloads with such pods."""
    asked = await tx.fetch(
        "SELECT uid, request FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))", uids=list(uids)
    )
    requests = orjson.dumps([_terms(row["uid"], read_stored(row["request"])) for row in asked])
    rows = await tx.fetch(
        """
        INSERT INTO allocations (uid, term, starts_at, until, is_exclusive)
        SELECT f.uid, coalesce((SELECT term FROM leadership WHERE role = 'matcher'), 0),
               extract(epoch FROM now())::bigint,
               extract(epoch FROM now())::bigint + f.duration_s + f.grace_s,
               r.is_exclusive
        FROM fluxjobs f
        JOIN jsonb_to_recordset(CAST(:requests AS jsonb)) AS r (uid text, is_exclusive bool)
          ON r.uid = f.uid
        WHERE f.uid = ANY(CAST(:uids AS text[]))
          AND NOT EXISTS (SELECT FROM allocations a WHERE a.uid = f.uid AND a.is_live)
          AND EXISTS (SELECT FROM pods p WHERE p.workload_uid = f.uid AND NOT p.is_gated
                      AND p.node IS NOT NULL)
        RETURNING id
        """,
        uids=list(uids),
        requests=requests.decode(),
    )
    slots = await tx.fetch(
        """
        INSERT INTO allocation_slots (allocation_id, number, node, resources, state, pod_uid,
                                      completion_index)
        SELECT a.id, (SELECT coalesce(max(o.number), -1) FROM allocation_slots o
                      WHERE o.allocation_id = a.id)
                     + row_number() OVER (PARTITION BY a.id ORDER BY p.name),
               p.node, r.needs, 'held', p.uid,
               CASE WHEN NOT EXISTS (
                   SELECT FROM allocation_slots o WHERE o.allocation_id = a.id
                   AND o.completion_index = p.completion_index) THEN p.completion_index END
        FROM fluxjobs f JOIN allocations a ON a.uid = f.uid AND a.is_live
        JOIN jsonb_to_recordset(CAST(:requests AS jsonb)) AS r (uid text, needs jsonb)
          ON r.uid = f.uid
        JOIN pods p ON p.workload_uid = f.uid AND NOT p.is_gated AND p.node IS NOT NULL
        WHERE f.uid = ANY(CAST(:uids AS text[]))
          AND NOT EXISTS (SELECT FROM allocation_slots s WHERE s.pod_uid = p.uid)
        RETURNING allocation_id, (SELECT uid FROM allocations WHERE id = allocation_id) AS uid
        """,
        uids=list(uids),
        requests=requests.decode(),
    )
    ids = {row["id"] for row in rows} | {row["allocation_id"] for row in slots}
    await tell_matcher(tx, "allocation", sorted(str(one) for one in ids))
    adopted = {row["uid"] for row in slots}
    await tx.execute(
        "UPDATE fluxjobs SET reconcile_at = now() WHERE uid = ANY(CAST(:uids AS text[]))",
        uids=sorted(adopted),
    )
    return adopted


def _terms(uid: str, jobspec: Jobspec) -> dict[str, Any]:
    """Return what a pod's slot takes of a request: the first of several kinds of slots."""
    needs = next(slot_needs(jobspec), ())
    return {"uid": uid, "is_exclusive": takes_whole_nodes(jobspec), "needs": dict(needs)}


_REPAIRS: Mapping[str, Callable[[Transaction], Awaitable[int]]] = {
    NOT_RETURNED: _return_slots,
    ENDED_HOLDS: _end_allocations,
    NO_ALLOCATION: _give_allocations,
    NO_SLOT: _give_slots,
}

"""Expected starts and promises of waiting FluxJobs, which the matcher reads and writes.

``reservations`` is the plan of the last cycle. The first start that a FluxJob was promised is an
event ``Promised`` in ``history``. Its excuse is an event ``PromiseExcused`` behind it, so that
users and ``fluxqueue check`` can see both. ``worker.plans`` calls this module in transactions under
its term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.store.preemption import PREEMPTING
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.scheduler.forecast import Outlook
from fluxqueue.scheduler.promises import Promise

PROMISED, EXCUSED, DELAYED = "Promised", "PromiseExcused", "ExpectedStartDelayed"
"""Events in ``history``, beside the names of states."""

AHEAD = "a job ahead of it in the queue"
"""The excuse of an expected start that no mishap has delayed."""

STILL_WAITING = ("Pending", "Reserved", PREEMPTING, PROMISED, EXCUSED, DELAYED)
"""Events after which a FluxJob waits as before: its promise still stands."""


@dataclass(frozen=True, slots=True)
class StoredReservation:
    """A latest start: node of each slot in slot order, epoch seconds. ``is_firm``: promised."""

    starts_at: int
    nodes: tuple[str, ...]
    is_firm: bool = True


async def read_reservations(tx: Transaction) -> dict[str, StoredReservation]:
    """Return the plan of the last cycle, by UID."""
    rows = await tx.fetch(
        "SELECT uid, starts_at, nodes, true AS is_firm FROM reservations"
        " UNION ALL SELECT uid, latest_start, nodes, false FROM expected_starts"
    )
    # A damaged reservation is made anew by the next cycle.
    return {
        row["uid"]: StoredReservation(row["starts_at"], tuple(row["nodes"]), row["is_firm"])
        for row in rows
        if isinstance(row["nodes"], list) and all(isinstance(one, str) for one in row["nodes"])
    }


async def read_told(tx: Transaction) -> dict[str, Outlook]:
    """Return the last reports to FluxJobs without a reservation, where a start was estimated."""
    rows = await tx.fetch(
        "SELECT uid, reason, wait_reason, position,"
        " extract(epoch FROM expected_start)::bigint AS starts_at FROM fluxjobs"
        " WHERE state = 'Pending' AND expected_start IS NOT NULL"
    )
    return {
        row["uid"]: Outlook(
            row["starts_at"],
            row["reason"],
            None if row["wait_reason"] is None else WaitReason(row["wait_reason"]),
            row["position"],
        )
        for row in rows
        if row["wait_reason"] is None or row["wait_reason"] in set(WaitReason)
    }


async def read_jobids(tx: Transaction) -> dict[str, int]:
    """Return the jobid of everything that holds resources, by UID."""
    rows = await tx.fetch(
        "SELECT f.uid, f.jobid FROM allocations a JOIN fluxjobs f USING (uid) WHERE a.is_live"
    )
    return {row["uid"]: row["jobid"] for row in rows}


async def store_outlooks(
    tx: Transaction, outlooks: Mapping[str, Outlook], dropped: Sequence[str]
) -> None:
    """Write the outlook of FluxJobs that still wait. Only a cycle sets a reservation's start.

    ``dropped``: those that have no estimated start any more.
    """
    # Lock all at once and in the common order of the UIDs. Another order could deadlock.
    await tx.execute(
        "SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))"
        " AND state IN ('Pending', 'Reserved') ORDER BY uid FOR UPDATE",
        uids=sorted({*outlooks, *dropped}),
    )
    await tx.execute(
        "UPDATE fluxjobs SET expected_start = NULL"
        " WHERE uid = ANY(CAST(:uids AS text[])) AND state = 'Pending'"
        " AND expected_start IS NOT NULL",
        uids=sorted(dropped),
    )
    rows = [
        {
            "uid": uid,
            "starts_at": one.expected_start,
            "reason": one.reason,
            "wait_reason": one.wait_reason,
            "position": one.position,
        }
        for uid, one in outlooks.items()
    ]
    await tx.execute(
        """
        UPDATE fluxjobs f SET reason = r.reason, wait_reason = r.wait_reason, position = r.position,
            expected_start = CASE WHEN f.state = 'Reserved' THEN f.expected_start
                                  ELSE to_timestamp(r.starts_at) END
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            uid text, starts_at bigint, reason text, wait_reason text, position int)
        WHERE f.uid = r.uid AND f.state IN ('Pending', 'Reserved') AND f.blocked_by IS NULL
          AND f.is_examined AND NOT f.is_deleting
        """,
        rows=orjson.dumps(rows).decode(),
    )


async def read_promises(tx: Transaction) -> dict[str, Promise]:
    """Return promises that still stand, by UID: given since the FluxJob last began to wait."""
    rows = await tx.fetch(
        """
        SELECT f.uid, (p.detail ->> 'starts_at')::bigint AS starts_at,
               (SELECT x.detail ->> 'excuse' FROM history x
                WHERE x.uid = f.uid AND x.id > p.id AND x.event = :excused
                ORDER BY x.id LIMIT 1) AS excuse
        FROM fluxjobs f CROSS JOIN LATERAL (
            SELECT h.id, h.detail FROM history h WHERE h.uid = f.uid AND h.event = :promised
            ORDER BY h.id DESC LIMIT 1) p
        WHERE f.state IN ('Pending', 'Reserved') AND NOT EXISTS (
            SELECT FROM history n WHERE n.uid = f.uid AND n.id > p.id
            AND n.event != ALL (CAST(:still_waiting AS text[])))
        """,
        still_waiting=list(STILL_WAITING),
        promised=PROMISED,
        excused=EXCUSED,
    )
    return {row["uid"]: Promise(row["starts_at"], row["excuse"]) for row in rows}


async def store_promises(tx: Transaction, promises: Mapping[str, Promise]) -> None:
    """Write down promises that are new, or that have just got their excuse."""
    rows: list[dict[str, Any]] = [
        {
            "uid": uid,
            "event": PROMISED if one.excuse is None else EXCUSED,
            "detail": {"starts_at": one.starts_at}
            | ({} if one.excuse is None else {"excuse": one.excuse}),
        }
        for uid, one in promises.items()
    ]
    await _note(tx, rows)


async def store_delays(tx: Transaction, delayed: Mapping[str, int], excuse: str) -> None:
    """Write down the latest starts that have moved later, by UID, and why."""
    rows = [
        {"uid": uid, "event": DELAYED, "detail": {"latest_start": at, "excuse": excuse}}
        for uid, at in delayed.items()
    ]
    await _note(tx, rows)


async def _note(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    await tx.execute(
        """
        INSERT INTO history (uid, jobid, actor, event, detail)
        SELECT r.uid, f.jobid,
               coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user),
               r.event, r.detail
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            uid text, event text, detail jsonb)
        JOIN fluxjobs f ON f.uid = r.uid
        """,
        rows=orjson.dumps(rows).decode(),
    )

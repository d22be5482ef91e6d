"""Preemption in rows: candidates, pairs of victim and preemptor, and requests to leave.

The worker that holds the matcher's role calls it. A cycle reads and decides (``read_candidates``,
``read_under_way``, ``store``) without locking any FluxJob. Reconciling locks FluxJobs in another
order, so locks of both kinds in one transaction could deadlock. ``carry_out`` follows the cycle in
a separate transaction. The rows keep it pending until it has happened. After a crash in between,
the next cycle finds it, and the sweep asks for that cycle.

A victim is requeued in the same way as by hand (``steering``). It is suspended, its pods end, its
resources are returned, and it waits at its old place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.store.notices import Notice, leave_notices
from fluxqueue.db.store.observations import tell_matcher
from fluxqueue.fluxjob.holders import by_preemptor
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.preemption import MakingWay, PreemptionCandidate, Victim

PLANNED, PREEMPTED, SPARED, PREEMPTING = (
    "PreemptionPlanned",
    "Preempted",
    "PreemptionOff",
    "Preempting",
)
"""Events in ``history``, and the reasons of the Events on the workloads.

The first are those of a victim, the other one is that of a preemptor.
"""

# Fair-share points are left out because they come and go: they must not cause a preemption.
_STANDING = "((f.priority_parts ->> 'bounded')::bigint + (f.priority_parts ->> 'queue')::bigint)"


async def read_standings(tx: Transaction, uids: Collection[str]) -> dict[str, int]:
    """Return the part of each FluxJob's priority that counts for preemption, by UID."""
    rows = await tx.fetch(
        f"SELECT uid, {_STANDING} AS standing FROM fluxjobs f"  # noqa: S608 constant
        " WHERE uid = ANY(CAST(:uids AS text[]))",
        uids=list(uids),
    )
    return {row["uid"]: row["standing"] for row in rows}


async def read_candidates(
    tx: Transaction, queues: Collection[str], below: int
) -> list[PreemptionCandidate]:
    """Return what runs in ``queues``, can be requeued, and has a standing lower than ``below``."""
    rows = await tx.fetch(
        f"""
        SELECT f.uid, f.jobid, f.queue, {_STANDING} AS standing, a.starts_at AS started_at,
               f.grace_s
        FROM allocations a JOIN fluxjobs f USING (uid)
        WHERE a.is_live AND f.queue = ANY(CAST(:queues AS text[])) AND {_STANDING} < :below
          AND f.is_suspendable AND f.state IN ('Allocated', 'Running') AND f.result IS NULL
          AND NOT f.is_deleting AND f.vacate_by IS NULL AND f.cancel_by IS NULL
          AND f.author_hold IS NULL AND NOT f.is_gone
          AND NOT EXISTS (SELECT FROM preemptions p WHERE p.victim = f.uid)
        """,  # noqa: S608 constants
        queues=sorted(queues),
        below=below,
    )
    return [PreemptionCandidate(**row) for row in rows]


async def read_under_way(tx: Transaction) -> dict[str, MakingWay]:
    """Return the victims of each preemptor, by the UID of the preemptor."""
    rows = await tx.fetch(
        """
        SELECT p.preemptor, p.victim, v.jobid, p.vacate_at, a.id IS NULL AS is_gone, v.grace_s
        FROM preemptions p JOIN fluxjobs v ON v.uid = p.victim
        LEFT JOIN allocations a ON a.id = p.allocation_id AND a.is_live
        WHERE NOT p.is_off ORDER BY p.preemptor, v.jobid
        """
    )
    found: dict[str, MakingWay] = {}
    for row in rows:
        one = found.get(row["preemptor"]) or MakingWay((), row["vacate_at"])
        victims = (*one.victims, Victim(row["victim"], row["jobid"]))
        gone = one.gone | {row["victim"]} if row["is_gone"] else one.gone
        grace_s = max(one.grace_s, row["grace_s"])
        found[row["preemptor"]] = replace(one, victims=victims, gone=gone, grace_s=grace_s)
    return found


async def store(tx: Transaction, decisions: Decisions, under_way: Mapping[str, MakingWay]) -> None:
    """Write the new preemptions of this cycle, and mark those that are no longer wanted."""
    over = [uid for uid in under_way if uid not in decisions.making_way]
    if over:
        rows = await tx.fetch(
            "UPDATE preemptions SET is_off = true"
            " WHERE preemptor = ANY(CAST(:over AS text[])) AND NOT is_off RETURNING allocation_id",
            over=over,
        )
        # The planned end of a spared victim is its former one again, so the matcher must read it
        # again.
        await tell_matcher(tx, "allocation", [str(row["allocation_id"]) for row in rows])
    new = [
        {"victim": one.uid, "preemptor": job.uid, "jobid": job.jobid, "at": making_way.vacate_at}
        for job, making_way in decisions.preempted
        for one in making_way.victims
    ]
    if new:
        await tx.execute(
            """
            INSERT INTO preemptions (victim, allocation_id, preemptor, jobid, vacate_at)
            SELECT r.victim, a.id, r.preemptor, r.jobid, r.at
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
                victim text, preemptor text, jobid bigint, at bigint)
            JOIN allocations a ON a.uid = r.victim AND a.is_live
            """,
            rows=orjson.dumps(new).decode(),
        )


@dataclass(slots=True)
class Carried:
    """What has been done. ``next_at``: when the next victim has to leave (epoch seconds)."""

    notices: list[Notice] = field(default_factory=list)
    next_at: int | None = None

    def count(self, event: str) -> int:
        """Count the notices of this event."""
        return sum(one.event == event for one in self.notices)


# Locks victims and preemptors together, in the order of their UIDs as everywhere. Another order
# could deadlock with reconciling.
_LOCK = """
SELECT uid FROM fluxjobs WHERE uid IN (
    SELECT unnest(ARRAY[victim, preemptor]) FROM preemptions
    WHERE NOT is_told OR is_off OR (NOT is_vacated AND vacate_at <= :now))
ORDER BY uid FOR UPDATE
"""

_PENDING_ACTIONS = """
SELECT p.victim, p.allocation_id, p.preemptor, p.jobid, p.vacate_at, p.is_told, p.is_vacated,
       p.is_off, p.reason_before, v.jobid AS victim_jobid, v.reason, v.namespace,
       h.namespace AS preemptor_namespace, h.workload_name AS preemptor_name,
       -- It may have ended, been cancelled or suspended since: then it gives its room back anyhow.
       a.id IS NOT NULL AND v.state IN ('Allocated', 'Running') AND v.result IS NULL
           AND NOT v.is_deleting AND v.cancel_by IS NULL AND v.vacate_by IS NULL AS is_staying
FROM preemptions p LEFT JOIN fluxjobs v ON v.uid = p.victim
LEFT JOIN fluxjobs h ON h.uid = p.preemptor
LEFT JOIN allocations a ON a.id = p.allocation_id AND a.is_live
WHERE NOT p.is_told OR p.is_off OR (NOT p.is_vacated AND p.vacate_at <= :now)
ORDER BY p.preemptor, p.victim
"""


async def carry_out(tx: Transaction, now: int) -> Carried:
    """Announce new preemptions, requeue victims that are due, and spare those no longer wanted.

    Parameters
    ----------
    tx : under the matcher's term.
    now : the time of the last cycle (epoch seconds). That cycle wanted all that is not off.
    """
    await tx.fetch(_LOCK, now=now)
    rows = await tx.fetch(_PENDING_ACTIONS, now=now)
    carried = Carried()
    # Lock before reading: otherwise a victim could end between the decision and the write.
    await _spare(tx, carried, [row for row in rows if row["is_off"]])
    wanted = [row for row in rows if not row["is_off"]]
    await _vacate(tx, carried, [row for row in wanted if row["vacate_at"] <= now])
    await _announce(tx, carried, [row for row in wanted if row["vacate_at"] > now])
    _tell_preemptors(carried, [row for row in wanted if not row["is_told"]])
    await tx.execute(
        "UPDATE preemptions SET is_told = true WHERE victim = ANY(CAST(:uids AS text[]))",
        uids=[row["victim"] for row in wanted],
    )
    await leave_notices(tx, carried.notices)
    row = await tx.fetch_one(
        "SELECT min(vacate_at) AS next FROM preemptions WHERE NOT is_off AND NOT is_vacated"
    )
    carried.next_at = None if row is None else row["next"]
    return carried


def _announcement(row: Mapping[str, Any]) -> str:
    return (
        f"is requeued at {to_rfc3339(row['vacate_at'])} for {_name(row)};"
        " it keeps its place in the queue"
    )


def _name(row: Mapping[str, Any]) -> str:
    """Return the name of the preemptor, or only what a reader of the notice can look up."""
    who = by_preemptor(row["jobid"])
    is_same = row["namespace"] is not None and row["preemptor_namespace"] == row["namespace"]
    return f"{who} ({row['preemptor_name']})" if is_same else who


async def _announce(tx: Transaction, carried: Carried, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if row["is_staying"] and not row["is_told"]:
            message = _announcement(row)
            await tx.execute(
                "UPDATE preemptions SET reason_before = :before WHERE victim = :uid",
                uid=row["victim"],
                before=row["reason"],
            )
            await _say(tx, row["victim"], message)
            carried.notices.append(_notice(row, PLANNED, message))


async def _spare(tx: Transaction, carried: Carried, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if row["is_staying"] and row["is_told"] and not row["is_vacated"]:
            if row["reason"] == _announcement(row):
                await _say(tx, row["victim"], row["reason_before"])
            message = f"goes on: {_name(row)} needs its room no more"
            carried.notices.append(_notice(row, SPARED, message))
    await tx.execute(
        "DELETE FROM preemptions WHERE victim = ANY(CAST(:uids AS text[]))",
        uids=[row["victim"] for row in rows],
    )


async def _vacate(tx: Transaction, carried: Carried, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if row["is_staying"] and not row["is_vacated"]:
            message = f"is preempted for {_name(row)}: its pods end, then it waits at its old place"
            await tx.execute(
                "UPDATE fluxjobs SET vacate_by = :by, reason = :reason, release_at = now(),"
                " reconcile_at = now() WHERE uid = :uid",
                uid=row["victim"],
                by=by_preemptor(row["jobid"]),
                reason=message,
            )
            carried.notices.append(_notice(row, PREEMPTED, message))
    await tx.execute(
        "UPDATE preemptions SET is_vacated = true WHERE victim = ANY(CAST(:uids AS text[]))",
        uids=[row["victim"] for row in rows],
    )


async def _say(tx: Transaction, uid: str, reason: str) -> None:
    await tx.execute(
        "UPDATE fluxjobs SET reason = :reason WHERE uid = :uid", uid=uid, reason=reason
    )


def _notice(row: Mapping[str, Any], event: str, message: str) -> Notice:
    return Notice(row["victim"], event, message, f"{event}/{row['allocation_id']}")


def _tell_preemptors(carried: Carried, rows: Sequence[Mapping[str, Any]]) -> None:
    victims: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        victims.setdefault(row["preemptor"], []).append(row)
    for uid, mine in victims.items():
        named = tuple(Victim(row["victim"], row["victim_jobid"]) for row in mine)
        at = mine[0]["vacate_at"]
        message = f"{MakingWay(named, at).describe()}, requeued at {to_rfc3339(at)}"
        key = f"{PREEMPTING}/{min(row['allocation_id'] for row in mine)}"
        carried.notices.append(Notice(uid, PREEMPTING, message, key))

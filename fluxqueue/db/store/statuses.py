"""Reads and writes of the ``status`` and ``release`` tasks on a FluxJob."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.leadership import OBSERVED
from fluxqueue.db.task_statements import TAKE_STATUSES
from fluxqueue.process.pacing import STATUS_CALM, STATUS_PATIENCE, STATUS_PATIENCE_UNSEEN

RESIZED_DUE = (
    "coalesce(f.status_due_at,"
    " fluxjob_status_due_at(now(), CASE WHEN f.is_sweep THEN 5 ELSE 1 END))"
)
"""When a FluxJob ``f`` shows that it holds other slots. Most end soon after they return one."""


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One FluxJob with the slots of its last allocation (empty where it has had none).

    ``is_first``: it is the only allocation that it has had.
    """

    uid: str
    jobid: int
    place: int
    namespace: str
    name: str
    workload_kind: str
    workload_name: str
    flux_uid: str | None
    flux_version: str | None
    state: str
    reason: str
    size: int
    version: int
    written_version: int
    told: str | None
    told_version: int
    ignored: Sequence[str]
    submitted_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    expected_start: datetime | None
    starts_at: int | None
    until: int | None
    slots: Sequence[Mapping[str, Any]]
    held: Sequence[Mapping[str, Any]] = ()
    held_by: str | None = None
    author_hold: str | None = None
    vacate_by: str | None = None
    cancel_by: str | None = None
    accepted_by: str | None = None
    set_priority: int | None = None
    set_queue: str | None = None
    requeue: str | None = None
    queue: str | None = None
    priority: int | None = None
    priority_parts: Mapping[str, int] | None = None
    is_overdue: bool = False
    queued_at: datetime | None = None
    unqueued_at: datetime | None = None
    reserved_at: datetime | None = None
    unreserved_at: datetime | None = None
    owner: Mapping[str, str] | None = None
    wait_reason: str | None = None
    blocked_by: str | None = None
    observed_generation: int = 1
    position: int | None = None
    notices: Sequence[Mapping[str, Any]] = ()
    is_first: bool = False
    faults: Sequence[Mapping[str, Any]] = ()
    said: Mapping[str, str] | None = None
    stalled: Mapping[str, str] | None = None
    troubled_at: datetime | None = None
    start_fault: str | None = None


_COLUMNS = """
f.uid, f.jobid, f.place, f.namespace, f.name, f.workload_kind, f.workload_name, f.flux_uid,
f.flux_version, f.state, f.reason, f.size, f.version, f.written_version, f.told, f.told_version,
f.ignored, f.submitted_at,
f.allocated_at, f.started_at, f.ended_at, f.expected_start, f.held_by, f.author_hold,
f.vacate_by, f.cancel_by, f.accepted_by, f.set_priority, f.set_queue,
f.steered ->> 'requeue' AS requeue, f.queue, f.priority, f.priority_parts, f.owner, f.wait_reason,
f.blocked_by, f.observed_generation, f.position, f.notices, f.faults, f.stalled, f.troubled_at,
CASE WHEN f.faults <> '[]' THEN f.said END AS said,
coalesce(f.gather_until <= now(), false) AS is_overdue,
f.starting ->> 'fault' AS start_fault,
a.starts_at, a.until,
a.id IS NOT NULL AND NOT EXISTS (
    SELECT FROM allocations b WHERE b.uid = f.uid AND b.id < a.id) AS is_first,
since.queued_at, since.unqueued_at, since.reserved_at, since.unreserved_at,
coalesce((SELECT jsonb_agg(jsonb_build_object('node', s.node, 'resources', s.resources, 'kind',
                           -- Of other workloads no pod asks for a kind of slots.
                           CASE WHEN f.is_gathered OR f.owner IS NOT NULL THEN s.kind ELSE '' END,
                           'is_returned', s.state = 'returned' AND a.ended_at IS NULL)
                           ORDER BY s.number)
          FROM allocation_slots s WHERE s.allocation_id = a.id
            -- Of a sweep: what it has, or had at its end.
            AND (NOT f.is_sweep OR s.state <> 'returned' OR s.returned_at >= a.ended_at)
         ), '[]'::jsonb) AS slots,
coalesce((SELECT jsonb_agg(jsonb_build_object('node', h.node, 'resources',
                                              coalesce(n.fact -> 'capacity', '{}'::jsonb))
                           ORDER BY h.number)
          FROM unnest(a.held) WITH ORDINALITY AS h (node, number)
          LEFT JOIN nodes n ON n.name = h.node), '[]'::jsonb) AS held
"""

_FROM = """
FROM fluxjobs f LEFT JOIN LATERAL (
    SELECT id, starts_at, until, held, ended_at FROM allocations a WHERE a.uid = f.uid
    ORDER BY id DESC LIMIT 1) a ON f.allocated_at IS NOT NULL
CROSS JOIN LATERAL (
    SELECT max(h.at) FILTER (WHERE h.is_in AND NOT h.was_in) AS queued_at,
           max(h.at) FILTER (WHERE h.was_in AND NOT h.is_in) AS unqueued_at,
           max(h.at) FILTER (WHERE h.event = 'Reserved') AS reserved_at,
           max(h.at) FILTER (WHERE h.former = 'Reserved') AS unreserved_at
    FROM (SELECT at, event, detail ->> 'from' AS former, event IN ('Pending', 'Reserved') AS is_in,
                 coalesce(detail ->> 'from', '') IN ('Pending', 'Reserved') AS was_in
          FROM history h WHERE h.uid = f.uid AND h.detail ? 'from') h) since
"""

_READ = f"SELECT {_COLUMNS} {_FROM} WHERE f.uid = ANY(CAST(:uids AS text[]))"

_PATIENCE = (
    f"CASE f.state WHEN 'Allocated' THEN {STATUS_PATIENCE_UNSEEN} ELSE {STATUS_PATIENCE} END"
)

# The statement also takes the due tasks for other FluxJobs, because many transactions request a
# status update at the same moment. A status that is not written stays pending, and the sweep finds
# it.
_PENDING_ACTIONS = f"""
WITH along AS ({TAKE_STATUSES}), due AS (
    -- Who can wait until later than anything that is due from now on.
    SELECT uid, state IN ('Allocated', 'Running') AND status_written_at >= allocated_at
                AND reason = '' AND notices = '[]'
                AND fluxjob_status_due_at(status_written_at, {_PATIENCE})
                    > fluxjob_status_due_at(status_written_at, 0) AS can_wait
    FROM fluxjobs f
    WHERE uid = ANY(CAST(:uids AS text[]) || ARRAY(
            SELECT jsonb_array_elements_text(args -> 'uids') FROM along))
      AND status_due_at <= now() AND flux_uid IS NOT NULL AND {OBSERVED}
), patient AS (
    SELECT uid FROM due WHERE can_wait AND (SELECT count(*) FROM due WHERE can_wait) > {STATUS_CALM}
), put_off AS (
    -- Arrays, or the planner, who expects one, would look through all of them for each.
    UPDATE fluxjobs f SET status_due_at = least(
        fluxjob_status_due_at(f.status_written_at, {_PATIENCE}),
        fluxjob_status_due_at(now(), {STATUS_PATIENCE}))
    WHERE f.uid = ANY(ARRAY(
            SELECT uid FROM fluxjobs WHERE uid = ANY(ARRAY(SELECT uid FROM patient))
            ORDER BY uid FOR NO KEY UPDATE))
      AND f.state IN ('Allocated', 'Running')
    RETURNING f.uid
)
SELECT {_COLUMNS} {_FROM}
WHERE f.uid IN (SELECT uid FROM due EXCEPT SELECT uid FROM put_off)
"""  # noqa: S608 constants


async def read_due_statuses(database: Database, uids: Collection[str]) -> list[StatusRow]:
    """Return FluxJobs with a pending status update, as far as it is time to write it.

    Many starts at once put the update to running off. This applies to FluxJobs with a reported
    start, or with a start that was put off when they were released. Most will have ended by then,
    and a status update costs the API server more than all other writes of fluxqueue there. Where
    their pods do not even come to run, the cluster is busy with other work, and has still less time
    for it.
    """
    rows = await database.fetch(_PENDING_ACTIONS, uids=list(uids))
    return [StatusRow(**row) for row in rows]


async def read_statuses(database: Database, uids: Collection[str]) -> dict[str, StatusRow]:
    """Return FluxJobs as users are to see them, by UID. Unknown ones are left out."""
    rows = await database.fetch(_READ, uids=list(uids))
    return {row["uid"]: StatusRow(**row) for row in rows}


@dataclass(frozen=True, slots=True)
class EmittedEvents:
    """The reason of an Event, and the version of the row that it reported."""

    word: str
    version: int


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    """What users see now.

    It has the version of the status, the last Event, the keys of other reports, and the
    resourceVersion of the FluxJob, where it was written. ``is_gone``: the FluxJob does not exist.
    """

    uid: str
    version: int
    told: EmittedEvents | None = None
    noticed: Sequence[str] = ()
    flux_version: str | None = None
    is_gone: bool = False

    def as_row(self) -> dict[str, Any]:
        """Return one row of what ``KEEP_WRITTEN`` and its statement read."""
        told = (self.told.word, self.told.version) if self.told else (None, None)
        return {
            "uid": self.uid,
            "version": self.version,
            "told": told[0],
            "told_version": told[1],
            "noticed": self.noticed,
            "flux_version": self.flux_version,
        }


KEEP_WRITTEN = """
flux_version = CASE WHEN w.version >= f.written_version
    THEN coalesce(w.flux_version, f.flux_version)
                    ELSE f.flux_version END,
written_version = greatest(f.written_version, w.version),
told = CASE WHEN w.told IS DISTINCT FROM f.told AND w.told_version >= f.told_version
            THEN w.told ELSE f.told END,
told_version = CASE WHEN w.told IS DISTINCT FROM f.told AND w.told_version >= f.told_version
                    THEN w.told_version ELSE f.told_version END
"""
"""Sets what ``w`` has written and reported, unless a later reader of the row has set it since."""


async def remember_written(database: Database, written: Sequence[WrittenStatus]) -> None:
    """Keep what was published. The row's trigger keeps changes that came meanwhile pending."""
    if not written:
        return
    await database.execute(
        f"""
        UPDATE fluxjobs f SET {KEEP_WRITTEN}, status_written_at = now(),
                              status_due_at = NULL, last_error = NULL,
                              notices = CASE WHEN w.noticed = '[]' THEN f.notices ELSE (
                                  SELECT coalesce(jsonb_agg(n ORDER BY i), '[]')
                                  FROM jsonb_array_elements(f.notices) WITH ORDINALITY t (n, i)
                                  WHERE NOT w.noticed ? (n ->> 'key')) END
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS w (
            uid text, version bigint, told text, told_version bigint, noticed jsonb,
            flux_version text)
        WHERE f.uid IN (SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
                        ORDER BY uid FOR NO KEY UPDATE)
          AND f.uid = w.uid
        """,  # noqa: S608 a constant
        rows=orjson.dumps([one.as_row() for one in written]).decode(),
        uids=sorted(one.uid for one in written),
    )


async def rewrite_statuses(tx: Transaction, uids: Collection[str]) -> None:
    """Have these FluxJobs published once more: their objects differ from their rows."""
    if uids:
        await tx.execute(
            """
            UPDATE fluxjobs SET written_version = 0
            WHERE uid IN (SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
                          ORDER BY uid FOR NO KEY UPDATE)
            """,
            uids=sorted(uids),
        )

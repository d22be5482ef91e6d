"""What the ``status`` effect reads of a FluxJob, and the resourceVersion it leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from fluxqueue.db.database import Database


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One FluxJob with the slots of its last allocation (empty where it has had none)."""

    uid: str
    jobid: int
    namespace: str
    name: str
    workload_kind: str
    workload_name: str
    flux_uid: str | None
    flux_rv: str | None
    state: str
    reason: str
    size: int
    version: int
    ignored: Sequence[str]
    submitted_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    expected_start: datetime | None
    starts_at: int | None
    until: int | None
    slots: Sequence[Mapping[str, Any]]
    held_by: str | None = None
    vacate_by: str | None = None
    cancel_by: str | None = None
    accepted_by: str | None = None
    set_priority: int | None = None
    set_queue: str | None = None
    queue: str | None = None
    priority: int | None = None
    priority_parts: Mapping[str, int] | None = None


async def read_published(database: Database, uids: Sequence[str]) -> dict[str, PublishedRow]:
    """Read FluxJobs as users are to see them, by UID; unknown ones are left out."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            """
            SELECT f.uid, f.jobid, f.namespace, f.name, f.workload_kind, f.workload_name,
                   f.flux_uid, f.flux_rv, f.state, f.reason, f.size, f.version, f.ignored,
                   f.submitted_at, f.allocated_at, f.started_at, f.ended_at, f.expected_start,
                   f.held_by, f.vacate_by, f.cancel_by, f.accepted_by, f.set_priority,
                   f.set_queue, f.queue, f.priority, f.priority_parts, a.starts_at, a.until,
                   coalesce((SELECT jsonb_agg(jsonb_build_object(
                                 'node', s.node, 'resources', s.resources) ORDER BY s.number)
                             FROM allocation_slots s WHERE s.allocation_id = a.id),
                            '[]'::jsonb) AS slots
            FROM fluxjobs f LEFT JOIN LATERAL (
                SELECT id, starts_at, until FROM allocations a WHERE a.uid = f.uid
                ORDER BY id DESC LIMIT 1) a ON f.allocated_at IS NOT NULL
            WHERE f.uid = ANY(CAST(:uids AS text[]))
            """,
            uids=list(uids),
        )
    return {row["uid"]: PublishedRow(**row) for row in rows}


async def remember_versions(database: Database, versions: Mapping[str, str]) -> None:
    """Keep the FluxJobs' resourceVersions after our writes: the next ones need no read."""
    if not versions:
        return
    async with database.begin() as tx:
        await tx.execute(
            """
            UPDATE fluxjobs f SET flux_rv = v.value
            FROM (SELECT uid, value FROM jsonb_each_text(CAST(:versions AS jsonb)) r (uid, value)
                  ) v
            WHERE f.uid IN (SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
                            ORDER BY uid FOR NO KEY UPDATE)
              AND f.uid = v.uid
            """,
            versions=orjson.dumps(versions).decode(),
            uids=sorted(versions),
        )

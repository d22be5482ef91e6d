"""Reads and writes of the ``status`` and ``release`` tasks on a FluxJob."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.process.pacing import STATUS_CALM, STATUS_PATIENCE, STATUS_PATIENCE_UNSEEN


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
    observed: Mapping[str, Any]
    submitted_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    expected_start: datetime | None
    expected_by: int | None
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
    wait_reason: str | None = None
    blocked_by: str | None = None
    observed_generation: int = 1
    position: int | None = None
    notices: Sequence[Mapping[str, Any]] = ()
    is_first: bool = False
    stalled: Mapping[str, str] | None = None
    troubled_at: datetime | None = None
    start_fault: str | None = None

    @property
    def facts(self) -> WorkloadFacts:
        """Return what was last seen of its workload."""
        return WorkloadFacts.of(self.observed)


async def read_due_statuses(database: Database, uids: Collection[str]) -> list[StatusRow]:
    """Return FluxJobs with a pending status update, as far as it is time to write it.

    Many starts at once put the update to running off. This applies to FluxJobs with a reported
    start, or with a start that was put off when they were released. Most will have ended by then,
    and a status update costs the API server more than all other writes of fluxqueue there. Where
    their pods do not even come to run, the cluster is busy with other work, and has still less time
    for it.
    """
    return await database.fetch(
        Q.due_statuses,
        StatusRow,
        uids=list(uids),
        calm=STATUS_CALM,
        patience_s=STATUS_PATIENCE,
        patience_unseen_s=STATUS_PATIENCE_UNSEEN,
    )


async def read_statuses(database: Database, uids: Collection[str]) -> dict[str, StatusRow]:
    """Return FluxJobs as users are to see them, by UID. Unknown ones are left out."""
    rows = await database.fetch(Q.read_statuses, StatusRow, uids=list(uids))
    return {row.uid: row for row in rows}


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
        """Return one row of what ``Q.remember_written`` reads."""
        told = (self.told.word, self.told.version) if self.told else (None, None)
        return {
            "uid": self.uid,
            "version": self.version,
            "told": told[0],
            "told_version": told[1],
            "noticed": self.noticed,
            "flux_version": self.flux_version,
        }


async def remember_written(database: Database, written: Sequence[WrittenStatus]) -> None:
    """Keep what was published. The row's trigger keeps changes that came meanwhile pending."""
    if not written:
        return
    await database.execute(
        Q.remember_written,
        rows=[one.as_row() for one in written],
        uids=sorted(one.uid for one in written),
    )


async def rewrite_statuses(tx: Transaction, uids: Collection[str]) -> None:
    """Have these FluxJobs published once more: their objects differ from their rows."""
    if uids:
        await tx.execute(Q.rewrite_statuses, uids=sorted(uids))

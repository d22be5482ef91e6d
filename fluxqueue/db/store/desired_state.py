"""What the rows want of a workload object: that it is suspended, released, or deleted.

The worker's ``release`` task reads it before it writes to the cluster. ``finish`` then records in
the row what was done. The row decides last: if it wants something else by then, its release stays
pending.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import orjson

from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.db.store.destinations import DESTINATION, as_destination
from fluxqueue.db.store.statuses import WrittenStatus
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.holders import AUTHOR, SUSPENDED
from fluxqueue.fluxjob.node import Destination
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.process.pacing import STATUS_PATIENCE
from fluxqueue.workload.index_placement import IndexPlacement, plan_placement
from fluxqueue.workload.references import Reference, read_reference


@dataclass(frozen=True, slots=True)
class DesiredState:
    """A workload object and its desired state. ``kind`` is its name in rows.

    ``pin``: the one node of all its slots, which its pod template is to name, without the gate.
    ``members``: UIDs and names of its pods, if they must be deleted, because it has no object.
    ``is_pinned``: its template may name a node other than ``pin``, and lack the gate, since it was
    released before. ``is_authors``: its author has suspended it. If the object is not suspended,
    the author has resumed it meanwhile. The controller must see that before anything suspends the
    object again. ``placement``: where the pod of each index goes, which its pod template is to
    have. ``is_placed``: its template may have that of an earlier release. ``owner``: where it is,
    for a kind without an entry in ``workload.kinds``.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    is_suspended: bool = False
    is_deleted: bool = False
    pin: Destination | None = None
    is_pinned: bool = False
    is_authors: bool = False
    members: tuple[tuple[str, str], ...] = ()
    owner: Reference | None = None
    placement: IndexPlacement | None = None
    is_placed: bool = False


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A row with a pending release. ``wanted`` is None where its object may stay as it is.

    ``waited_s``: seconds since it was submitted, None if it has run before.
    """

    uid: str
    release_at: datetime | None
    wanted: DesiredState | None
    waited_s: float | None = None


_HAS_CHOICE = """EXISTS (
           SELECT FROM allocations c JOIN allocation_slots o ON o.allocation_id = c.id
           WHERE c.uid = f.uid AND c.is_live AND o.others IS NOT NULL)"""

_READ = f"""
SELECT f.uid, f.namespace, f.workload_kind, f.workload_name, f.state, f.author_hold, f.vacate_by,
       f.cancel_by, f.is_gone, f.is_deleting, f.release_at, f.pinned_to, f.is_placed, f.observed,
       f.jobid, f.size,
       CAST(extract(epoch FROM f.allocated_at) AS float8) AS allocated_s,
       CASE WHEN f.started_at IS NULL
            THEN CAST(extract(epoch FROM now() - f.submitted_at) AS float8) END AS waited_s,
       CASE WHEN f.observed ? 'is_gathered' AND f.cancel_by IS NOT NULL THEN (
           SELECT jsonb_agg(jsonb_build_array(p.uid, p.name) ORDER BY p.uid)
           FROM pods p WHERE p.workload_uid = f.uid) END AS members,
       -- Of a BatchJob that is not suspended nobody may change the template any more.
       -- After a start that failed each pod is gated, so that one of them can be sent elsewhere.
       -- The same where kube-scheduler chooses among several nodes.
       CASE WHEN f.observed ? 'is_pinnable' AND f.start_tries = 0
                 AND (f.observed ? 'is_suspended' OR f.pinned_to IS NOT NULL)
                 AND f.state IN ('Allocated', 'Running') AND NOT {_HAS_CHOICE} THEN (
           SELECT {DESTINATION} FROM (
               SELECT min(s.node) AS node
               FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id
               WHERE a.uid = f.uid AND a.is_live AND s.state <> 'returned'
               HAVING count(DISTINCT s.node) = 1) s
           LEFT JOIN nodes n ON n.name = s.node) END AS pin,
       CASE WHEN f.observed ?& '{{is_placeable,is_suspended}}' AND f.start_tries = 0
                 AND f.state IN ('Allocated', 'Running') AND NOT {_HAS_CHOICE} THEN (
           SELECT jsonb_agg(jsonb_build_array(s.number, {DESTINATION}, s.resources)
                            ORDER BY s.number)
           FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id
           LEFT JOIN nodes n ON n.name = s.node
           WHERE a.uid = f.uid AND a.is_live AND s.state <> 'returned') END AS places
FROM fluxjobs f WHERE f.uid = ANY(CAST(:uids AS text[]))
"""  # noqa: S608 constant


async def read_pending_releases(database: Database, uids: Collection[str]) -> list[PendingRelease]:
    """Return the pending releases of ``uids``, while a controller compares rows and cluster."""
    rows = await database.fetch_dicts(
        f"{_READ} AND f.release_at IS NOT NULL AND fluxqueue_is_observed()",
        uids=list(uids),
    )
    return [
        PendingRelease(row["uid"], row["release_at"], _desired(row), row["waited_s"])
        for row in rows
    ]


def _desired(row: Mapping[str, Any]) -> DesiredState | None:
    if row["is_gone"]:
        return None
    facts = WorkloadFacts.of(row["observed"])
    wanted = _wanted(row, facts)
    return None if wanted is None else replace(wanted, owner=read_reference(facts.owner))


def _wanted(row: Mapping[str, Any], facts: WorkloadFacts) -> DesiredState | None:
    name = (row["uid"], row["workload_kind"], row["namespace"], row["workload_name"])
    if row["cancel_by"] is not None:
        members = tuple((uid, pod) for uid, pod in row["members"] or ())
        return DesiredState(*name, is_deleted=True, members=members)
    if not facts.is_suspendable or row["is_deleting"]:
        return None
    is_pinned, is_placed = row["pinned_to"] is not None, bool(row["is_placed"])
    if row["state"] in {"Allocated", "Running"}:
        if row["vacate_by"] == AUTHOR:
            return None  # what its author has suspended is left alone until its author resumes it
        if row["vacate_by"] is not None:
            return DesiredState(*name, is_suspended=True, is_pinned=is_pinned, is_placed=is_placed)
        pin = as_destination(row["pin"]) if row["pin"] else None
        if pin is not None:
            # Sent again it must change nothing: the BatchJob may run, and its template be fixed.
            return DesiredState(
                *name, pin=pin, is_pinned=is_pinned and row["pinned_to"] != pin.name
            )
        return DesiredState(
            *name,
            is_pinned=is_pinned and facts.is_suspended,
            placement=_placement(row),
            # An interrupted release may have left a placement, too.
            is_placed=facts.is_placeable and facts.is_suspended,
        )
    is_authors = row["author_hold"] in {AUTHOR, SUSPENDED}
    is_waiting = FluxJobState(row["state"]).is_waiting
    if not is_waiting or (is_authors and not (is_pinned or is_placed)):
        return None
    if facts.waits_gated:
        return None if is_authors else DesiredState(*name, is_pinned=is_pinned, is_placed=is_placed)
    return DesiredState(
        *name,
        is_suspended=True,
        is_pinned=is_pinned,
        is_authors=is_authors,
        is_placed=is_placed,
    )


def _placement(row: Mapping[str, Any]) -> IndexPlacement | None:
    """Return where the pod of each index goes. Index 0 has slot 0, and so on (``follow``)."""
    places = row["places"] or ()
    if [number for number, _, _ in places] != list(range(row["size"])):
        return None
    slots = [(as_destination(to), {k: int(n) for k, n in has.items()}) for _, to, has in places]
    # The time counts from the decision: a release that is sent twice writes the same text.
    return plan_placement(row["jobid"], slots, row["allocated_s"])


@dataclass(frozen=True, slots=True)
class Released:
    """What was done for one row.

    ``is_made``: its object is now as was wanted, with ``pinned_to`` in its template, or with a
    placement (``is_placed``).
    ``generation``: the last in which the BatchJob is, or may have been, released. ``written``: its
    status, where that was published. ``is_put_off``: it is published later, if the state lasts.
    """

    pending: PendingRelease
    is_made: bool = False
    generation: int | None = None
    pinned_to: str | None = None
    written: WrittenStatus | None = None
    is_put_off: bool = False
    is_placed: bool = False


async def finish(database: Database, done: Sequence[Released]) -> None:
    """Write down what was done for each row. A row that wants something else stays pending."""
    if done:
        rows = [
            {
                **(one.written or WrittenStatus(one.pending.uid, 0)).as_row(),
                "release_at": one.pending.release_at,
                "is_made": one.is_made,
                "generation": one.generation,
                "pinned_to": one.pinned_to,
                "is_put_off": one.is_put_off,
                "is_placed": one.is_placed,
            }
            for one in done
        ]
        await database.execute(
            Q.finish_release,
            rows=orjson.dumps(rows).decode(),
            uids=sorted(one.pending.uid for one in done),
            patience_s=STATUS_PATIENCE,
        )

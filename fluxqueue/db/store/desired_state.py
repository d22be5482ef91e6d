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

from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.db.store.statuses import WrittenStatus
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.holders import AUTHOR, SUSPENDED
from fluxqueue.fluxjob.node import Destination
from fluxqueue.fluxjob.pod_facts import cut
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.process.pacing import STATUS_PATIENCE
from fluxqueue.workload.gang_group import GangGroup
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
    have. ``is_placed``: its template may have that of an earlier release. ``is_sent``: its template
    has its placement, and its pods come. ``group``: the PodGroup of the pods that are placed.
    ``needs_group``: its pods are placed only in that. ``is_released``: this was done, and only its
    group is looked at. ``owner``: where it is, for a kind without an
    entry in ``workload.kinds``.
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
    is_sent: bool = False
    group: GangGroup | None = None
    needs_group: bool = False
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """A row with a pending release. ``wanted`` is None where its object may stay as it is.

    ``waited_s``: seconds since it was submitted, None if it has run before.
    """

    uid: str
    release_at: datetime | None
    wanted: DesiredState | None
    waited_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """A row with a pending release.

    ``members``: UIDs and names of its pods. ``pin``: where the one node of all its slots is.
    ``places``: number, destination and resources of each slot. ``is_bound``: one of its placed pods
    is bound to a node. ``is_retry``: an earlier start of it failed.
    ``is_released``: its release was recorded.
    """

    uid: str
    namespace: str
    workload_kind: str
    workload_name: str
    state: str
    author_hold: str | None
    vacate_by: str | None
    cancel_by: str | None
    is_gone: bool
    is_deleting: bool
    release_at: datetime | None
    pinned_to: str | None
    is_placed: bool
    observed: Mapping[str, Any]
    jobid: int
    size: int
    allocated_s: float | None
    waited_s: float | None
    members: Sequence[tuple[str, str]] | None
    pin: Sequence[Any] | None
    places: Sequence[Any] | None
    is_bound: bool
    is_retry: bool
    is_released: bool


async def read_pending_releases(database: Database, uids: Collection[str]) -> list[PendingRelease]:
    """Return the pending releases of ``uids``, while a controller compares rows and cluster."""
    rows = await database.fetch(Q.pending_releases, ReleaseRow, uids=list(uids))
    return [PendingRelease(row.uid, row.release_at, _desired(row), row.waited_s) for row in rows]


def _desired(row: ReleaseRow) -> DesiredState | None:
    if row.is_gone:
        return None
    facts = WorkloadFacts.of(row.observed)
    wanted = _wanted(row, facts)
    return None if wanted is None else replace(wanted, owner=read_reference(facts.owner))


def _wanted(row: ReleaseRow, facts: WorkloadFacts) -> DesiredState | None:
    name = (row.uid, row.workload_kind, row.namespace, row.workload_name)
    if row.cancel_by is not None:
        members = tuple((uid, pod) for uid, pod in row.members or ())
        return DesiredState(*name, is_deleted=True, members=members)
    if not facts.is_suspendable or row.is_deleting:
        return None
    is_pinned, is_placed = row.pinned_to is not None, row.is_placed
    if row.state in {"Allocated", "Running"}:
        if row.vacate_by == AUTHOR:
            return None  # what its author has suspended is left alone until its author resumes it
        if row.vacate_by is not None:
            return DesiredState(*name, is_suspended=True, is_pinned=is_pinned, is_placed=is_placed)
        pin = Destination(*row.pin) if row.pin else None
        if pin is not None:
            # Sent again it must change nothing: the BatchJob may run, and its template be fixed.
            return DesiredState(*name, pin=pin, is_pinned=is_pinned and row.pinned_to != pin.name)
        placement, is_sent = _placement(row), is_placed and not facts.is_suspended
        return DesiredState(
            *name,
            is_pinned=is_pinned and facts.is_suspended,
            placement=placement,
            # An interrupted release may have left a placement, too.
            is_placed=facts.is_placeable and facts.is_suspended,
            is_sent=is_sent,
            group=_group(row, facts) if placement is not None or is_sent else None,
            needs_group=row.is_retry,
            is_released=is_sent and row.is_released,
        )
    is_authors = row.author_hold in {AUTHOR, SUSPENDED}
    is_waiting = FluxJobState(row.state).is_waiting
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


def _placement(row: ReleaseRow) -> IndexPlacement | None:
    """Return where the pod of each index goes. Index 0 has slot 0, and so on (``follow``)."""
    places = row.places or ()
    if row.allocated_s is None or [number for number, _, _ in places] != list(range(row.size)):
        return None
    slots = [(Destination(*to), {k: int(n) for k, n in has.items()}) for _, to, has in places]
    # The time counts from the decision: a release that is sent twice writes the same text.
    return plan_placement(row.jobid, slots, row.allocated_s)


def _group(row: ReleaseRow, facts: WorkloadFacts) -> GangGroup | None:
    """Return the PodGroup that binds all of its pods or none, or None for a single pod."""
    if row.size < 2:
        return None
    # Pods that have ended do not count for kube-scheduler.
    least = 1 if row.is_bound else max(1, min(row.size, facts.wanted))
    start_s = int(row.allocated_s or 0)
    return GangGroup(row.uid, row.workload_name, least, start_s, facts.priority_class)


@dataclass(frozen=True, slots=True)
class Released:
    """What was done for one row.

    ``is_made``: its object is now as was wanted, with ``pinned_to`` in its template, or with a
    placement (``is_placed``).
    ``generation``: the last in which the BatchJob is, or may have been, released. ``written``: its
    status, where that was published. ``is_put_off``: it is published later, if the state lasts.
    ``groupless``: the PodGroup that its pods name, and why it cannot be made.
    """

    pending: PendingRelease
    is_made: bool = False
    generation: int | None = None
    pinned_to: str | None = None
    written: WrittenStatus | None = None
    is_put_off: bool = False
    is_placed: bool = False
    groupless: str = ""


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
                "groupless": cut(one.groupless),
            }
            for one in done
        ]
        await database.execute(
            Q.finish_release,
            rows=rows,
            uids=sorted(one.pending.uid for one in done),
            patience_s=STATUS_PATIENCE,
        )

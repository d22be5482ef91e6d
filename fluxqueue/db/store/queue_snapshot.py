"""The queue as a cycle sees it: new FluxJobs, the head of each queue, and held FluxJobs.

``worker.schedule`` calls it within the cycle's transaction. ``lock_queue`` locks all FluxJobs that
the cycle may change. The other functions read and write only those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.store.moves import Moved, apply_move, give_reasons
from fluxqueue.errors import InvalidInput, TooComplex
from fluxqueue.fluxjob.holders import BY_COMPLEXITY, BY_QUARANTINE, BY_QUEUE, SET_ASIDE
from fluxqueue.fluxjob.lifecycle import (
    ADMITTED_BY_QUEUE,
    IMPOSSIBLE,
    OUT_OF_QUARANTINE,
    POSSIBLE,
    QUARANTINED,
    REFUSED_BY_QUEUE,
)
from fluxqueue.fluxjob.provision import Provision
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.policy.queue_rules import PLANNED_S, QueueRules
from fluxqueue.prediction.durations import Durations
from fluxqueue.prediction.learned_times import LearnedTimes
from fluxqueue.prediction.predictor import Likeness
from fluxqueue.scheduler.pending_job import LearnedPlan, PendingJob, by_ended_runs
from fluxqueue.workload.constraints import is_more_than_preferred

REQUESTS_KEPT = 4096
"""Different requests remembered in their parsed form."""

REASON_MAX = 500
"""Characters of an error that a reason shows."""

QueueUser = tuple[str, str]
"""A user of a queue: queue name, user name."""


class PendingRow(NamedTuple):
    """What a cycle reads of a FluxJob. ``refused``: nodes that refused its pods."""

    uid: str
    jobid: int
    place: int
    is_limited: bool
    priority: int
    queue: str
    user_name: str
    request: str
    provision: str | None
    refused: Sequence[str] | None
    ignored: Sequence[str] | None
    namespace: str
    state: str
    reason: str
    accepted_by: str | None
    waits_gated: bool
    owner: str
    template: str | None


class LockedRow(NamedTuple):
    """A row that a cycle has locked, and which kinds of decisions it makes possible."""

    uid: str
    is_new: bool
    lacks: bool
    is_planned: bool


@dataclass(frozen=True, slots=True)
class Applicant:
    """A FluxJob that its queue admits or not. ``is_new``: it has not been admitted yet."""

    job: PendingJob
    namespace: str
    state: str
    reason: str
    is_new: bool
    waits_gated: bool = False


@dataclass(frozen=True, slots=True)
class QueueHead:
    """How far a cycle looks.

    ``depth`` counts in each queue that has none of its own. ``full``: users that cannot start any
    FluxJob while their others run. They must not fill the head of their queue. In ``crowded``
    queues the first few of each user are looked at as well, however many of one user come before
    them. Jobs with nodes under way (``owners``, by UID) are looked at wherever they are in the
    queue, because nothing else may use these nodes meanwhile.
    """

    depth: int
    examined_max: int
    have_nodes_changed: bool
    changed_queues: Collection[str] = ()
    full: Set[QueueUser] = frozenset()
    crowded: Collection[str] = ()
    owners: Collection[str] = ()


OF_EACH, OF_ALL = 20, 1_000
"""In a crowded queue: how many of each user are looked at beside its head, and how many in all."""


@lru_cache(maxsize=REQUESTS_KEPT)
def _request(text: str, planned_s: int) -> tuple[Jobspec, bool]:
    """Read a request, with the planned duration, and whether that is only planned.

    A long queue holds few different ones, and every cycle reads them.
    """
    jobspec = read_stored(orjson.loads(text))
    # Equal requests of two queues are one cached request. The queue determines the duration.
    planned = replace(jobspec, queue="", duration_s=jobspec.duration_s or float(planned_s))
    return planned, not jobspec.duration_s


@lru_cache(maxsize=REQUESTS_KEPT)
def _learned(text: str, planned_s: int, durations: Durations) -> tuple[Jobspec, LearnedPlan]:
    """Return a request for as long as it may run, and its plan. Jobs that are alike share them."""
    request, is_planned = _request(text, planned_s)
    return by_ended_runs(request, durations, is_planned=is_planned)


@dataclass(slots=True)
class Unreadable:
    """Rows with an unreadable request, by UID, and the error. Collected while rows are read.

    ``times`` is what ended runs say of the others.
    """

    errors: dict[str, Exception] = field(default_factory=dict)
    times: LearnedTimes = field(default_factory=LearnedTimes)

    def read(
        self, rows: Iterable[PendingRow], rules: Mapping[str, QueueRules]
    ) -> Iterator[tuple[PendingRow, PendingJob]]:
        """Return the readable ones with their rows."""
        for row in rows:
            try:
                job = pending_job(row, rules, self.times)
            except Exception as error:  # noqa: BLE001  one row must not hold up the others
                self.errors[row.uid] = error
            else:
                yield row, job


def pending_job(
    row: PendingRow, rules: Mapping[str, QueueRules], times: LearnedTimes
) -> PendingJob:
    """Read a row, with the values that its queue sets, and its plan by ended runs."""
    queue = rules.get(row.queue)
    planned_s = PLANNED_S if queue is None else queue.planned_s
    request, is_planned = _request(row.request, planned_s)
    learned = None
    if queue is not None and queue.learn.covers(is_declared=not is_planned):
        limit_s = int(request.duration_s) if row.is_limited and not is_planned else None
        like = Likeness(row.template or "", row.owner, row.queue, limit_s)
        durations = times.durations(like, int(request.duration_s))
        if durations is not None:
            request, learned = _learned(row.request, planned_s, durations)
    return PendingJob(
        row.uid,
        row.jobid,
        row.priority,
        request,
        row.queue,
        row.user_name,
        tuple(sorted(row.refused or ())),
        _provision(row.provision),
        # A preference has no effect, so no node refuses a pod because of it.
        is_unsure=is_more_than_preferred(row.ignored or ()),
        has_limit=row.is_limited,
        is_planned=is_planned,
        place=row.place,
        learned=learned,
    )


def _provision(text: str | None) -> Provision:
    """Read the annotation. A value of another release counts as the default."""
    return Provision(text) if text in set(Provision) else Provision.WHEN_NEEDED


async def _first_of_each(tx: Transaction, view: QueueHead) -> list[PendingRow]:
    """Return the first few of each user in crowded queues."""
    if not view.crowded:
        return []
    return await tx.fetch(
        Q.first_of_each,
        PendingRow,
        crowded=sorted(view.crowded),
        of_each=OF_EACH,
        of_all=OF_ALL,
    )


def _head_values(view: QueueHead) -> dict[str, Any]:
    pairs = sorted(view.full)
    return {
        "depth": view.depth,
        "full_queues": [queue for queue, _ in pairs],
        "full_users": [user for _, user in pairs],
        "owners": sorted(view.owners),
    }


@dataclass(frozen=True, slots=True)
class Locked:
    """What a cycle has locked. A kind that is not among it need not be read."""

    has_new: bool = True
    has_lacking: bool = True
    has_plan: bool = True
    has_waiting: bool = True
    uids: set[str] = field(default_factory=set)


async def lock_queue(tx: Transaction, view: QueueHead) -> Locked:
    """Lock every FluxJob that the cycle may change, in the order of their UIDs.

    All locks are taken at once and before the first change. Observations and reconciling lock in
    the same order. The second transaction therefore waits for the first, and no circle of waits can
    arise.
    """
    more = [row.uid for row in await _first_of_each(tx, view)]
    if view.changed_queues:
        more += await tx.fetch(Q.uids_in_queues, str, queues=sorted(view.changed_queues))
    rows = await tx.fetch(
        Q.lock_queue,
        LockedRow,
        examined_max=view.examined_max,
        have_nodes_changed=view.have_nodes_changed,
        more=more,
        **_head_values(view),
    )
    # This cycle may look anew at what could not run, or was held by its queue.
    is_new_possible = view.have_nodes_changed or bool(view.changed_queues)
    return Locked(
        has_new=is_new_possible or any(row.is_new for row in rows),
        has_waiting=is_new_possible or bool(rows),
        has_lacking=any(row.lacks for row in rows),
        has_plan=any(row.is_planned for row in rows),
        uids={row.uid for row in rows},
    )


async def keep_locked(tx: Transaction, rows: list[PendingRow], locked: Locked) -> list[PendingRow]:
    """Return the rows that this transaction has locked, or can lock without waiting.

    A row may become due between ``lock_queue`` and the next read. Waiting for it would break the
    order of UIDs and cause a deadlock. Its own transaction wakes the next cycle.
    """
    if more := [row.uid for row in rows if row.uid not in locked.uids]:
        locked.uids.update(await tx.fetch(Q.lock_free, str, uids=more))
    return [row for row in rows if row.uid in locked.uids]


async def queue_head(
    tx: Transaction,
    view: QueueHead,
    rules: Mapping[str, QueueRules],
    unreadable: Unreadable,
    locked: Locked | None = None,
) -> list[PendingJob]:
    """Return the first FluxJobs of each queue in one order: priority, then place."""
    if locked is not None and not locked.has_waiting:
        return []
    found = await tx.fetch(Q.queue_head, PendingRow, **_head_values(view))
    found += await _first_of_each(tx, view)
    # A user's first may be in the head, too.
    rows = sorted(
        {row.uid: row for row in found}.values(), key=lambda row: (-row.priority, row.place)
    )
    if locked is not None:
        rows = await keep_locked(tx, rows, locked)
    return [job for _, job in unreadable.read(rows, rules)]


def _applicants(
    rows: Iterable[PendingRow], rules: Mapping[str, QueueRules], unreadable: Unreadable
) -> list[Applicant]:
    return [
        Applicant(
            job=job,
            namespace=row.namespace,
            state=row.state,
            reason=row.reason,
            is_new=row.accepted_by != row.queue,
            waits_gated=row.waits_gated,
        )
        for row, job in unreadable.read(rows, rules)
    ]


async def unexamined(
    tx: Transaction,
    rules: Mapping[str, QueueRules],
    unreadable: Unreadable,
    locked: Locked,
    *,
    limit: int,
) -> list[Applicant]:
    """Return FluxJobs not examined since they came, changed or were moved. Users take turns."""
    rows = await tx.fetch(Q.unexamined, PendingRow, limit=limit)
    return _applicants(await keep_locked(tx, rows, locked), rules, unreadable)


async def in_queues(
    tx: Transaction,
    rules: Mapping[str, QueueRules],
    queues: Collection[str],
    unreadable: Unreadable,
) -> list[Applicant]:
    """Return what waits in ``queues``, or is held by them: the rules have changed since."""
    rows = await tx.fetch(Q.examined_in_queues, PendingRow, queues=sorted(queues))
    return _applicants(rows, rules, unreadable)


async def hold(tx: Transaction, refused: Sequence[tuple[Applicant, str]]) -> None:
    """Hold what its queue does not admit, with the reason."""
    rows = [Moved(one.job.uid, reason, BY_QUEUE) for one, reason in refused]
    await apply_move(tx, REFUSED_BY_QUEUE, rows)


async def quarantine(tx: Transaction, failed: Mapping[str, Exception], software: str) -> None:
    """Hold what could not be read or decided, with the reason.

    It is tried again when its request changes, when it is released, and by other ``software``.
    """
    rows = [
        Moved(
            uid,
            _why_aside(error),
            BY_COMPLEXITY if isinstance(error, TooComplex) else BY_QUARANTINE,
        )
        for uid, error in failed.items()
    ]
    await apply_move(tx, QUARANTINED, rows, query=Q.move_quarantined, software=software)


def _why_aside(error: Exception) -> str:
    if isinstance(error, InvalidInput):
        return f"is set aside: {error}"[:REASON_MAX]
    said = f"{type(error).__name__}: {error}".replace("\0", "")[:REASON_MAX]
    return f"is set aside, since it cannot be decided ({said}); an administrator can release it"


async def try_quarantined_again(tx: Transaction, software: str) -> None:
    """Have what other software has set aside examined like new FluxJobs."""
    uids = await tx.fetch(
        Q.quarantined_by_others, str, holders=sorted(SET_ASIDE), software=software
    )
    again = [Moved(uid) for uid in uids]
    await apply_move(tx, OUT_OF_QUARANTINE, again, query=Q.move_out_of_quarantine)


async def let_go(tx: Transaction, uids: Collection[str]) -> None:
    """Admit what its queue held. It is examined like a new one."""
    await apply_move(tx, ADMITTED_BY_QUEUE, [Moved(uid) for uid in uids])


async def mark_examined(
    tx: Transaction, jobs: Sequence[PendingJob], never: Sequence[tuple[PendingJob, str]]
) -> None:
    """Mark FluxJobs as examined and admitted, and write why the others are impossible."""
    await tx.execute(
        Q.mark_examined,
        uids=sorted([job.uid for job in jobs] + [job.uid for job, _ in never]),
    )
    await apply_move(tx, IMPOSSIBLE, [Moved(job.uid, reason) for job, reason in never])


async def unsatisfiable(
    tx: Transaction, rules: Mapping[str, QueueRules], unreadable: Unreadable
) -> list[PendingJob]:
    """Return FluxJobs that were found impossible before nodes changed."""
    rows = await tx.fetch(Q.unsatisfiable, PendingRow)
    return [job for _, job in unreadable.read(rows, rules)]


async def update_impossible(tx: Transaction, never: Sequence[tuple[PendingJob, str]]) -> None:
    """Write why FluxJobs are still impossible, where the reason has changed."""
    await give_reasons(tx, {job.uid: reason for job, reason in never}, {FluxJobState.UNSATISFIABLE})


async def set_pending_again(tx: Transaction, jobs: Sequence[PendingJob]) -> None:
    """Set FluxJobs that fit now to ``Pending``. Their queue's rules may have changed meanwhile."""
    await apply_move(tx, POSSIBLE, [Moved(job.uid) for job in jobs])

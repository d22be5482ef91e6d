"""Writes what the controller saw of workloads and their pods.

Only the controller calls it. Each function takes whole present states, never events. Writing the
same state twice therefore changes nothing, and the last writer is right. Rows are locked in the
order of their UIDs here, in ``decisions`` and in ``reconciling``, so that these cannot deadlock.
For this reason one call writes all workloads of a transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import value
from fluxqueue.db.store.ends import follow_ends, next_limit
from fluxqueue.db.store.notices import Notice, leave_notices
from fluxqueue.db.store.pod_rows import save_pods
from fluxqueue.db.store.starts import mark_refused
from fluxqueue.db.store.workload_rows import SeenRow
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.faults import Fault, described
from fluxqueue.fluxjob.holders import UNSEEN
from fluxqueue.fluxjob.lifecycle import on_first_seen, on_seen
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen
from fluxqueue.fluxjob.pod_facts import OF_GROUP, PodFact
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.jobspec.growth import asks_for_more
from fluxqueue.jobspec.parse import read_stored


async def save_workloads(
    tx: Transaction,
    seen: Sequence[WorkloadSeen],
    gone: Mapping[str, WorkloadGone] | None = None,
    *,
    before: Mapping[str, WorkloadSeen] | None = None,
    jobids: Mapping[str, int] | None = None,
) -> bool:
    """Write workloads and their pods. The rows request what follows from them.

    Returns whether any FluxJob waits for capacity, as far as these workloads are known already.

    Parameters
    ----------
    seen : workloads that exist.
    gone : by UID, those that no longer exist.
    before : what the caller wrote last of some of them. Of their pods, only differences are
        written.
    jobids : numbers that new rows get instead of the next ones, by UID.
    """
    gone, jobids = gone or {}, jobids or {}
    columns = {one.uid: _columns(one) for one in seen}
    asked = [{name: of[name] for name in _COMPARED} for of in columns.values()]
    locked = await tx.fetch(
        Q.lock_seen,
        SeenRow,
        uids=[*(one.uid for one in seen), *gone],
        rows=asked,
    )
    old = {row.uid: row for row in locked}
    # A row that no longer exists is written whole: a difference alone would lose its other pods.
    before = {uid: before[uid] for uid in old if uid in before} if before else {}
    known = [one for one in seen if one.uid in old]
    await _write(
        tx, Q.update_seen, [_next(one, columns[one.uid], old[one.uid], before) for one in known]
    )
    await follow_ends(tx, known, old, before)
    new = {
        one.uid: {**columns[one.uid], **asdict(on_first_seen(one)), "jobid": jobids.get(one.uid)}
        for one in seen
        if one.uid not in old
    }
    await _write(tx, Q.insert_numbered, [row for uid, row in new.items() if uid in jobids])
    await _write(tx, Q.insert_seen, [row for uid, row in new.items() if uid not in jobids])
    left = sorted(old.keys() & gone.keys())
    if left:
        await tx.execute(
            Q.workloads_gone,
            uids=left,
            results=[gone[uid].result for uid in left],
            seen=[gone[uid].is_seen for uid in left],
            unseen=UNSEEN,
        )
    pods: list[tuple[str, str, Sequence[PodFact]]]
    pods = [(one.uid, one.namespace, one.pods) for one in seen]
    pods += [(uid, gone[uid].namespace, gone[uid].pods) for uid in left]
    await save_pods(tx, pods, before)
    await _tell_faults(tx, seen, old)
    await mark_refused(tx, [pod.uid for one in seen for pod in one.pods if pod.is_refused])
    return any(row.is_awaited for row in locked)


async def _tell_faults(
    tx: Transaction, seen: Sequence[WorkloadSeen], stored: Mapping[str, SeenRow]
) -> None:
    """Emit Events on what cannot be used, when it is new."""
    notices = []
    for one in (one for one in seen if one.facts.faults):
        before = stored[one.uid].faults if one.uid in stored else None
        if before != [asdict(fault) for fault in one.facts.faults]:
            notices.append(_notice(one.uid, one.facts.faults))
    await leave_notices(tx, notices)


def _notice(uid: str, faults: Sequence[Fault]) -> Notice:
    word, message = described(faults)
    digest = hashlib.sha256(message.encode()).hexdigest()[:16]
    return Notice(uid, word, message, key=f"{word}/{digest}", is_warning=True)


async def note_unread(tx: Transaction, uid: str, fault: Fault) -> bool:
    """Note on its row that a workload cannot be read or written.

    The next good observation removes the note. Returns whether the workload has a row.
    """
    observed = await tx.fetch_one(Q.lock_observed, value, uid=uid)
    if observed is None:
        return False
    if WorkloadFacts.of(observed).faults != (fault,):
        await tx.execute(Q.note_faults, uid=uid, faults=[fault])
        await leave_notices(tx, [_notice(uid, [fault])])
    return True


async def _write(tx: Transaction, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run a statement on rows, in their order. Values of None are left out: they read as null."""
    if rows:
        said = [
            {name: value for name, value in row.items() if value is not None} | {"position": number}
            for number, row in enumerate(rows)
        ]
        await tx.execute(statement, rows=said)


def _next(
    one: WorkloadSeen,
    columns: Mapping[str, Any],
    old: SeenRow,
    before: Mapping[str, WorkloadSeen],
) -> dict[str, Any]:
    """Return what the row ``old`` becomes. ``columns``: as it was seen."""
    last = before.get(one.uid)
    change = on_seen(
        old.stored(),
        one,
        needs_look=needs_look(last, one),
        is_reshaped=is_reshaped(last, one),
        has_progress=last is not None and one.succeeded > last.succeeded,
    )
    values = {**columns, **asdict(change)}
    values["asks_for_more"] = _asks_for_more(old.former_request, one.request)
    if old.is_same_request:
        del values["request"]
    if old.allocated_at_s is not None:
        # The slots were decided for the stored request. The newer request is stored beside it.
        request = values.pop("request", None)
        if request is not None:
            asked = {"request": request, "size": one.size, "duration_s": one.duration_s}
            values["observed"] = replace(one.facts, asked=asked).to_json()
        # What limits it counts as it is now: its end is enforced by what its object says.
        values |= {"size": old.size, "duration_s": next_limit(one, old).duration_s}
    return values


def _asks_for_more(former: Mapping[str, Any] | None, request: Mapping[str, Any]) -> bool:
    """Return whether a changed request takes a new place. ``former`` is None if it is the same."""
    if former is None:
        return False
    try:
        return asks_for_more(read_stored(former), read_stored(request))
    except InvalidInput:
        return True


def _columns(one: WorkloadSeen) -> dict[str, Any]:
    """Return columns of a row as they were seen, by name."""
    return {name: getattr(one, name) for name in _AS_SEEN} | {
        "observed": one.facts.to_json(),
        "begin_at": to_rfc3339(one.begin_at_s) if one.begin_at_s is not None else None,
    }


_AS_SEEN = (
    *("uid", "namespace", "name", "workload_kind", "workload_name", "user_name", "queue"),
    *("flux_uid", "flux_version", "request", "size", "duration_s"),
)
_COMPARED = ("uid", "request", "observed", "queue", "begin_at")
"""Columns that decide the order of the queue."""


def needs_look(before: WorkloadSeen | None, seen: WorkloadSeen) -> bool:
    """Return whether reconciling may have work for slots and pods of an allocated workload.

    An ungated or bound pod changes nothing, nor does a further running pod.
    """
    if before is None or _shape(before) != _shape(seen):
        return True
    old, new = ({pod.uid: _looked_at(pod) for pod in one.pods} for one in (before, seen))
    if any(old.get(uid) != fact for uid, fact in new.items()) or old.keys() != new.keys():
        return True
    return _runs(seen) and not _runs(before)


def is_reshaped(before: WorkloadSeen | None, seen: WorkloadSeen) -> bool:
    """Return whether the pods of a workload ask for something else, whatever their number.

    Only what this process has seen itself is compared. Another version, or other settings, may read
    the same object differently.
    """
    if before is None or not seen.facts.is_suspendable or before.request is seen.request:
        return False
    if before.facts.generation == seen.facts.generation:
        return False  # an annotation, or a setting of ours: its pods are as they were
    # What the cluster adds, such as the defaults of a LimitRange, is no edit of its author.
    asked = (one.request if one.authored is None else one.authored for one in (before, seen))
    old, new = (_without_counts(one["resources"]) for one in asked)
    return bool(old != new)


def _without_counts(part: Any) -> Any:
    """Return the tree of a request's resources without the numbers of its slots."""
    if isinstance(part, Mapping):
        is_slot = part.get("type") == "slot"
        return {
            key: _without_counts(one)
            for key, one in part.items()
            if key != "exclusive" and not (is_slot and key == "count")
        }
    return [_without_counts(one) for one in part] if isinstance(part, list) else part


def _shape(seen: WorkloadSeen) -> tuple[object, ...]:
    """Return what of a workload itself decides its slots."""
    facts = seen.facts
    own = (facts.wanted, facts.wanted_of, facts.is_suspended, facts.is_idle, facts.ended_indexes)
    return (*own, facts.is_whole, seen.result, seen.is_deleting, seen.pinned_to, seen.is_placed)


def _looked_at(pod: PodFact) -> tuple[object, ...]:
    # That a pod cannot be bound, and whether its group is the cause. Not each change of the words.
    words = bool(pod.unschedulable), pod.unschedulable.startswith(OF_GROUP)
    return pod.is_terminal, pod.is_terminating, pod.is_refused, pod.index, words


def _runs(seen: WorkloadSeen) -> bool:
    return any(pod.phase == "Running" for pod in seen.pods)

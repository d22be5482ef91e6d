"""What the controller saw, written down: workloads with their pods, nodes, pods of others.

Called by the controller only. Each function takes whole present states, never events, so writing
the same thing twice changes nothing, and the last writer is right. Rows are locked in the order
of their UID here, in ``decisions`` and in ``settling``, so that no two of them can deadlock; that
is why all workloads of a transaction are written by one call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.life.notices import UNMANAGED_USE, Notice, leave_notices
from fluxqueue.db.tables import LIVING
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.follow import PodFact
from fluxqueue.fluxjob.holders import CHANGED_REASON, LOST, UNSEEN
from fluxqueue.fluxjob.indexes import NO_INDEXES
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.fluxjob.request import describe


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """A workload and all its pods as the controller sees them now.

    ``has_hold``: it is held by annotation. ``generation``: of its object, which tells a suspension
    by its author from the one before our release; ``is_suspended_again``: this one is ours, too,
    late where its turn has come meanwhile. ``is_idle``: it is suspended, and whoever makes
    its pods says that none is left. ``ended_indexes``: completion indexes for which
    no pod will be made any more, as an ``int4multirange``. ``has_affinity``: its pods require node
    affinity of their own. ``is_suspendable``, ``replaces_pods``: of its kind (``workload.kinds``).
    ``is_gathered``: no object stands for it, its pods make it; ``missing`` of them are yet to come,
    as ``gather_reason`` says, and are overdue after ``gather_s`` seconds. ``further``: a jobspec of
    every kind of slots that its pods need, where those that came later may need others than the
    first; ``made_by``: who makes its pods, where it is not we who can delete it. ``owner``: what
    makes its pods, of a kind that is no entry (``workload.references``); ``wanted_of``: of
    ``wanted``, how many need each kind of slots. ``restarts_on_loss``: where a pod is lost with its
    node, all of them start anew.
    ``is_pinnable``: its pod template may name the node of all its slots;
    ``pinned_to``: the node that it names, since our gate is not in it.
    ``flux_version``: the resourceVersion with which its FluxJob was made, where that was just now.
    """

    uid: str
    namespace: str
    name: str
    workload_kind: str
    is_suspendable: bool
    replaces_pods: bool
    workload_name: str
    flux_uid: str | None
    user_name: str
    queue: str
    priority: int
    held_by: str | None
    request: Mapping[str, Any]
    size: int
    duration_s: int | None
    begin_at_s: int | None
    depends_on: Sequence[Mapping[str, str]]
    ignored: Sequence[str]
    wanted: int
    result: str | None
    is_deleting: bool
    is_gone: bool
    is_suspended: bool
    is_suspended_again: bool = False
    pods: tuple[PodFact, ...] = field(default=())
    has_hold: bool = False
    generation: int = 0
    is_idle: bool = False
    ended_indexes: str = NO_INDEXES
    has_affinity: bool = False
    is_pinnable: bool = False
    pinned_to: str | None = None
    is_gathered: bool = False
    missing: int = 0
    gather_reason: str = ""
    gather_s: int = 0
    further: Mapping[str, Any] | None = None
    made_by: str | None = None
    owner: Mapping[str, str] | None = None
    wanted_of: Mapping[str, int] | None = None
    restarts_on_loss: bool = False
    flux_version: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WorkloadGone:
    """A workload that is there no more, and the pods of it that are.

    ``result``: how it had ended, as far as what was seen last tells. ``is_seen``: what was seen
    last is how it was at its end; else it may have ended some other way, while nothing watched.
    """

    namespace: str = ""
    pods: Sequence[PodFact] = ()
    result: str | None = None
    is_seen: bool = True


_SEEN = """
WITH seen AS (
    SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        uid text, namespace text, name text, workload_kind text, workload_name text,
        flux_uid text, user_name text, queue text, priority int, held_by text, request jsonb,
        size int, duration_s int, begin_at_s bigint, depends_on jsonb, ignored jsonb,
        wanted int, result text, is_deleting bool, is_gone bool, is_suspended bool,
        is_suspended_again bool, position int,
        jobid bigint, has_hold bool, generation bigint, is_idle bool, ended_indexes int4multirange,
        has_affinity bool, is_suspendable bool, replaces_pods bool, is_pinnable bool,
        pinned_to text, needs_look bool, is_reshaped bool, is_gathered bool, missing int,
        gather_reason text, gather_s int, further jsonb, made_by text, owner jsonb, wanted_of jsonb,
        restarts_on_loss bool, flux_version text)
)
"""

# Two statements and no upsert: an upsert would draw a jobid for every row it only updates.
_INSERT = """
INSERT INTO fluxjobs (
    uid, namespace, name, workload_kind, workload_name, flux_uid, flux_version, user_name, queue,
    asked_priority, held_by, author_hold, request, size, duration_s, begin_at, depends_on, ignored,
    wanted, result, is_deleting, is_gone, is_suspended, idle_in, ended_indexes, has_affinity,
    is_suspendable, replaces_pods, is_pinnable, pinned_to, is_gathered, missing, gather_reason,
    gather_s, further, made_by, owner, wanted_of, restarts_on_loss, state, reason, settle_at,
    release_at)
SELECT uid, namespace, name, workload_kind, workload_name, flux_uid, flux_version, user_name, queue,
    priority, held_by, CASE WHEN has_hold THEN 'annotation' ELSE held_by END, request, size,
    duration_s, to_timestamp(begin_at_s), depends_on, ignored,
    wanted, result, is_deleting, is_gone, is_suspended, CASE WHEN is_idle THEN generation END,
    ended_indexes, has_affinity, is_suspendable, replaces_pods, is_pinnable, pinned_to,
    is_gathered, missing, gather_reason, gather_s, nullif(further, 'null'), made_by,
    nullif(owner, 'null'), nullif(wanted_of, 'null'), restarts_on_loss,
    CASE WHEN held_by IS NULL THEN 'Pending' ELSE 'Held' END,
    CASE WHEN held_by = 'author'
         THEN fluxjob_author_reason(CASE WHEN has_hold THEN 'annotation' END) ELSE '' END,
    CASE WHEN result IS NOT NULL OR is_deleting THEN now() END,
    -- Its author has let it go: it is suspended again until its turn comes.
    CASE WHEN is_suspendable AND NOT is_suspended AND result IS NULL AND NOT is_deleting
         THEN now() END
FROM seen ORDER BY position
"""

_INSERT_AS = _INSERT.replace("(\n    uid", "(\n    jobid, uid", 1).replace(
    "SELECT uid", "OVERRIDING SYSTEM VALUE SELECT jobid, uid", 1
)
"""For rows that had a number before: those of a database that was lost (``db.life.rebuild``)."""

# A BatchJob that is suspended in a later generation than our release made, and not by us, was
# suspended by its author: its pods end, it goes back to the queue and stays held until it is
# resumed. (Before our release it is suspended by us.)
_UPDATE = """
, stored AS (
    SELECT f.uid, f.author_hold, f.state IN ('Allocated', 'Running') AS is_let_go,
           f.vacate_by IS NULL AND f.state IN ('Allocated', 'Running')
           AND seen.is_suspended AND NOT seen.is_suspended_again
           AND seen.generation > f.let_go_at
           AND seen.result IS NULL AND NOT seen.is_deleting AS is_stopped,
           f.vacate_by = 'author' AND NOT seen.is_suspended AS is_resumed,
           -- Its author edited its template while it was suspended: nothing was decided for that.
           f.is_suspendable AND f.state IN ('Allocated', 'Running')
           AND NOT seen.is_suspended AND seen.result IS NULL AND NOT seen.is_deleting
           AND ((f.vacate_by = 'author' AND f.request IS DISTINCT FROM seen.request)
                OR (f.vacate_by IS NULL AND seen.is_reshaped)) AS is_changed,
           f.state = 'Held' AND f.held_by IN ('quarantine', 'too-complex')
           AND f.request <> seen.request AS is_set_aside,
           coalesce(f.held_by NOT IN ('author', 'dependency', 'queue', 'quarantine',
                                      'too-complex'), false) AS is_operators
    FROM fluxjobs f JOIN seen USING (uid)
), ruled AS (
    SELECT stored.*, CASE
        WHEN seen.has_hold THEN 'annotation'
        WHEN seen.held_by IS NOT NULL THEN seen.held_by
        WHEN seen.is_suspended AND (is_stopped OR author_hold = 'suspended') THEN 'suspended'
        END AS hold
    FROM stored JOIN seen USING (uid)
)
UPDATE fluxjobs f SET
    flux_uid = coalesce(seen.flux_uid, f.flux_uid),
    flux_version = coalesce(seen.flux_version, f.flux_version),
    -- What goes loses its pods, which may have told how it ended.
    wanted = seen.wanted,
    result = CASE WHEN seen.is_deleting THEN coalesce(seen.result, f.result) ELSE seen.result END,
    is_deleting = seen.is_deleting OR f.cancel_by IS NOT NULL, is_gone = seen.is_gone,
    is_suspended = seen.is_suspended, ended_indexes = seen.ended_indexes,
    idle_in = CASE WHEN seen.is_idle THEN seen.generation END,
    has_affinity = seen.has_affinity, is_suspendable = seen.is_suspendable,
    missing = seen.missing, gather_reason = seen.gather_reason, gather_s = seen.gather_s,
    further = nullif(seen.further, 'null'), made_by = seen.made_by,
    owner = nullif(seen.owner, 'null'), wanted_of = nullif(seen.wanted_of, 'null'),
    restarts_on_loss = seen.restarts_on_loss,
    replaces_pods = seen.replaces_pods, is_pinnable = seen.is_pinnable,
    pinned_to = CASE WHEN seen.generation >= coalesce(f.let_go_at, 0) THEN seen.pinned_to
                     ELSE f.pinned_to END,
    settle_at = CASE
        WHEN seen.needs_look AND is_let_go THEN now()
        WHEN (seen.result IS NOT NULL OR seen.is_deleting)
             AND f.state NOT IN ('Completed', 'Failed', 'Cancelled') THEN now()
        WHEN is_changed THEN now()
        ELSE f.settle_at END,
    -- Its author has let it go: it is suspended again until its turn comes.
    release_at = CASE
        WHEN seen.is_suspendable AND NOT seen.is_suspended AND seen.result IS NULL
             AND NOT seen.is_deleting
             AND (f.state IN ('Gathering', 'Pending', 'Reserved', 'Held', 'Unsatisfiable')
                  -- Also if its author resumes what was suspended to be requeued.
                  OR is_changed
                  OR (is_let_go AND f.vacate_by <> 'author' AND seen.generation > f.let_go_at))
            THEN now()
        ELSE f.release_at END,
    -- What was asked for may change only while nothing has been given for it.
    request = CASE WHEN f.allocated_at IS NULL THEN seen.request ELSE f.request END,
    asked = CASE WHEN f.allocated_at IS NOT NULL AND f.request IS DISTINCT FROM seen.request
                 THEN jsonb_build_object('request', seen.request, 'size', seen.size,
                                         'duration_s', seen.duration_s) END,
    size = CASE WHEN f.allocated_at IS NULL THEN seen.size ELSE f.size END,
    duration_s = CASE WHEN f.allocated_at IS NULL THEN seen.duration_s ELSE f.duration_s END,
    begin_at = coalesce(f.set_begin_at, to_timestamp(seen.begin_at_s)),
    depends_on = seen.depends_on,
    asked_priority = seen.priority,
    queue = coalesce(f.set_queue, seen.queue), ignored = seen.ignored,
    -- Examined anew is also considered anew: the queue's order may have changed.
    is_examined = f.is_examined AND NOT coalesce(is_set_aside, false) AND f.request = seen.request
        AND f.asked_priority = seen.priority AND f.queue = coalesce(f.set_queue, seen.queue)
        AND f.depends_on = seen.depends_on
        AND f.begin_at IS NOT DISTINCT FROM
            coalesce(f.set_begin_at, to_timestamp(seen.begin_at_s))
        AND NOT coalesce(f.held_by = 'author' AND ruled.hold IS NULL, false),
    author_hold = ruled.hold,
    vacate_by = CASE WHEN is_stopped THEN 'author' WHEN is_changed THEN 'changed'
                     WHEN is_resumed THEN NULL ELSE f.vacate_by END,
    let_go_at = CASE WHEN (is_resumed AND NOT is_changed) OR (is_let_go AND f.let_go_at IS NULL
                                         AND f.vacate_by IS NULL AND NOT seen.is_suspended)
                     THEN seen.generation ELSE f.let_go_at END,
    held_by = CASE
        WHEN is_operators
             OR f.state NOT IN ('Gathering', 'Pending', 'Reserved', 'Unsatisfiable', 'Held')
            THEN f.held_by
        WHEN ruled.hold IS NOT NULL THEN 'author'
        WHEN is_set_aside AND ruled.hold IS NULL THEN NULL
        ELSE nullif(f.held_by, 'author') END,
    set_aside_by = CASE WHEN is_set_aside THEN NULL ELSE f.set_aside_by END,
    state = CASE
        WHEN f.state IN ('Gathering', 'Pending', 'Reserved', 'Unsatisfiable')
             AND ruled.hold IS NOT NULL
            THEN 'Held'
        WHEN f.state = 'Held' AND f.held_by = 'author' AND ruled.hold IS NULL THEN 'Pending'
        WHEN is_set_aside THEN 'Pending'
        WHEN f.state = 'Unsatisfiable' AND f.request <> seen.request THEN 'Pending'
        ELSE f.state END,
    reason = CASE
        WHEN f.state IN ('Gathering', 'Pending', 'Reserved', 'Unsatisfiable', 'Held')
             AND NOT is_operators
             AND ruled.hold IS NOT NULL
            THEN fluxjob_author_reason(ruled.hold)
        WHEN f.state = 'Held' AND f.held_by = 'author' AND ruled.hold IS NULL THEN ''
        WHEN is_stopped
            THEN fluxjob_author_reason('suspended') || '; goes back to the queue as its pods end'
        WHEN is_changed THEN CAST(:changed_reason AS text)
        WHEN is_resumed THEN ''
        WHEN is_set_aside THEN ''
        WHEN f.state = 'Unsatisfiable' AND f.request <> seen.request THEN ''
        ELSE f.reason END
FROM seen JOIN ruled USING (uid) WHERE f.uid = seen.uid
"""

# A gate never comes back, so nobody who saw the pod before it went puts it back.
_PODS = """
INSERT INTO pods AS p (uid, workload_uid, namespace, name, phase, is_gated, is_terminating, node,
                       completion_index, slot_kind, uses, used_first)
SELECT uid, workload_uid, namespace, name, phase, is_gated, is_terminating, node, completion_index,
       slot_kind, nullif(uses, '{}'), nullif(uses, '{}')
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, workload_uid text, namespace text, name text, phase text, is_gated bool,
    is_terminating bool, node text, completion_index int, slot_kind text, uses jsonb)
ON CONFLICT (uid) DO UPDATE SET
    phase = excluded.phase, is_gated = p.is_gated AND excluded.is_gated, node = excluded.node,
    is_terminating = excluded.is_terminating, uses = coalesce(excluded.uses, p.uses),
    used_first = coalesce(p.used_first, excluded.uses)
WHERE (p.phase, p.is_gated, p.node, p.is_terminating, p.uses) IS DISTINCT FROM
      (excluded.phase, p.is_gated AND excluded.is_gated, excluded.node, excluded.is_terminating,
       coalesce(excluded.uses, p.uses))
"""

# A slot is as large as it was granted, and larger by what its pod was made larger in place: what
# is made smaller may be wanted again, by the pod or by the one that comes in its place.
_RESIZE = """
WITH resized AS (
    SELECT s.allocation_id, s.number, coalesce(s.granted, s.resources) AS granted,
           (SELECT coalesce(jsonb_object_agg(g.key, CASE WHEN p.uses ? g.key THEN
                g.value::bigint + greatest(0, (p.uses ->> g.key)::bigint
                    - coalesce((p.used_first ->> g.key)::bigint, 0))
                ELSE g.value::bigint END), '{}')
            FROM jsonb_each_text(coalesce(s.granted, s.resources)) g) AS resources
    FROM pods p JOIN allocation_slots s ON s.pod_uid = p.uid AND s.state = 'held'
    WHERE p.uid = ANY(CAST(:pods AS text[])) AND (s.granted IS NOT NULL OR p.uses <> p.used_first)
)
UPDATE allocation_slots s SET resources = r.resources, granted = r.granted
FROM resized r WHERE s.allocation_id = r.allocation_id AND s.number = r.number
  AND s.resources <> r.resources
RETURNING s.allocation_id
"""

COUNT_UNMANAGED = """
WITH its AS (
    SELECT p.uid, CASE
        WHEN p.node IS NULL OR p.uses IS NULL THEN NULL
        WHEN s.pod_uid IS NOT NULL THEN (
            SELECT jsonb_object_agg(u.key, u.value::bigint
                                    - coalesce((s.resources ->> u.key)::bigint, 0))
            FROM jsonb_each_text(p.uses) u
            WHERE u.value::bigint > coalesce((s.resources ->> u.key)::bigint, 0))
        -- It is about to be given one of these.
        WHEN EXISTS (SELECT FROM allocations a JOIN allocation_slots o ON o.allocation_id = a.id
                     WHERE a.uid = p.workload_uid AND a.is_live AND o.state = 'free'
                       AND o.node = p.node) THEN NULL
        ELSE p.uses END AS unmanaged
    FROM pods p LEFT JOIN allocation_slots s
         ON s.pod_uid = p.uid AND s.state = 'held' AND s.node = p.node
    WHERE p.workload_uid = ANY(CAST(:uids AS text[]))
)
UPDATE pods p SET unmanaged = its.unmanaged FROM its
WHERE p.uid = its.uid AND p.unmanaged IS DISTINCT FROM its.unmanaged
RETURNING p.uid, p.workload_uid, p.namespace, p.name, p.node, p.unmanaged
"""
"""What of the pods of these workloads no slot covers: they count with what they ask for themselves,
whatever slot they were given, and as unmanaged where none was."""

_GONE = """
UPDATE fluxjobs f SET is_gone = true, is_deleting = true, wanted = 0,
    result = coalesce(f.result, g.result),
    reason = CASE WHEN f.state IN ('Allocated', 'Running') AND NOT g.is_seen
                       AND f.cancel_by IS NULL AND coalesce(f.result, g.result) IS NULL
                  THEN CAST(:unseen AS text) ELSE f.reason END,
    settle_at = CASE WHEN f.ended_at IS NULL THEN now() ELSE f.settle_at END
FROM unnest(CAST(:uids AS text[]), CAST(:results AS text[]), CAST(:seen AS bool[]))
     AS g (uid, result, is_seen)
WHERE f.uid = g.uid
"""


_LOCK = """
SELECT uid, (SELECT fluxqueue_room_is_awaited()) AS is_awaited FROM fluxjobs
WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR UPDATE
"""


async def save_workloads(
    tx: Transaction,
    seen: Sequence[WorkloadSeen],
    gone: Mapping[str, WorkloadGone] | None = None,
    *,
    before: Mapping[str, WorkloadSeen] | None = None,
    jobids: Mapping[str, int] | None = None,
) -> bool:
    """Write workloads and their pods; the rows ask for what follows from them.

    Gives whether anybody waits for room, as far as these are known already.

    Parameters
    ----------
    seen : workloads that are there.
    gone : by UID those that are not any more.
    before : what the caller wrote last of some of them: of their pods, only what is different is
        written.
    jobids : numbers that new rows get instead of the next ones, by UID.
    """
    gone, jobids = gone or {}, jobids or {}
    locked = await tx.fetch(_LOCK, uids=[*(one.uid for one in seen), *gone])
    old = {row["uid"] for row in locked}
    # A row that is not there any more is written whole.
    before = {uid: before[uid] for uid in old if uid in before} if before else {}
    await _write(tx, _UPDATE, [one for one in seen if one.uid in old], before)
    new = [one for one in seen if one.uid not in old]
    await _write(tx, _INSERT_AS, [one for one in new if one.uid in jobids], before, jobids)
    await _write(tx, _INSERT, [one for one in new if one.uid not in jobids], before)
    left = sorted(old & gone.keys())
    if left:
        await tx.execute(
            _GONE,
            uids=left,
            results=[gone[uid].result for uid in left],
            seen=[gone[uid].is_seen for uid in left],
            unseen=UNSEEN,
        )
    pods: list[tuple[str, str, Sequence[PodFact]]]
    pods = [(one.uid, one.namespace, one.pods) for one in seen]
    pods += [(uid, gone[uid].namespace, gone[uid].pods) for uid in left]
    await _save_pods(tx, pods, before)
    await _mark_refused(tx, [pod.uid for one in seen for pod in one.pods if pod.is_refused])
    return any(row["is_awaited"] for row in locked)


async def _mark_refused(tx: Transaction, pod_uids: Sequence[str]) -> None:
    """Remember which slots their nodes would not honour; settling gives them back."""
    if pod_uids:
        await tx.execute(
            "UPDATE allocation_slots SET refused_at = now()"
            " WHERE pod_uid = ANY(CAST(:pods AS text[])) AND refused_at IS NULL",
            pods=list(pod_uids),
        )


async def _write(
    tx: Transaction,
    statement: str,
    seen: Sequence[WorkloadSeen],
    before: Mapping[str, WorkloadSeen],
    jobids: Mapping[str, int] | None = None,
) -> None:
    rows = [
        _to_row(one)
        | {
            "position": position,
            "jobid": (jobids or {}).get(one.uid),
            "needs_look": needs_look(before.get(one.uid), one),
            "is_reshaped": is_reshaped(before.get(one.uid), one),
        }
        for position, one in enumerate(seen)
    ]
    if rows:
        said = {"changed_reason": CHANGED_REASON} if statement is _UPDATE else {}
        await tx.execute(_SEEN + statement, rows=orjson.dumps(rows).decode(), **said)


def _to_row(one: WorkloadSeen) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _FIELDS}


_FIELDS = tuple(one.name for one in fields(WorkloadSeen) if one.name != "pods")


def needs_look(before: WorkloadSeen | None, seen: WorkloadSeen) -> bool:
    """Whether anything may follow for slots and pods of an allocated workload (``settling``).

    That a pod was let go or bound changes nothing, nor does a further one that runs.
    """
    if before is None or any(getattr(before, name) != getattr(seen, name) for name in _LOOKED_AT):
        return True
    old, new = ({pod.uid: _looked_at(pod) for pod in one.pods} for one in (before, seen))
    if any(old.get(uid) != fact for uid, fact in new.items()) or old.keys() != new.keys():
        return True
    return _runs(seen) and not _runs(before)


def is_reshaped(before: WorkloadSeen | None, seen: WorkloadSeen) -> bool:
    """Whether the pods of a workload come to ask for something else, however many there are.

    Only what this process has seen itself is compared: another version, or other settings, may
    read the same object differently.
    """
    if before is None or not seen.is_suspendable or before.request is seen.request:
        return False
    if before.generation == seen.generation:
        return False  # an annotation, or a setting of ours: its pods are as they were
    old, new = (_without_counts(one.request["resources"]) for one in (before, seen))
    return bool(old != new)


def _without_counts(part: Any) -> Any:
    """The tree of a request's resources, the numbers of its slots left out."""
    if isinstance(part, Mapping):
        is_slot = part.get("type") == "slot"
        return {
            key: _without_counts(one)
            for key, one in part.items()
            if key != "exclusive" and not (is_slot and key == "count")
        }
    return [_without_counts(one) for one in part] if isinstance(part, list) else part


_LOOKED_AT = (
    "wanted",
    "wanted_of",
    "result",
    "is_deleting",
    "is_suspended",
    "is_idle",
    "ended_indexes",
    "pinned_to",
)


def _looked_at(pod: PodFact) -> tuple[object, ...]:
    return pod.is_terminal, pod.is_terminating, pod.is_refused, pod.index


def _runs(seen: WorkloadSeen) -> bool:
    return any(pod.phase == "Running" for pod in seen.pods)


async def _save_pods(
    tx: Transaction,
    seen: Sequence[tuple[str, str, Sequence[PodFact]]],
    before: Mapping[str, WorkloadSeen],
) -> None:
    """Make the pod rows of the given workloads (UID, namespace, pods) what they are now."""
    rows: list[dict[str, Any]] = []
    left: list[str] = []
    whole: list[str] = []
    gone: list[Mapping[str, Any]] = []
    for uid, namespace, pods in seen:
        known = before.get(uid)
        live = {pod.uid: pod for pod in pods if not pod.is_terminal}
        old = {pod.uid: pod for pod in known.pods if not pod.is_terminal} if known else {}
        rows += [_pod_row(uid, namespace, pod) for pod in live.values() if old.get(pod.uid) != pod]
        if known is None:
            whole.append(uid)
        else:
            left += old.keys() - live.keys()
    if whole:
        deleted = await tx.fetch(
            "DELETE FROM pods WHERE workload_uid = ANY(CAST(:workloads AS text[]))"  # noqa: S608
            " AND NOT uid = ANY(CAST(:pods AS text[]))"
            f" RETURNING {_GAVE_BACK}",
            workloads=whole,
            pods=[row["uid"] for row in rows],
        )
        gone += deleted
    if left:
        gone += await tx.fetch(
            "DELETE FROM pods WHERE uid = ANY(CAST(:pods AS text[]))"  # noqa: S608 constant
            f" RETURNING {_GAVE_BACK}",
            pods=left,
        )
    await tell_matcher(tx, "foreign", [row["node"] for row in gone if row["node"] is not None])
    if rows:
        await tx.execute(_PODS, rows=orjson.dumps(rows).decode())
    if running := [row["uid"] for row in rows if row["uses"] and row["phase"] == "Running"]:
        resized = await tx.fetch(_RESIZE, pods=running)
        ids = {str(row["allocation_id"]) for row in resized}
        await tell_matcher(tx, "allocation", sorted(ids))
    await count_unmanaged(tx, {row["workload_uid"] for row in rows if row["node"]})


_GAVE_BACK = "CASE WHEN unmanaged IS NOT NULL THEN node END AS node"


async def count_unmanaged(tx: Transaction, uids: Collection[str]) -> None:
    """Count what the pods of these workloads take beside their slots, tell the matcher, and tell
    the user on the FluxJob.
    """
    if not uids:
        return
    changed = await tx.fetch(COUNT_UNMANAGED, uids=sorted(uids))
    await tell_matcher(tx, "foreign", [row["node"] for row in changed])
    notices = [
        Notice(
            uid=row["workload_uid"],
            event=UNMANAGED_USE,
            message=f"pod {row['namespace']}/{row['name']} takes {describe(row['unmanaged'])} of"
            f" {row['node']} that no slot of this job covers; it counts as unmanaged",
            key=f"{UNMANAGED_USE}/{row['uid']}",
        )
        for row in changed
        if row["unmanaged"]
    ]
    await leave_notices(tx, notices)


def _pod_row(workload_uid: str, namespace: str, pod: PodFact) -> dict[str, Any]:
    return {
        "uid": pod.uid,
        "workload_uid": workload_uid,
        "namespace": namespace,
        "name": pod.name,
        "phase": pod.phase,
        "is_gated": pod.is_gated,
        "is_terminating": pod.is_terminating,
        "node": pod.node,
        "completion_index": pod.index,
        "slot_kind": pod.kind,
        "uses": dict(pod.uses),
    }


async def save_nodes(tx: Transaction, present: Sequence[NodeFact], gone: Sequence[str]) -> None:
    """Write nodes as they are, forget those that are gone, and tell the matcher of real changes.

    Rows that say the same already are not locked.
    """
    changed = await tx.fetch(
        """
        INSERT INTO nodes AS n (name, fact)
        SELECT r ->> 'name', r FROM jsonb_array_elements(CAST(:rows AS jsonb)) r
        LEFT JOIN nodes old ON old.name = r ->> 'name' WHERE old.fact IS DISTINCT FROM r
        ORDER BY 1
        ON CONFLICT (name) DO UPDATE SET fact = excluded.fact, seen_at = now()
        RETURNING name
        """,
        rows=orjson.dumps([fact.to_json() for fact in present]).decode(),
    )
    removed = await tx.fetch(
        "DELETE FROM nodes WHERE name = ANY(CAST(:gone AS text[])) RETURNING name", gone=list(gone)
    )
    names = [row["name"] for row in (*changed, *removed)]
    await tell_matcher(tx, "node", names)
    await _settle_lost(tx, names)


async def _settle_lost(tx: Transaction, names: Sequence[str]) -> None:
    """Have workloads settled that need slots on nodes which no longer take pods, or have pods on
    nodes that are down, or are not any more.
    """
    if not names:
        return
    rows = await tx.fetch(
        """
        SELECT DISTINCT a.uid FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
        LEFT JOIN nodes n ON n.name = s.node
        LEFT JOIN fluxjobs f ON f.uid = a.uid
        WHERE a.is_live AND s.node = ANY(CAST(:names AS text[])) AND s.state <> 'returned'
          AND (NOT coalesce((n.fact ->> 'up')::boolean, false)
               OR starts_with(f.reason, CAST(:lost AS text))
               OR (NOT (n.fact ->> 'schedulable')::boolean
                   AND (s.state = 'free' OR EXISTS (
                        SELECT FROM pods p WHERE p.uid = s.pod_uid
                        AND (p.node IS NULL OR p.is_terminating)))))
        """,
        names=list(names),
        lost=LOST,
    )
    await tx.defer(TaskName.SETTLE, [row["uid"] for row in rows])


async def save_foreign(tx: Transaction, present: Sequence[ForeignPod], gone: Sequence[str]) -> None:
    """Write pods of others that use a node, and forget those that no longer do.

    Rows that say the same already are not locked.
    """
    changed = await tx.fetch(
        """
        INSERT INTO foreign_usage AS u (pod_uid, namespace, name, node, resources, is_permanent)
        SELECT r.* FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            uid text, namespace text, name text, node text, resources jsonb, is_permanent bool)
        LEFT JOIN foreign_usage old ON old.pod_uid = r.uid
        WHERE (old.node, old.resources) IS DISTINCT FROM (r.node, r.resources)
        ORDER BY r.uid
        ON CONFLICT (pod_uid) DO UPDATE SET node = excluded.node, resources = excluded.resources
        RETURNING node, is_permanent
        """,
        rows=orjson.dumps(present).decode(),
    )
    removed = await tx.fetch(
        "DELETE FROM foreign_usage WHERE pod_uid = ANY(CAST(:gone AS text[]))"
        " RETURNING node, is_permanent",
        gone=list(gone),
    )
    rows = [*changed, *removed]
    # What stays for good decides what can ever run there.
    await tell_matcher(tx, "node", [row["node"] for row in rows if row["is_permanent"]])
    await tell_matcher(tx, "foreign", [row["node"] for row in rows if not row["is_permanent"]])


async def tell_matcher(tx: Transaction, kind: str, keys: Sequence[str]) -> None:
    """Leave for the matcher what it must read again; the rows wake it."""
    if keys:
        await tx.execute(
            "INSERT INTO graph_changes (kind, key)"
            " SELECT DISTINCT CAST(:kind AS text), unnest(CAST(:keys AS text[]))",
            kind=kind,
            keys=list(keys),
        )


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A workload that no object stands for, and the UIDs of pods that are of it. ``size``: of how
    many pods it was made, once it was complete."""

    uid: str
    namespace: str
    name: str
    fluxjob: str
    user: str
    created: str
    pods: frozenset[str] = frozenset()
    size: int | None = None
    flux_uid: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the rows know of the cluster, for a controller that begins; ``groups`` oldest first;
    ``suspended``: API groups and kinds of what is held by its suspension; ``namespaces``: where
    each workload of ``flux_uids`` is."""

    flux_uids: Mapping[str, str | None]
    foreign: frozenset[str]
    nodes: frozenset[str]
    groups: Sequence[KnownGroup] = ()
    suspended: frozenset[tuple[str, str]] = frozenset()
    namespaces: Mapping[str, str] = field(default_factory=dict)


async def read_known(tx: Transaction) -> Known:
    """Read what the rows know, so that what vanished while nobody watched is found.

    ``flux_uids`` maps each workload to the UID of its FluxJob, unless both it and its pods were
    seen gone. (A workload may go before its pods do, and the observer between the two.)
    """
    workloads = await tx.fetch(
        f"SELECT uid, flux_uid, namespace FROM fluxjobs WHERE NOT is_gone OR {LIVING}"  # noqa: S608 constant
    )
    groups = await tx.fetch(
        "SELECT uid, flux_uid, namespace, workload_name AS name, name AS fluxjob,"  # noqa: S608 constant
        " user_name AS user,"
        " to_char(submitted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') AS created,"
        " CASE WHEN missing = 0 THEN size END AS size,"
        " (SELECT coalesce(array_agg(p.uid), '{}') FROM pods p"
        "  WHERE p.workload_uid = f.uid) AS pods"
        f" FROM fluxjobs f WHERE is_gathered AND (NOT is_gone OR {LIVING}) ORDER BY jobid"
    )
    foreign = await tx.fetch("SELECT pod_uid FROM foreign_usage")
    nodes = await tx.fetch("SELECT name FROM nodes")
    suspended = await tx.fetch(
        "SELECT DISTINCT split_part(owner ->> 'api_version', '/', 1) AS api_group,"  # noqa: S608 constant
        " owner ->> 'kind' AS kind FROM fluxjobs"
        f" WHERE owner ->> 'suspend' <> '' AND (NOT is_gone OR {LIVING})"
    )
    return Known(
        flux_uids={row["uid"]: row["flux_uid"] for row in workloads},
        foreign=frozenset(row["pod_uid"] for row in foreign),
        nodes=frozenset(row["name"] for row in nodes),
        groups=[KnownGroup(**row | {"pods": frozenset(row["pods"])}) for row in groups],
        suspended=frozenset((row["api_group"], row["kind"]) for row in suspended),
        namespaces={row["uid"]: row["namespace"] for row in workloads},
    )

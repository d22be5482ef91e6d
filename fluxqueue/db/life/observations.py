"""What the controller saw, written down: workloads with their pods, nodes, pods of others.

Called by the controller only. Each function takes whole present states, never events, so writing
the same thing twice changes nothing, and the last writer is right. Rows are locked in the order
of their UID here, in ``decisions`` and in ``settling``, so that no two of them can deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.outbox import put
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.follow import PodFact
from fluxqueue.fluxjob.indexes import NO_INDEXES
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.fluxjob.states import FluxJobState

AUTHOR = "author"
"""``held_by`` of a FluxJob that its author holds: by suspending it, or by ``fluxqueue/hold``."""

ANNOTATION = "annotation"
"""``author_hold`` of a FluxJob whose workload carries ``fluxqueue/hold``."""

BY_QUEUE = "queue"
"""``held_by`` of a FluxJob that its named queue does not take in."""


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """A workload and all its pods as the controller sees them now.

    ``has_hold``: it is held by annotation. ``generation``: of its object, which tells a suspension
    by its author from the one before our release. ``ended_indexes``: completion indexes for which
    no pod will be made any more, as an ``int4multirange``.
    """

    uid: str
    namespace: str
    name: str
    workload_kind: str
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
    pods: tuple[PodFact, ...] = field(default=())
    has_hold: bool = False
    generation: int = 0
    ended_indexes: str = NO_INDEXES


_SEEN = """
WITH seen AS (
    SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        uid text, namespace text, name text, workload_kind text, workload_name text,
        flux_uid text, user_name text, queue text, priority int, held_by text, request jsonb,
        size int, duration_s int, begin_at_s bigint, depends_on jsonb, ignored jsonb,
        wanted int, result text, is_deleting bool, is_gone bool, is_suspended bool, position int,
        jobid bigint, has_hold bool, generation bigint, ended_indexes int4multirange)
)
"""

# Two statements and no upsert: an upsert would draw a jobid for every row it only updates.
_INSERT = """
INSERT INTO fluxjobs (
    uid, namespace, name, workload_kind, workload_name, flux_uid, user_name, queue,
    asked_priority, held_by, author_hold, request, size, duration_s, begin_at, depends_on, ignored,
    wanted, result, is_deleting, is_gone, is_suspended, ended_indexes,
    state, reason)
SELECT uid, namespace, name, workload_kind, workload_name, flux_uid, user_name, queue,
    priority, held_by, CASE WHEN has_hold THEN 'annotation' ELSE held_by END, request, size,
    duration_s, to_timestamp(begin_at_s), depends_on, ignored,
    wanted, result, is_deleting, is_gone, is_suspended, ended_indexes,
    CASE WHEN held_by IS NULL THEN 'Pending' ELSE 'Held' END,
    CASE WHEN has_hold THEN 'held by its annotation fluxqueue/hold'
         WHEN held_by = 'author' THEN 'suspended by its author' ELSE '' END
FROM seen ORDER BY position
RETURNING uid, state, held_by, is_examined
"""

_INSERT_AS = _INSERT.replace("(\n    uid", "(\n    jobid, uid", 1).replace(
    "SELECT uid", "OVERRIDING SYSTEM VALUE SELECT jobid, uid", 1
)
"""For rows that had a number before: those of a database that was lost (``db.life.rebuild``)."""

# A BatchJob that is suspended in a later generation than our release made was suspended by its
# author: its pods end, it goes back to the queue and stays held until it is resumed. (Before our
# release it is suspended by us.)
_UPDATE = """
, stored AS (
    SELECT f.uid, f.author_hold, f.state IN ('Allocated', 'Running') AS is_let_go,
           f.vacate_by IS NULL AND f.state IN ('Allocated', 'Running')
           AND seen.is_suspended AND seen.generation > f.let_go_at
           AND seen.result IS NULL AND NOT seen.is_deleting AS is_stopped,
           f.vacate_by = 'author' AND NOT seen.is_suspended AS is_resumed,
           coalesce(f.held_by NOT IN ('author', 'dependency', 'queue'), false) AS is_operators
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
    wanted = seen.wanted, result = seen.result,
    is_deleting = seen.is_deleting OR f.cancel_by IS NOT NULL, is_gone = seen.is_gone,
    is_suspended = seen.is_suspended, ended_indexes = seen.ended_indexes,
    -- What was asked for may change only while nothing has been given for it.
    request = CASE WHEN f.allocated_at IS NULL THEN seen.request ELSE f.request END,
    size = CASE WHEN f.allocated_at IS NULL THEN seen.size ELSE f.size END,
    duration_s = CASE WHEN f.allocated_at IS NULL THEN seen.duration_s ELSE f.duration_s END,
    begin_at = to_timestamp(seen.begin_at_s), depends_on = seen.depends_on,
    asked_priority = seen.priority,
    queue = coalesce(f.set_queue, seen.queue), ignored = seen.ignored,
    -- Examined anew is also considered anew: the queue's order may have changed.
    is_examined = f.is_examined AND f.request = seen.request
        AND f.asked_priority = seen.priority AND f.queue = coalesce(f.set_queue, seen.queue)
        AND f.depends_on = seen.depends_on
        AND f.begin_at IS NOT DISTINCT FROM to_timestamp(seen.begin_at_s)
        AND NOT coalesce(f.held_by = 'author' AND ruled.hold IS NULL, false),
    author_hold = ruled.hold,
    vacate_by = CASE WHEN is_stopped THEN 'author' WHEN is_resumed THEN NULL ELSE f.vacate_by END,
    let_go_at = CASE WHEN is_resumed OR (is_let_go AND f.let_go_at IS NULL
                                         AND f.vacate_by IS NULL AND NOT seen.is_suspended)
                     THEN seen.generation ELSE f.let_go_at END,
    held_by = CASE
        WHEN is_operators OR f.state NOT IN ('Pending', 'Reserved', 'Unsatisfiable', 'Held')
            THEN f.held_by
        WHEN ruled.hold IS NOT NULL THEN 'author'
        ELSE nullif(f.held_by, 'author') END,
    state = CASE
        WHEN f.state IN ('Pending', 'Reserved', 'Unsatisfiable') AND ruled.hold IS NOT NULL
            THEN 'Held'
        WHEN f.state = 'Held' AND f.held_by = 'author' AND ruled.hold IS NULL THEN 'Pending'
        WHEN f.state = 'Unsatisfiable' AND f.request <> seen.request THEN 'Pending'
        ELSE f.state END,
    reason = CASE
        WHEN f.state IN ('Pending', 'Reserved', 'Unsatisfiable', 'Held') AND NOT is_operators
             AND ruled.hold IS NOT NULL
            THEN CASE ruled.hold WHEN 'annotation' THEN 'held by its annotation fluxqueue/hold'
                                 ELSE 'suspended by its author' END
        WHEN f.state = 'Held' AND f.held_by = 'author' AND ruled.hold IS NULL THEN ''
        WHEN is_stopped THEN 'suspended by its author; goes back to the queue as its pods end'
        WHEN is_resumed THEN ''
        WHEN f.state = 'Unsatisfiable' AND f.request <> seen.request THEN ''
        ELSE f.reason END
FROM seen JOIN ruled USING (uid) WHERE f.uid = seen.uid
RETURNING f.uid, f.state, f.held_by, f.is_examined
"""

_PODS = """
INSERT INTO pods AS p (uid, workload_uid, namespace, name, phase, is_gated, is_terminating, node,
                       completion_index)
SELECT uid, workload_uid, namespace, name, phase, is_gated, is_terminating, node, completion_index
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, workload_uid text, namespace text, name text, phase text, is_gated bool,
    is_terminating bool, node text, completion_index int)
ON CONFLICT (uid) DO UPDATE SET
    phase = excluded.phase, is_gated = excluded.is_gated, node = excluded.node,
    is_terminating = excluded.is_terminating
"""


async def save_workloads(
    tx: Transaction, seen: Sequence[WorkloadSeen], *, jobids: Mapping[str, int] | None = None
) -> None:
    """Write workloads and their pods, and leave for the worker what follows from them.

    ``jobids``: numbers that new rows get instead of the next ones, by UID.
    """
    jobids = jobids or {}
    uids = [one.uid for one in seen]
    locked = await tx.fetch(
        "SELECT uid, state, held_by, flux_uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))"
        " ORDER BY uid FOR UPDATE",
        uids=uids,
    )
    old = {row["uid"]: row["state"] for row in locked}
    stored = await _write(tx, _UPDATE, [one for one in seen if one.uid in old])
    new = [one for one in seen if one.uid not in old]
    stored += await _write(tx, _INSERT_AS, [one for one in new if one.uid in jobids], jobids)
    stored += await _write(tx, _INSERT, [one for one in new if one.uid not in jobids])
    await _save_pods(tx, [(one.uid, one.namespace, one.pods) for one in seen])
    await _mark_refused(tx, [pod.uid for one in seen for pod in one.pods if pod.is_refused])
    by_uid = {one.uid: one for one in seen}
    settle: dict[TaskName, list[str]] = {TaskName.UNGATE: [], TaskName.CLEANUP: []}
    for row in stored:
        task = _next_task(by_uid[row["uid"]], row["state"])
        if task is not None:
            settle[task].append(row["uid"])
    for task, keys in settle.items():
        await put(tx, task, keys)
    # A FluxJob that was made again has an empty status.
    was = {row["uid"]: row["flux_uid"] for row in locked}
    remade = [u for u, one in by_uid.items() if u in was and one.flux_uid not in {None, was[u]}]
    await put(tx, TaskName.STATUS, remade)
    # Its author has let it go: it is suspended again until its turn comes.
    await put(
        tx, TaskName.RELEASE, [r["uid"] for r in stored if _is_let_go(by_uid[r["uid"]], r["state"])]
    )
    if any(one.depends_on or one.begin_at_s for one in seen):
        tx.wake(TaskName.CLEANUP)
    if any(_needs_cycle(old.get(row["uid"]), row) for row in stored):
        tx.wake(TaskName.SCHEDULE)


def _is_let_go(seen: WorkloadSeen, state: str) -> bool:
    """Whether it waits for its turn and its BatchJob is not suspended."""
    is_going_on = seen.result is None and not seen.is_deleting and not seen.is_suspended
    return is_going_on and seen.workload_kind == "Job" and FluxJobState(state).is_waiting


async def _mark_refused(tx: Transaction, pod_uids: Sequence[str]) -> None:
    """Remember which slots their nodes would not honour; settling gives them back."""
    if pod_uids:
        await tx.execute(
            "UPDATE allocation_slots SET refused_at = now()"
            " WHERE pod_uid = ANY(CAST(:pods AS text[])) AND refused_at IS NULL",
            pods=list(pod_uids),
        )


def _needs_cycle(old: str | None, row: Mapping[str, Any]) -> bool:
    """Whether the queue is another: someone is to be considered, or leaves a reservation."""
    if row["state"] in {"Pending", "Reserved"} or row["held_by"] == BY_QUEUE:
        return not row["is_examined"]
    return old == "Reserved" and row["state"] == "Held"


async def _write(
    tx: Transaction,
    statement: str,
    seen: Sequence[WorkloadSeen],
    jobids: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    rows = [
        {k: v for k, v in asdict(one).items() if k != "pods"}
        | {"position": position, "jobid": (jobids or {}).get(one.uid)}
        for position, one in enumerate(seen)
    ]
    return await tx.fetch(_SEEN + statement, rows=orjson.dumps(rows).decode()) if rows else []


def _next_task(seen: WorkloadSeen, state: str) -> TaskName | None:
    """Which task looks at the workload next: none while it only waits its turn."""
    if state in {"Allocated", "Running"}:
        return TaskName.UNGATE if any(pod.is_gated for pod in seen.pods) else TaskName.CLEANUP
    is_over = seen.result is not None or seen.is_deleting
    return (
        TaskName.CLEANUP if is_over and state not in {"Completed", "Failed", "Cancelled"} else None
    )


async def _save_pods(tx: Transaction, seen: Sequence[tuple[str, str, Sequence[PodFact]]]) -> None:
    """Make the pod rows of the given workloads (UID, namespace, pods) what they are now."""
    rows = [
        {
            "uid": pod.uid,
            "workload_uid": uid,
            "namespace": namespace,
            "name": pod.name,
            "phase": pod.phase,
            "is_gated": pod.is_gated,
            "is_terminating": pod.is_terminating,
            "node": pod.node,
            "completion_index": pod.index,
        }
        for uid, namespace, pods in seen
        for pod in pods
        if not pod.is_terminal
    ]
    await tx.execute(
        "DELETE FROM pods WHERE workload_uid = ANY(CAST(:workloads AS text[]))"
        " AND NOT uid = ANY(CAST(:pods AS text[]))",
        workloads=[uid for uid, _, _ in seen],
        pods=[row["uid"] for row in rows],
    )
    if rows:
        await tx.execute(_PODS, rows=orjson.dumps(rows).decode())


async def save_nodes(tx: Transaction, present: Sequence[NodeFact], gone: Sequence[str]) -> None:
    """Write nodes as they are, forget those that are gone, and tell the matcher of real changes."""
    changed = await tx.fetch(
        """
        INSERT INTO nodes AS n (name, fact)
        SELECT r ->> 'name', r FROM jsonb_array_elements(CAST(:rows AS jsonb)) r
        ON CONFLICT (name) DO UPDATE SET fact = excluded.fact, seen_at = now()
        WHERE n.fact <> excluded.fact
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
    """Have workloads settled that need slots on nodes which no longer take pods."""
    if not names:
        return
    rows = await tx.fetch(
        """
        SELECT DISTINCT a.uid FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
        WHERE a.is_live AND s.node = ANY(CAST(:names AS text[]))
          AND (s.state = 'free' OR (s.state = 'held' AND EXISTS (
                SELECT FROM pods p WHERE p.uid = s.pod_uid
                AND (p.node IS NULL OR p.is_terminating))))
          AND NOT EXISTS (SELECT FROM nodes n WHERE n.name = s.node
                          AND (n.fact ->> 'up')::boolean AND (n.fact ->> 'schedulable')::boolean)
        """,
        names=list(names),
    )
    await put(tx, TaskName.CLEANUP, [row["uid"] for row in rows])


async def save_foreign(tx: Transaction, present: Sequence[ForeignPod], gone: Sequence[str]) -> None:
    """Write pods of others that use a node, and forget those that no longer do."""
    changed = await tx.fetch(
        """
        INSERT INTO foreign_usage AS u (pod_uid, namespace, name, node, resources, is_permanent)
        SELECT uid, namespace, name, node, resources, is_permanent
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            uid text, namespace text, name text, node text, resources jsonb, is_permanent bool)
        ON CONFLICT (pod_uid) DO UPDATE SET node = excluded.node, resources = excluded.resources
        WHERE (u.node, u.resources) <> (excluded.node, excluded.resources)
        RETURNING node
        """,
        rows=orjson.dumps([asdict(pod) for pod in present]).decode(),
    )
    removed = await tx.fetch(
        "DELETE FROM foreign_usage WHERE pod_uid = ANY(CAST(:gone AS text[])) RETURNING node",
        gone=list(gone),
    )
    await tell_matcher(tx, "node", [row["node"] for row in (*changed, *removed)])


async def tell_matcher(tx: Transaction, kind: str, keys: Sequence[str]) -> None:
    """Leave for the matcher what it must read again, and wake it."""
    if keys:
        await tx.execute(
            "INSERT INTO graph_changes (kind, key)"
            " SELECT DISTINCT CAST(:kind AS text), unnest(CAST(:keys AS text[]))",
            kind=kind,
            keys=list(keys),
        )
        tx.wake(TaskName.SCHEDULE)


@dataclass(frozen=True, slots=True)
class Known:
    """What the rows know of the cluster, for a controller that begins."""

    flux_uids: Mapping[str, str | None]
    foreign: frozenset[str]
    nodes: frozenset[str]


async def read_known(tx: Transaction) -> Known:
    """Read what the rows know, so that what vanished while nobody watched is found.

    ``flux_uids`` maps each workload to the UID of its FluxJob, unless both it and its pods were
    seen gone. (A workload may go before its pods do, and the observer between the two.)
    """
    workloads = await tx.fetch(
        "SELECT uid, flux_uid FROM fluxjobs WHERE NOT is_gone OR ended_at IS NULL"
    )
    foreign = await tx.fetch("SELECT pod_uid FROM foreign_usage")
    nodes = await tx.fetch("SELECT name FROM nodes")
    return Known(
        flux_uids={row["uid"]: row["flux_uid"] for row in workloads},
        foreign=frozenset(row["pod_uid"] for row in foreign),
        nodes=frozenset(row["name"] for row in nodes),
    )


async def save_gone(tx: Transaction, gone: Mapping[str, tuple[str, Sequence[PodFact]]]) -> None:
    """Write workloads whose object no longer exists: UID -> (namespace, pods still there)."""
    uids = sorted(gone)
    rows = await tx.fetch(
        """
        UPDATE fluxjobs SET is_gone = true, is_deleting = true, wanted = 0
        WHERE uid IN (SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
                      ORDER BY uid FOR UPDATE)
        RETURNING uid, ended_at
        """,
        uids=uids,
    )
    stored = {row["uid"] for row in rows}
    await _save_pods(tx, [(uid, *gone[uid]) for uid in uids if uid in stored])
    await put(tx, TaskName.CLEANUP, [row["uid"] for row in rows if row["ended_at"] is None])

"""The pods of workloads in rows, and what they use beyond their slots.

``observations`` writes them with their workloads, under the locks of these rows. ``reconciling``
and ``choices`` count again what no slot covers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.store.cluster_rows import tell_matcher
from fluxqueue.db.store.notices import UNMANAGED_USE, Notice, leave_notices
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.request import describe

# A gate never comes back. A writer that saw the pod before its gate went must not restore it.
_PODS = """
INSERT INTO pods AS p (uid, workload_uid, namespace, name, phase, is_gated, is_terminating, node,
                       completion_index, slot_kind, uses, used_first, unschedulable,
                       unschedulable_at)
SELECT uid, workload_uid, namespace, name, phase, is_gated, is_terminating, node, completion_index,
       slot_kind, nullif(uses, '{}'), nullif(uses, '{}'), nullif(unschedulable, ''),
       CASE WHEN unschedulable <> '' THEN now() END
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    uid text, workload_uid text, namespace text, name text, phase text, is_gated bool,
    is_terminating bool, node text, completion_index int, slot_kind text, uses jsonb,
    unschedulable text)
ON CONFLICT (uid) DO UPDATE SET
    phase = excluded.phase, is_gated = p.is_gated AND excluded.is_gated, node = excluded.node,
    is_terminating = excluded.is_terminating, uses = coalesce(excluded.uses, p.uses),
    used_first = coalesce(p.used_first, excluded.uses), unschedulable = excluded.unschedulable,
    -- Other words are no other beginning.
    unschedulable_at = CASE WHEN excluded.unschedulable IS NOT NULL
                            THEN coalesce(p.unschedulable_at, excluded.unschedulable_at) END
WHERE (p.phase, p.is_gated, p.node, p.is_terminating, p.uses, p.unschedulable) IS DISTINCT FROM
      (excluded.phase, p.is_gated AND excluded.is_gated, excluded.node, excluded.is_terminating,
       coalesce(excluded.uses, p.uses), excluded.unschedulable)
-- One look for each pod. For EXISTS, the planner may read all slots, of ended jobs too.
RETURNING p.node IS NOT NULL AND (
    SELECT s.others IS NOT NULL FROM allocation_slots s WHERE s.pod_uid = p.uid) AS has_landed
"""

# A slot keeps its granted size, and grows when its pod is resized in place. It does not shrink with
# its pod: the pod, or the one that replaces it, may want the resources again.
_RESIZE = """
WITH resized AS (
    SELECT s.allocation_id, s.number, coalesce(s.granted, s.resources) AS granted,
           (SELECT coalesce(jsonb_object_agg(g.key, CASE WHEN p.uses ? g.key THEN
                least(1::bigint << 52, g.value::numeric + greatest(0, (p.uses ->> g.key)::bigint
                    - coalesce((p.used_first ->> g.key)::bigint, 0)))
                ELSE g.value::numeric END), '{}')
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
         ON s.pod_uid = p.uid AND s.state = 'held'
            -- Its slot is about to follow it to one of these.
            AND (s.node = p.node OR p.node = ANY(s.others))
    WHERE p.workload_uid = ANY(CAST(:uids AS text[]))
)
UPDATE pods p SET unmanaged = its.unmanaged FROM its
WHERE p.uid = its.uid AND p.unmanaged IS DISTINCT FROM its.unmanaged
RETURNING p.uid, p.workload_uid, p.namespace, p.name, p.node, p.unmanaged
"""
"""Counts what these workloads' pods use beyond their slots.

They count with their own requests, whatever slot they were given. Without a slot, all of it counts
as unmanaged.
"""


async def save_pods(
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
        deleted = await tx.fetch_dicts(
            "DELETE FROM pods WHERE workload_uid = ANY(CAST(:workloads AS text[]))"  # noqa: S608
            " AND NOT uid = ANY(CAST(:pods AS text[]))"
            f" RETURNING {_GAVE_BACK}",
            workloads=whole,
            pods=[row["uid"] for row in rows],
        )
        gone += deleted
    if left:
        gone += await tx.fetch_dicts(
            "DELETE FROM pods WHERE uid = ANY(CAST(:pods AS text[]))"  # noqa: S608 constant
            f" RETURNING {_GAVE_BACK}",
            pods=left,
        )
    await tell_matcher(tx, "foreign", [row["node"] for row in gone if row["node"] is not None])
    if rows:
        written = await tx.fetch_dicts(_PODS, rows=orjson.dumps(rows).decode())
        if any(row["has_landed"] for row in written):
            # Its slot follows it. Only the process with the matcher moves slots, and a bound pod
            # by itself is no reason to reconcile.
            await tx.wake_matcher()
    if running := [row["uid"] for row in rows if row["uses"] and row["phase"] == "Running"]:
        resized = await tx.fetch_dicts(_RESIZE, pods=running)
        ids = {str(row["allocation_id"]) for row in resized}
        await tell_matcher(tx, "allocation", sorted(ids))
    await count_unmanaged(tx, {row["workload_uid"] for row in rows if row["node"]})


_GAVE_BACK = "CASE WHEN unmanaged IS NOT NULL THEN node END AS node"


async def count_unmanaged(tx: Transaction, uids: Collection[str]) -> None:
    """Count what the pods of these workloads use beyond their slots.

    Notify the matcher, and leave a notice for the user on the FluxJob.
    """
    if not uids:
        return
    changed = await tx.fetch_dicts(COUNT_UNMANAGED, uids=sorted(uids))
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
        "unschedulable": pod.unschedulable,
    }

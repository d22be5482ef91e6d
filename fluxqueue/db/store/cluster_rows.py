"""Nodes, unmanaged pods and what adds nodes, in rows. Each real change is news for the matcher.

The controller calls it with whole present states. Rows that already hold the same values are not
locked.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.holders import LOST
from fluxqueue.fluxjob.node import ForeignPod, NodeFact


async def save_nodes(tx: Transaction, present: Sequence[NodeFact], gone: Sequence[str]) -> None:
    """Write nodes as they are, delete those that are gone, and notify the matcher of real changes.

    Rows that already hold the same values are not locked.
    """
    changed = await tx.fetch_dicts(
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
    removed = await tx.fetch_dicts(
        "DELETE FROM nodes WHERE name = ANY(CAST(:gone AS text[])) RETURNING name", gone=list(gone)
    )
    names = [row["name"] for row in (*changed, *removed)]
    await tell_matcher(tx, "node", names)
    await _reconcile_lost(tx, names)


async def _reconcile_lost(tx: Transaction, names: Sequence[str]) -> None:
    """Have workloads reconciled that lose nodes.

    They need slots on nodes that no longer take pods, or have pods on nodes that are down or gone.
    """
    if not names:
        return
    rows = await tx.fetch_dicts(
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
    await tx.defer(TaskName.RECONCILE, [row["uid"] for row in rows])


async def save_foreign(tx: Transaction, present: Sequence[ForeignPod], gone: Sequence[str]) -> None:
    """Write unmanaged pods that use a node, and delete those that no longer do.

    Rows that already hold the same values are not locked.
    """
    changed = await tx.fetch_dicts(
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
    removed = await tx.fetch_dicts(
        "DELETE FROM foreign_usage WHERE pod_uid = ANY(CAST(:gone AS text[]))"
        " RETURNING node, is_permanent",
        gone=list(gone),
    )
    rows = [*changed, *removed]
    # Permanent use decides what can ever run on the node.
    await tell_matcher(tx, "node", [row["node"] for row in rows if row["is_permanent"]])
    await tell_matcher(tx, "foreign", [row["node"] for row in rows if not row["is_permanent"]])


async def save_autoscaler(tx: Transaction, names: str) -> None:
    """Write what adds nodes to the cluster. Reasons of jobs that fit no node are judged again."""
    changed = await tx.fetch_dicts(
        "UPDATE cluster SET autoscaler = :names WHERE autoscaler <> :names RETURNING uid",
        names=names,
    )
    await tell_matcher(tx, "cluster", [row["uid"] for row in changed])


async def tell_matcher(tx: Transaction, kind: str, keys: Sequence[str]) -> None:
    """Record what the matcher must read again. The rows wake it."""
    if keys:
        await tx.execute(
            "INSERT INTO graph_changes (kind, key)"
            " SELECT DISTINCT CAST(:kind AS text), unnest(CAST(:keys AS text[]))",
            kind=kind,
            keys=list(keys),
        )

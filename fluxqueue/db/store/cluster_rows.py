"""Nodes, unmanaged pods and what adds nodes, in rows. Each real change is news for the matcher.

The controller calls it with whole present states. Rows that already hold the same values are not
locked.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.holders import LOST
from fluxqueue.fluxjob.node import ForeignPod, NodeFact


async def save_nodes(tx: Transaction, present: Sequence[NodeFact], gone: Sequence[str]) -> None:
    """Write nodes as they are, delete those that are gone, and notify the matcher of real changes.

    Rows that already hold the same values are not locked.
    """
    changed = await tx.fetch(Q.save_nodes, str, rows=[fact.to_json() for fact in present])
    removed = await tx.fetch(Q.delete_nodes, str, gone=list(gone))
    names = [*changed, *removed]
    await tell_matcher(tx, "node", names)
    lost = await tx.fetch(Q.workloads_losing_nodes, str, names=names, lost=LOST) if names else []
    await tx.defer(TaskName.RECONCILE, lost)


async def save_foreign(tx: Transaction, present: Sequence[ForeignPod], gone: Sequence[str]) -> None:
    """Write unmanaged pods that use a node, and delete those that no longer do.

    Rows that already hold the same values are not locked.
    """
    rows: list[tuple[str, bool]] = [
        *await tx.fetch(Q.save_foreign, columns, rows=present),
        *await tx.fetch(Q.delete_foreign, columns, gone=list(gone)),
    ]
    # Permanent use decides what can ever run on the node.
    await tell_matcher(tx, "node", [node for node, is_permanent in rows if is_permanent])
    await tell_matcher(tx, "foreign", [node for node, is_permanent in rows if not is_permanent])


async def save_autoscaler(tx: Transaction, names: str) -> None:
    """Write what adds nodes to the cluster. Reasons of jobs that fit no node are judged again."""
    await tell_matcher(tx, "cluster", await tx.fetch(Q.save_autoscaler, str, names=names))


async def tell_matcher(tx: Transaction, kind: str, keys: Sequence[str]) -> None:
    """Record what the matcher must read again. The rows wake it."""
    if keys:
        await tx.execute(Q.tell_matcher, kind=kind, keys=list(keys))

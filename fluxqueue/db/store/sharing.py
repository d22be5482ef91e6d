"""Sharing policies in rows: what administrators want, and the unmanaged pods that policies ask for.

The controller writes them with ``rule_rows``. The worker that holds the matcher's role reads them
within its cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.rule_rows import RuleRowKind, read_in_force
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.policy.sharing.rules import SharingRule, read_sharing_rule


async def read_sharing_rules(tx: Transaction) -> tuple[list[SharingRule], dict[str, str]]:
    """Read the rules in force, and why some policies have none here."""
    return await read_in_force(
        tx, RuleRowKind.SHARING, lambda name, spec, _: read_sharing_rule(name, spec)
    )


async def read_unmanaged_pods(tx: Transaction, nodes: Sequence[str]) -> dict[str, list[ForeignPod]]:
    """Read the unmanaged pods on nodes, and what managed pods use beyond their slots.

    The rows must have been checked: amounts are whole numbers.
    """
    found: dict[str, list[ForeignPod]] = {name: [] for name in nodes}
    for pod in await tx.fetch(Q.unmanaged_pods, ForeignPod, nodes=list(nodes)):
        found[pod.node].append(pod)
    return found


async def read_names(database: Database, uids: Collection[str]) -> dict[str, str]:
    """Return FluxJobs as namespace/name, by the UIDs of their workloads."""
    if not uids:
        return {}
    rows = await database.fetch(Q.names_of, columns, uids=sorted(uids))
    return {uid: f"{namespace}/{name}" for uid, _, namespace, name in rows}

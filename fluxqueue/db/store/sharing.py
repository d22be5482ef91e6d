"""Sharing policies in rows: what administrators want, and the unmanaged pods that policies ask for.

The controller writes them with ``rule_rows``. The worker that holds the matcher's role reads them
within its cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.store.rule_rows import RuleTable, read_in_force
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.policy.sharing.rules import SharingRule, read_sharing_rule

CHANGED = "sharing"
"""The kind of a change that makes the matcher ask the policies of all nodes again."""


POLICIES = RuleTable(
    CHANGED,
    save="""
INSERT INTO sharing_policies AS p (name, uid, generation, spec, fault)
SELECT name, uid, generation, CASE WHEN fault IS NULL THEN spec END, fault
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    name text, uid text, generation bigint, spec jsonb, fault text)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET
    uid = excluded.uid, generation = excluded.generation, fault = excluded.fault,
    spec = coalesce(excluded.spec, CASE WHEN p.uid = excluded.uid THEN p.spec END)
WHERE (p.uid, p.generation, p.spec, p.fault)
    IS DISTINCT FROM (excluded.uid, excluded.generation, excluded.spec, excluded.fault)
RETURNING name
""",
    delete="DELETE FROM sharing_policies WHERE name = ANY(CAST(:gone AS text[])) RETURNING name",
    stored="SELECT name, uid, generation, fault FROM sharing_policies ORDER BY name",
)
"""ResourceSharingPolicies."""


async def read_sharing_rules(tx: Transaction) -> tuple[list[SharingRule], dict[str, str]]:
    """Read the rules in force, and why some policies have none here."""
    statement = "SELECT name, spec FROM sharing_policies WHERE spec IS NOT NULL"
    return await read_in_force(tx, statement, lambda r: read_sharing_rule(r["name"], r["spec"]))


_PODS = """
SELECT pod_uid AS uid, namespace, name, node, resources, is_permanent FROM foreign_usage
WHERE node = ANY(CAST(:nodes AS text[]))
UNION ALL
SELECT uid, namespace, name, node, unmanaged, false FROM pods
WHERE unmanaged IS NOT NULL AND node = ANY(CAST(:nodes AS text[]))
ORDER BY namespace, name, uid
"""


async def read_unmanaged_pods(tx: Transaction, nodes: Sequence[str]) -> dict[str, list[ForeignPod]]:
    """Read the unmanaged pods on nodes, and what managed pods use beyond their slots.

    The rows must have been checked: amounts are whole numbers.
    """
    found: dict[str, list[ForeignPod]] = {name: [] for name in nodes}
    for row in await tx.fetch(_PODS, nodes=list(nodes)):
        found[row["node"]].append(ForeignPod(**row))
    return found


async def read_names(database: Database, uids: Collection[str]) -> dict[str, str]:
    """Return FluxJobs as namespace/name, by the UIDs of their workloads."""
    if not uids:
        return {}
    async with database.begin() as tx:
        rows = await tx.fetch(
            "SELECT uid, namespace, workload_name FROM fluxjobs"
            " WHERE uid = ANY(CAST(:uids AS text[]))",
            uids=sorted(uids),
        )
    return {row["uid"]: f"{row['namespace']}/{row['workload_name']}" for row in rows}

"""What the rows know of the cluster, read once by a controller that starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.db.database import Transaction
from fluxqueue.db.store.learned import read_learned
from fluxqueue.db.tables import LIVING
from fluxqueue.workload.learned_sizes import LearnedSize


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A workload without an object of its own, and the UIDs of its pods.

    ``size``: the number of its pods, once it was complete.
    """

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
    """What the rows know of the cluster, for a controller that starts.

    ``groups``: oldest first. ``suspended``: API groups and kinds that are held by suspension.
    ``namespaces``: the namespace of each workload of ``flux_uids``. ``learned``: what pods ask for
    beyond their templates.
    """

    flux_uids: Mapping[str, str | None]
    foreign: frozenset[str]
    nodes: frozenset[str]
    groups: Sequence[KnownGroup] = ()
    suspended: frozenset[tuple[str, str]] = frozenset()
    namespaces: Mapping[str, str] = field(default_factory=dict)
    learned: Sequence[LearnedSize] = ()


async def read_known(tx: Transaction) -> Known:
    """Read what the rows know, to find what vanished while no controller watched.

    ``flux_uids`` maps each workload to the UID of its FluxJob, unless both the workload and its
    pods were seen gone. (A workload may go before its pods do, and the observer between the two.)
    """
    workloads = await tx.fetch_dicts(
        f"SELECT uid, flux_uid, namespace FROM fluxjobs WHERE NOT is_gone OR {LIVING}"  # noqa: S608 constant
    )
    groups = await tx.fetch_dicts(
        "SELECT uid, flux_uid, namespace, workload_name AS name, name AS fluxjob,"  # noqa: S608 constant
        " user_name AS user,"
        " to_char(submitted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') AS created,"
        " CASE WHEN NOT observed ? 'missing' THEN size END AS size,"
        " (SELECT coalesce(array_agg(p.uid), '{}') FROM pods p"
        "  WHERE p.workload_uid = f.uid) AS pods"
        f" FROM fluxjobs f WHERE observed ? 'is_gathered' AND (NOT is_gone OR {LIVING})"
        " ORDER BY jobid"
    )
    foreign = await tx.fetch_dicts("SELECT pod_uid FROM foreign_usage")
    nodes = await tx.fetch_dicts("SELECT name FROM nodes")
    suspended = await tx.fetch_dicts(
        "SELECT DISTINCT split_part(owner ->> 'api_version', '/', 1) AS api_group,"  # noqa: S608 constant
        " owner ->> 'kind' AS kind"
        " FROM (SELECT observed -> 'owner' AS owner, is_gone, state FROM fluxjobs) f"
        f" WHERE owner ->> 'suspend' <> '' AND (NOT is_gone OR {LIVING})"
    )
    return Known(
        flux_uids={row["uid"]: row["flux_uid"] for row in workloads},
        foreign=frozenset(row["pod_uid"] for row in foreign),
        nodes=frozenset(row["name"] for row in nodes),
        groups=[KnownGroup(**row | {"pods": frozenset(row["pods"])}) for row in groups],
        suspended=frozenset((row["api_group"], row["kind"]) for row in suspended),
        namespaces={row["uid"]: row["namespace"] for row in workloads},
        learned=await read_learned(tx),
    )

"""What the rows know of the cluster, read once by a controller that starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.learned import read_learned
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
    pods: Collection[str] = ()
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
    workloads = await tx.fetch(Q.known_workloads, columns)
    return Known(
        flux_uids={uid: flux_uid for uid, flux_uid, _ in workloads},
        foreign=frozenset(await tx.fetch(Q.known_foreign, str)),
        nodes=frozenset(await tx.fetch(Q.known_nodes, str)),
        groups=await tx.fetch(Q.known_groups, KnownGroup),
        suspended=frozenset(await tx.fetch(Q.known_suspended, columns)),
        namespaces={uid: namespace for uid, _, namespace in workloads},
        learned=await read_learned(tx),
    )

"""One database, one cluster: which cluster the rows are about.

The first controller or worker binds the database to its cluster. ``leadership`` checks the binding
in the transaction that takes a role, so a process of another cluster can decide nothing. A cluster
is known by the UID of its namespace ``kube-system``. Must not talk to the cluster.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from fluxqueue.db.queries import Q
from fluxqueue.errors import WrongCluster

if TYPE_CHECKING:
    from fluxqueue.db.database import Database, Transaction
    from fluxqueue.db.reader import DatabaseReader, DatabaseReading

MOVE = (
    "give each cluster a database of its own, or move this one on purpose:"
    " `fluxqueue db adopt-cluster --from UID` (docs/admin/operations.md)"
)


class BoundCluster(NamedTuple):
    """The cluster that the rows are about."""

    uid: str
    server: str
    bound_at: datetime


async def bind(database: Database, uid: str, server: str) -> None:
    """Bind the database to a cluster, or make sure that it is bound to this one.

    Parameters: ``uid`` of its namespace ``kube-system``. ``server`` is its address, for people.

    Raises: ``WrongCluster``, ``DatabaseUnavailable``.
    """
    async with database.begin() as tx:
        await tx.execute(
            Q.bind_cluster,
            uid=uid,
            server=server,
        )
        await check(tx, uid)
    database.cluster_uid = uid


async def check(tx: DatabaseReading, uid: str | None) -> None:
    """Make sure that the rows are about the cluster ``uid``; None where no cluster is involved.

    Raises: ``WrongCluster``, naming both.
    """
    if uid is None:
        return
    bound = await read(tx)
    if bound is not None and bound.uid != uid:
        raise WrongCluster(
            f"this database belongs to the cluster {bound.uid} ({bound.server}, since "
            f"{bound.bound_at:%Y-%m-%d}), and this process runs in the cluster {uid}",
            where="DATABASE_URL",
            hint=MOVE,
        )


async def read(tx: DatabaseReading) -> BoundCluster | None:
    """Return the cluster that the rows are about. None before the first start."""
    return await tx.fetch_one(Q.bound_cluster, BoundCluster)


async def check_reader(reader: DatabaseReader, uid: str) -> None:
    """Do the same as ``check``, for a process that only reads."""
    async with reader.begin() as reading:
        await check(reading, uid)


async def adopt(database: Database, *, former: str, uid: str, server: str) -> None:
    """Bind the database to another cluster, on purpose.

    Parameters: ``former`` is the UID to which it is bound, which the administrator has to name.

    Raises: ``WrongCluster`` when it is bound to yet another cluster, or while parts are connected.
    Parts of the former cluster would otherwise go on writing what they see there.
    """
    async with database.begin() as tx:
        # Race: a process must not bind the database between the checks and the update.
        await tx.execute(Q.lock_cluster)
        bound = await read(tx)
        if bound is None or bound.uid not in (former, uid):
            found = "none" if bound is None else bound.uid
            raise WrongCluster(
                f"the database is bound to {found}, not to {former}",
                where="--from",
                hint="name the cluster that it belongs to now",
            )
        parts = sorted(await tx.fetch(Q.connected_parts, str))
        if parts:
            raise WrongCluster(
                f"{', '.join(parts)} are connected",
                where="DATABASE_URL",
                hint="scale controller and worker of both clusters to 0 first",
            )
        await _rebind(tx, uid, server)


async def _rebind(tx: Transaction, uid: str, server: str) -> None:
    await tx.execute(Q.rebind_cluster, uid=uid, server=server)
    # A new term: a process with an older term can commit nothing more.
    await tx.execute(Q.end_terms)

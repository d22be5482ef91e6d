"""Terms: the process that may match and the one that may observe, fenced in every commit.

A role has one holder until its time runs out, and the next holder raises the term. A holder that
was paused and resumes still believes in its term. Every transaction that decides therefore first
checks the term under a row lock. The worker (role ``matcher``) and the controller (``controller``)
use this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxqueue.db import cluster_identity, epoch
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.errors import DatabaseWentBack, LostLeadership


async def try_acquire(
    database: Database, role: str, holder: str, *, duration_s: float
) -> int | None:
    """Begin a term of ``role`` for ``duration_s``.

    Returns the term, or None while another process holds the role. Each success is a new term, also
    for a ``holder`` that has the role already. A process that restarted under the same name must
    not share a term with commits that its former life left in flight. Time is the database's, so
    clocks of two machines are never compared.

    Raises
    ------
    WrongCluster
        The database belongs to another cluster by now.
    DatabaseWentBack
        It knows less than this process has seen before (``epoch``).
    """
    async with database.begin() as tx:
        await cluster_identity.check(tx, database.cluster_uid)
        await epoch.look(tx)
        return await tx.fetch_one(
            Q.acquire_term,
            int,
            role=role,
            holder=holder,
            duration_s=duration_s,
        )


async def renew(
    database: Database, role: str, holder: str, *, term: int, duration_s: float
) -> bool:
    """Keep ``term`` for another ``duration_s``, and return whether it is still the current one.

    A term that has run out may be renewed as long as no other one has begun.
    """
    async with database.begin() as tx:
        await epoch.look(tx)
        renewed = await tx.execute(
            Q.renew_term,
            role=role,
            holder=holder,
            term=term,
            duration_s=duration_s,
        )
        return renewed == 1


async def seize(database: Database, role: str, holder: str) -> int:
    """Begin a new term of ``role`` at once. A holder of an older term can commit no more.

    For a role with a holder that is chosen elsewhere (the controller's by a Lease). The new term
    keeps the expiry time of its predecessor, or is expired: the new holder has yet to look
    (``confirm``).

    Raises
    ------
    WrongCluster
        The database belongs to another cluster by now.
    DatabaseWentBack
        It knows less than this process has seen before (``epoch``).
    """
    async with database.begin() as tx:
        await cluster_identity.check(tx, database.cluster_uid)
        await epoch.look(tx)
        (term,) = await tx.fetch(Q.seize_term, int, role=role, holder=holder)
        return term


CONTROLLER = "controller"
"""The role that compares the rows with the cluster."""


async def confirm(tx: Transaction, role: str, *, term: int, duration_s: float) -> bool:
    """Record for another ``duration_s`` that ``term`` compares the rows with the cluster.

    Returns whether that had lapsed for a while: then the queue has stood still (``is_observed``).
    """
    had_lapsed = await tx.fetch_one(
        Q.confirm_term, bool, role=role, term=term, duration_s=duration_s
    )
    return had_lapsed is True


async def doubt(tx: Transaction, role: str, *, term: int) -> None:
    """Take back what ``confirm`` recorded: the rows are wrong until it is recorded again."""
    await tx.execute(Q.doubt_term, role=role, term=term)


async def is_observed(tx: Transaction) -> bool:
    """Return whether a controller compares the rows with the cluster. Decisions require it.

    A database that was restored from a backup, or is empty, knows less than the cluster. Its
    controller has not confirmed it yet, so no process acts on it. Rows that no controller ever led
    (a simulation) need none.
    """
    return await tx.fetch_one(Q.is_observed, bool, role=CONTROLLER) is not False


async def resign(database: Database, role: str, holder: str, *, term: int) -> None:
    """End ``term`` at once: a successor then need not wait for the time to run out."""
    async with database.begin() as tx:
        await tx.execute(
            Q.resign_term,
            role=role,
            holder=holder,
            term=term,
        )


async def check_term(tx: Transaction, role: str, term: int) -> None:
    """Lock the role's row for this transaction and make sure that the term is still current.

    Raises
    ------
    LostLeadership
        Another term has begun. The caller must roll back and stop deciding.
    DatabaseWentBack
        The rows know less than this process has seen before. So all terms are over.
    """
    await may_decide(tx, role, term)


async def may_decide(tx: Transaction, role: str, term: int) -> bool:
    """Run ``check_term``, and return whether a controller compares the rows (``is_observed``).

    Raises
    ------
    LostLeadership, DatabaseWentBack
        As of ``check_term``.
    """
    seen = tx.seen.copy()
    row = await tx.fetch_one(Q.count_commit, epoch.RoleRow, role=role)
    if row is None and role in seen.roles:
        raise DatabaseWentBack(f"role {role} was held, and the database does not know it")
    if row is not None:
        tx.found = epoch.compare(seen, row)
        tx.found.count(role)
    if row is None or row.term != term:
        current = "none" if row is None else row.term
        raise LostLeadership(f"role {role}: our term is {term}, the current one is {current}")
    return row.is_observed


async def hold_decisions(tx: Transaction) -> None:
    """Keep cycles out until this transaction ends. The next one sees all of it.

    For a transaction that makes waiting rows beside rows that have their nodes already. A cycle
    reads changes of the graph first and waiting FluxJobs after that. It would take nodes as free
    that are taken.
    """
    await tx.execute(Q.hold_decisions)


@dataclass(frozen=True, slots=True)
class Role:
    """A role as its row shows it. ``is_held`` is false once its time has run out."""

    term: int
    holder: str
    is_held: bool


async def read_roles(database: Database) -> dict[str, Role]:
    """Return all roles that were ever held, for readiness and reports."""
    rows = await database.fetch(Q.roles, columns)
    return {role: Role(*fields) for role, *fields in rows}

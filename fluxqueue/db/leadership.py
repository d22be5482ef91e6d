"""Terms: who may match, and who may observe, fenced by a number in every commit.

A role has one holder until its time runs out; whoever takes over raises the term. A holder that
was paused and wakes up still believes in its term, so every transaction that decides checks the
term under a row lock first. Used by the worker (role ``matcher``) and controller (``controller``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.db import cluster_identity
from fluxqueue.db.database import Database, Transaction
from fluxqueue.errors import LostLeadership


async def try_acquire(
    database: Database, role: str, holder: str, *, duration_s: float
) -> int | None:
    """Begin a term of ``role`` for ``duration_s``; give it, or None while another holds the role.

    Each success is a new term, also for a ``holder`` that has the role already: a process that was
    restarted under the same name must not share a term with what its old life left in flight.
    Time is the database's, so no two clocks are compared.

    Raises
    ------
    WrongCluster
        The database belongs to another cluster by now.
    """
    async with database.begin() as tx:
        await cluster_identity.check(tx, database.cluster_uid)
        row = await tx.fetch_one(
            """
            INSERT INTO leadership AS l (role, term, holder, expires_at)
            VALUES (:role, 1, :holder, now() + make_interval(secs => :duration_s))
            ON CONFLICT (role) DO UPDATE SET
                term = l.term + 1,
                holder = excluded.holder,
                expires_at = excluded.expires_at
            WHERE l.holder = excluded.holder OR l.expires_at < now()
            RETURNING term
            """,
            role=role,
            holder=holder,
            duration_s=duration_s,
        )
        return None if row is None else int(row["term"])


async def renew(
    database: Database, role: str, holder: str, *, term: int, duration_s: float
) -> bool:
    """Keep ``term`` for another ``duration_s``; tell whether it is still the current one.

    One that has run out may be renewed as long as nobody has begun another.
    """
    async with database.begin() as tx:
        renewed = await tx.execute(
            "UPDATE leadership SET expires_at = now() + make_interval(secs => :duration_s)"
            " WHERE role = :role AND holder = :holder AND term = :term",
            role=role,
            holder=holder,
            term=term,
            duration_s=duration_s,
        )
        return renewed == 1


async def seize(database: Database, role: str, holder: str) -> int:
    """Begin a new term of ``role`` at once; whoever believes in an older one can commit no more.

    For a role whose holder is chosen elsewhere (the controller's by a Lease). Its time is that of
    its predecessor, or over: the new holder has yet to look (``confirm``).

    Raises
    ------
    WrongCluster
        The database belongs to another cluster by now.
    """
    async with database.begin() as tx:
        await cluster_identity.check(tx, database.cluster_uid)
        row = await tx.fetch_one(
            """
            INSERT INTO leadership AS l (role, term, holder, expires_at)
            VALUES (:role, 1, :holder, now())
            ON CONFLICT (role) DO UPDATE SET term = l.term + 1, holder = excluded.holder,
                expires_at = CASE WHEN l.expires_at < 'infinity' THEN l.expires_at ELSE now() END
            RETURNING term
            """,
            role=role,
            holder=holder,
        )
        assert row is not None, "an upsert without a condition gives its row"
        return int(row["term"])


CONTROLLER = "controller"
"""The role whose holder compares the rows with the cluster."""


async def confirm(tx: Transaction, role: str, *, term: int, duration_s: float) -> bool:
    """Say for another ``duration_s`` that ``term`` compares the rows with the cluster.

    Tells whether nobody had said so for a while: then the queue has stood still (``is_observed``).
    """
    row = await tx.fetch_one(
        """
        UPDATE leadership l SET expires_at = now() + make_interval(secs => :duration_s)
        FROM (SELECT expires_at FROM leadership WHERE role = :role AND term = :term FOR UPDATE) old
        WHERE l.role = :role RETURNING old.expires_at <= now() AS had_lapsed
        """,
        role=role,
        term=term,
        duration_s=duration_s,
    )
    return row is not None and bool(row["had_lapsed"])


OBSERVED = """
NOT EXISTS (SELECT FROM leadership WHERE role = 'controller' AND expires_at <= now())
"""
"""The same as a condition of statements that look for what is to be done on the cluster."""


async def doubt(tx: Transaction, role: str, *, term: int) -> None:
    """Take back what ``confirm`` said: the rows are known to be wrong until it is said again."""
    await tx.execute(
        "UPDATE leadership SET expires_at = least(expires_at, now())"
        " WHERE role = :role AND term = :term",
        role=role,
        term=term,
    )


async def is_observed(tx: Transaction) -> bool:
    """Whether somebody compares the rows with the cluster; nothing is decided otherwise.

    A database that was restored from a backup, or is empty, knows less than the cluster. Its
    controller has not confirmed it yet, so nobody acts on it. Rows that no controller ever led
    (a simulation) need none.
    """
    row = await tx.fetch_one(
        "SELECT expires_at > now() AS is_held FROM leadership WHERE role = :role", role=CONTROLLER
    )
    return row is None or bool(row["is_held"])


async def resign(database: Database, role: str, holder: str, *, term: int) -> None:
    """Let ``term`` go at once, so that a successor need not wait for the time to run out."""
    async with database.begin() as tx:
        await tx.execute(
            "UPDATE leadership SET expires_at = now() - interval '1 second'"
            " WHERE role = :role AND holder = :holder AND term = :term",
            role=role,
            holder=holder,
            term=term,
        )


async def check_term(tx: Transaction, role: str, term: int) -> None:
    """Hold the role's row for this transaction and make sure the term is still ours.

    Raises
    ------
    LostLeadership
        Another term has begun; the caller must roll back and stop deciding.
    """
    row = await tx.fetch_one("SELECT term FROM leadership WHERE role = :role FOR UPDATE", role=role)
    _check(role, term, row)


def _check(role: str, term: int, row: Mapping[str, Any] | None) -> None:
    if row is None or row["term"] != term:
        current = "none" if row is None else row["term"]
        raise LostLeadership(f"role {role}: our term is {term}, the current one is {current}")


async def may_decide(tx: Transaction, role: str, term: int) -> bool:
    """``check_term``, and whether somebody compares the rows with the cluster (``is_observed``).

    Raises
    ------
    LostLeadership
        As of ``check_term``.
    """
    row = await tx.fetch_one(
        "SELECT term, coalesce((SELECT expires_at > now() FROM leadership WHERE role = :watch),"
        " true) AS is_observed FROM leadership WHERE role = :role FOR UPDATE",
        role=role,
        watch=CONTROLLER,
    )
    _check(role, term, row)
    return row is not None and bool(row["is_observed"])


async def hold_decisions(tx: Transaction) -> None:
    """No cycle is under way until this transaction ends, and the next one sees all of it.

    For whoever makes rows that wait beside rows that have their nodes already: a cycle reads what
    has changed in the graph first, who waits after that, and would find room that is taken.
    """
    await tx.execute("SELECT FROM leadership WHERE role = 'matcher' FOR UPDATE")


@dataclass(frozen=True, slots=True)
class Role:
    """A role as the row shows it: ``is_held`` is false once its time has run out."""

    term: int
    holder: str
    is_held: bool


async def read_roles(database: Database) -> dict[str, Role]:
    """All roles that anybody ever took, for readiness and reports."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            "SELECT role, term, holder, expires_at > now() AS held FROM leadership"
        )
    return {row["role"]: Role(row["term"], row["holder"], row["held"]) for row in rows}

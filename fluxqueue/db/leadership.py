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
    """Keep ``term`` for another ``duration_s``, and return whether it is still the current one.

    A term that has run out may be renewed as long as no other one has begun.
    """
    async with database.begin() as tx:
        await epoch.look(tx)
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
        row = await tx.fetch_one(
            """
            INSERT INTO leadership AS l (role, term, holder, expires_at, timeline)
            VALUES (:role, 1, :holder, now(), fluxqueue_timeline())
            ON CONFLICT (role) DO UPDATE SET term = l.term + 1, holder = excluded.holder,
                timeline = excluded.timeline,
                expires_at = CASE WHEN l.expires_at < 'infinity' THEN l.expires_at ELSE now() END
            RETURNING term
            """,
            role=role,
            holder=holder,
        )
        assert row is not None, "an upsert without a condition gives its row"
        return int(row["term"])


CONTROLLER = "controller"
"""The role that compares the rows with the cluster."""


async def confirm(tx: Transaction, role: str, *, term: int, duration_s: float) -> bool:
    """Record for another ``duration_s`` that ``term`` compares the rows with the cluster.

    Returns whether that had lapsed for a while: then the queue has stood still (``is_observed``).
    """
    row = await tx.fetch_one(
        """
        UPDATE leadership l SET expires_at = now() + make_interval(secs => :duration_s),
            since = CASE WHEN old.expires_at <= now() THEN now() ELSE l.since END
        FROM (SELECT expires_at FROM leadership WHERE role = :role AND term = :term FOR UPDATE) old
        WHERE l.role = :role RETURNING old.expires_at <= now() AS had_lapsed
        """,
        role=role,
        term=term,
        duration_s=duration_s,
    )
    return row is not None and bool(row["had_lapsed"])


OBSERVED = """
NOT EXISTS (SELECT FROM leadership WHERE role = 'controller'
            AND (expires_at <= now() OR timeline <> fluxqueue_timeline()))
"""
"""The same as a condition of statements that look for pending effects on the cluster."""


DUE = "greatest(o.since, (SELECT since FROM leadership WHERE role = 'controller'))"
"""Since when an action ``o`` of ``pending_actions`` could be done: not while rows were in doubt."""


async def doubt(tx: Transaction, role: str, *, term: int) -> None:
    """Take back what ``confirm`` recorded: the rows are wrong until it is recorded again."""
    await tx.execute(
        "UPDATE leadership SET expires_at = least(expires_at, now())"
        " WHERE role = :role AND term = :term",
        role=role,
        term=term,
    )


async def is_observed(tx: Transaction) -> bool:
    """Return whether a controller compares the rows with the cluster. Decisions require it.

    A database that was restored from a backup, or is empty, knows less than the cluster. Its
    controller has not confirmed it yet, so no process acts on it. Rows that no controller ever led
    (a simulation) need none.
    """
    row = await tx.fetch_one(
        "SELECT expires_at > now() AND coalesce(timeline = fluxqueue_timeline(), true) AS is_held"
        " FROM leadership WHERE role = :role",
        role=CONTROLLER,
    )
    return row is None or bool(row["is_held"])


async def resign(database: Database, role: str, holder: str, *, term: int) -> None:
    """End ``term`` at once: a successor then need not wait for the time to run out."""
    async with database.begin() as tx:
        await tx.execute(
            "UPDATE leadership SET expires_at = now() - interval '1 second'"
            " WHERE role = :role AND holder = :holder AND term = :term",
            role=role,
            holder=holder,
            term=term,
        )


_COUNT = """
UPDATE leadership l SET commits = l.commits + 1 WHERE l.role = :role
RETURNING l.term, (SELECT last_value FROM fluxjobs_jobid_seq) AS jobid,
    -- Its own count without this transaction: a single lost commit would hide behind that.
    jsonb_build_object(l.role, jsonb_build_array(l.term, l.commits - 1)) || coalesce(
        (SELECT jsonb_object_agg(o.role, jsonb_build_array(o.term, o.commits)) FROM leadership o
         WHERE o.role <> :role), '{}') AS roles,
    coalesce((SELECT w.timeline = fluxqueue_timeline() FROM leadership w
              WHERE w.role = 'controller'), true) AS is_same_timeline,
    coalesce((SELECT w.expires_at > now() FROM leadership w
              WHERE w.role = 'controller'), true) AS is_observed
"""
"""Locks the row of a role, counts the transaction in it, and returns the marks of all roles."""


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
    row = await tx.fetch_one(_COUNT, role=role)
    if row is None and role in seen.roles:
        raise DatabaseWentBack(f"role {role} was held, and the database does not know it")
    if row is not None:
        tx.found = epoch.compare(seen, row)
        tx.found.count(role)
    if row is None or row["term"] != term:
        current = "none" if row is None else row["term"]
        raise LostLeadership(f"role {role}: our term is {term}, the current one is {current}")
    return bool(row["is_observed"])


async def hold_decisions(tx: Transaction) -> None:
    """Keep cycles out until this transaction ends. The next one sees all of it.

    For a transaction that makes waiting rows beside rows that have their nodes already. A cycle
    reads changes of the graph first and waiting FluxJobs after that. It would take nodes as free
    that are taken.
    """
    await tx.execute("SELECT FROM leadership WHERE role = 'matcher' FOR UPDATE")


@dataclass(frozen=True, slots=True)
class Role:
    """A role as its row shows it. ``is_held`` is false once its time has run out."""

    term: int
    holder: str
    is_held: bool


async def read_roles(database: Database) -> dict[str, Role]:
    """Return all roles that were ever held, for readiness and reports."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            "SELECT role, term, holder, expires_at > now() AS held FROM leadership"
        )
    return {row["role"]: Role(row["term"], row["holder"], row["held"]) for row in rows}

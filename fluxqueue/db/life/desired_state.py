"""What the rows want of a workload object: that it is suspended, let go, or deleted.

Read by the worker's ``release`` effect before and after each write to the cluster; the last word is
always the row's. Changes no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fluxqueue.db.database import Database
from fluxqueue.workload.managed import JOB


@dataclass(frozen=True, slots=True)
class Wanted:
    """A workload object and what it is to be; ``kind`` is Job or Pod."""

    uid: str
    kind: str
    namespace: str
    name: str
    is_suspended: bool = False
    is_deleted: bool = False


async def read_wanted(database: Database, uid: str) -> Wanted | None:
    """Say what the row wants of its object; None where it wants nothing (any more)."""
    async with database.begin() as tx:
        row = await tx.fetch_one(
            "SELECT namespace, workload_kind, workload_name, state, author_hold, vacate_by,"
            " cancel_by, is_gone, is_deleting FROM fluxjobs WHERE uid = :uid",
            uid=uid,
        )
    if row is None or row["is_gone"]:
        return None
    name = (uid, row["workload_kind"], row["namespace"], row["workload_name"])
    if row["cancel_by"] is not None:
        return Wanted(*name, is_deleted=True)
    if row["workload_kind"] != JOB or row["is_deleting"]:
        return None
    if row["state"] in {"Allocated", "Running"}:
        # What its author has suspended is left alone until its author resumes it.
        is_authors = row["vacate_by"] == "author"
        return None if is_authors else Wanted(*name, is_suspended=row["vacate_by"] is not None)
    is_authors = row["author_hold"] in {"author", "suspended"}
    is_waiting = row["state"] in {"Pending", "Reserved", "Unsatisfiable", "Held"}
    return Wanted(*name, is_suspended=True) if is_waiting and not is_authors else None


async def remember_let_go(database: Database, uid: str, generation: int) -> None:
    """Keep the generation of the BatchJob that our release made: later suspensions are not ours."""
    async with database.begin() as tx:
        await tx.execute(
            "UPDATE fluxjobs SET let_go_at = greatest(let_go_at, :generation)"
            " WHERE uid = :uid AND state IN ('Allocated', 'Running')",
            uid=uid,
            generation=generation,
        )


async def read_pods(
    database: Database, uid: str, pod_uids: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Namespace, name and UID of pods of a workload, as far as they are still there and unbound."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            "SELECT namespace, name, uid FROM pods WHERE workload_uid = :uid AND node IS NULL"
            " AND uid = ANY(CAST(:pods AS text[]))",
            uid=uid,
            pods=list(pod_uids),
        )
    return [(row["namespace"], row["name"], row["uid"]) for row in rows]

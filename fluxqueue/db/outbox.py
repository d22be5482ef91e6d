"""The outbox: effects still to be carried out, drained in batches by the worker's tasks.

A row is written in the transaction that decided it. Draining claims rows by moving their due time
into the future: a drain that dies leaves rows that become due again, and every effect may happen
twice. Rows carry their own retry counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.task_queue import TaskName

CLAIM_S = 10
"""A claimed row becomes due again after this long, should its drain die."""

RETRY_MAX_S = 30
"""Longest pause between two tries of one effect."""


# Nothing is done from rows that no controller compares with the cluster (``leadership``).
_CLAIM = """
UPDATE outbox SET attempts = attempts + 1, due_at = now() + make_interval(secs => :claim_s)
WHERE id IN (SELECT id FROM outbox WHERE kind = :kind AND due_at <= now()
             AND NOT EXISTS (SELECT FROM leadership
                             WHERE role = 'controller' AND expires_at <= now())
             ORDER BY due_at, id LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING id, key, payload, attempts
"""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One claimed effect."""

    id: int
    key: str
    payload: dict[str, Any]
    attempts: int


async def put(tx: Transaction, task: TaskName, keys: Iterable[str]) -> None:
    """Leave one effect per key for ``task`` and wake it, all with the caller's transaction."""
    wanted = list(keys)
    if wanted:
        await tx.execute(
            "INSERT INTO outbox (kind, key)"
            " SELECT CAST(:kind AS text), unnest(CAST(:keys AS text[]))",
            kind=task.value,
            keys=wanted,
        )
        tx.wake(task)


async def put_payloads(
    tx: Transaction, task: TaskName, effects: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Leave effects that say more than their key, and wake their task."""
    if effects:
        await tx.execute(
            "INSERT INTO outbox (kind, key, payload)"
            " SELECT CAST(:kind AS text), key, CAST(payload AS jsonb)"
            " FROM unnest(CAST(:keys AS text[]), CAST(:payloads AS text[])) AS e (key, payload)",
            kind=task.value,
            keys=[key for key, _ in effects],
            payloads=[orjson.dumps(payload).decode() for _, payload in effects],
        )
        tx.wake(task)


@dataclass(slots=True)
class Outcome:
    """What became of a claimed batch: ids that are done, and ids with their errors."""

    done: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)


async def finish_and_claim(
    database: Database, task: TaskName, outcome: Outcome, *, limit: int
) -> list[OutboxRow]:
    """Settle the last batch and claim the next, oldest due rows first; ``limit`` 0 claims none.

    Rows that are done are deleted; those that failed are put off, longer each time.
    """
    async with database.begin() as tx:
        if outcome.done:
            await tx.execute(
                "DELETE FROM outbox WHERE id = ANY(CAST(:ids AS bigint[]))", ids=outcome.done
            )
        if outcome.failed:
            await tx.execute(
                """
                UPDATE outbox o SET last_error = f.error, due_at = now()
                    + make_interval(secs => least(:max_s, 0.2 * 2 ^ least(attempts, 12)))
                FROM unnest(CAST(:ids AS bigint[]), CAST(:errors AS text[])) AS f (id, error)
                WHERE o.id = f.id
                """,
                ids=list(outcome.failed),
                errors=[error[:500] for error in outcome.failed.values()],
                max_s=RETRY_MAX_S,
            )
        rows = await tx.fetch(_CLAIM, kind=task.value, claim_s=CLAIM_S, limit=limit)
    return sorted((OutboxRow(**row) for row in rows), key=lambda row: row.id)


async def due_tasks(database: Database) -> list[TaskName]:
    """Tasks that have something to do now: the sweep wakes them whatever else was lost."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            """
            SELECT kind FROM (VALUES ('release'), ('ungate'), ('cleanup'), ('status')) k (kind)
            WHERE EXISTS (SELECT FROM outbox o WHERE o.kind = k.kind AND o.due_at <= now())
            UNION ALL
            SELECT 'schedule' WHERE EXISTS (SELECT FROM graph_changes)
                OR EXISTS (SELECT FROM fluxjobs
                           WHERE NOT is_examined
                             AND (state IN ('Pending', 'Reserved') OR held_by = 'queue'))
            """
        )
    return [TaskName(row["kind"]) for row in rows]

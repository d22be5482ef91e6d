"""Retention: delete what is over and gone after a time. The ``maintain`` task calls it."""

from __future__ import annotations

import time

from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q

ANALYZE_FROM = 1000
"""Rows of a table from which a plan without statistics hurts."""


ACCOUNTING_RETENTION_S = 400 * 86400
"""Runs are kept for longer than a year, so that years can be compared."""

FAILED_TASKS_S = 86400
"""A task that has failed for good is kept this long, so that people see it."""

STEP_FIRST, STEP_MAX = 100, 5000
"""Rows deleted in one transaction: at first, and where that is quick."""

STEP_S = 0.5
"""A step that takes longer is halved, and one that takes a quarter of it is doubled.

No step then comes near the statement limit, and no transaction waits long for its locks.
"""

TURN_S = 5.0
"""How long one call may delete from one table. What is left is for the next call."""


async def delete_old_rows(
    database: Database,
    *,
    retention_s: int,
    accounting_retention_s: int = ACCOUNTING_RETENTION_S,
) -> None:
    """Delete FluxJobs, audit lines and tasks that ended longer than ``retention_s`` ago.

    Each step is a short transaction, and all of them take a few seconds at most. What is left then
    is for the next call.
    """
    await _delete_in_steps(database, Q.delete_fluxjobs, retention_s)
    await _delete_in_steps(database, Q.delete_history, retention_s)
    await _delete_in_steps(database, Q.delete_accounting, accounting_retention_s)
    await _delete_in_steps(database, Q.delete_run_times, accounting_retention_s)
    await _delete_in_steps(database, Q.delete_learned, retention_s)
    await _delete_in_steps(database, Q.delete_node_requests, retention_s)
    await _delete_in_steps(database, Q.delete_tasks, FAILED_TASKS_S)


async def _delete_in_steps(database: Database, query: str, retention_s: int) -> int:
    """Repeat a statement that deletes about ``step`` rows until none is left. Return how many."""
    step, deleted = STEP_FIRST, 0
    began_s = time.monotonic()
    while (step_began_s := time.monotonic()) < began_s + TURN_S:
        async with database.begin() as tx:
            number = await tx.execute(query, step=step, retention_s=retention_s)
        if not number:
            break
        deleted += number
        took_s = time.monotonic() - step_began_s
        if took_s > STEP_S:
            step = max(1, step // 2)
        elif took_s < STEP_S / 4:
            step = min(STEP_MAX, step * 2)
    return deleted


async def analyze_unknown(database: Database) -> list[str]:
    """Give the planner statistics of large tables that have none, and return their names.

    A restored or rebuilt database has rows and no statistics, and autovacuum may come late.
    """
    async with database.begin() as tx:
        tables = await tx.fetch(Q.tables_without_statistics, str, rows=ANALYZE_FROM)
        for name in tables:
            await tx.execute(f'ANALYZE "{name}"')
    return tables

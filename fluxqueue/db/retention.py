"""Retention: delete what is over and gone after a time. The ``maintain`` task calls it."""

from __future__ import annotations

import time

from fluxqueue.db.database import Database
from fluxqueue.db.task_statements import DELETE_TASKS

ANALYZE_FROM = 1000
"""Rows of a table from which a plan without statistics hurts."""


ACCOUNTING_RETENTION_S = 400 * 86400
"""Runs are kept for longer than a year, so that years can be compared."""

FAILEDDELETE_TASKS_S = 86400
"""A task that has failed for good is kept this long, so that people see it."""

STEP_FIRST, STEP_MAX = 100, 5000
"""Rows deleted in one transaction: at first, and where that is quick."""

STEP_S = 0.5
"""A step that takes longer is halved, and one that takes a quarter of it is doubled.

No step then comes near the statement limit, and no transaction waits long for its locks.
"""

TURN_S = 5.0
"""How long one call may delete from one table. What is left is for the next call."""

# A FluxJob takes its allocations, slots and edges along, so a step is counted in slots. FluxJobs
# are locked in the order of their UIDs, as everywhere. Locked ones are left for the next call.
_FLUXJOBS = """
DELETE FROM fluxjobs WHERE uid = ANY(ARRAY(
    SELECT uid FROM fluxjobs WHERE uid = ANY(ARRAY(
        SELECT uid FROM (
            SELECT uid, size, sum(size) OVER (ORDER BY ended_at, uid) AS so_far FROM (
                SELECT uid, ended_at, greatest(size, 1) AS size FROM fluxjobs
                WHERE is_gone AND ended_at < now() - make_interval(secs => :retention_s)
                ORDER BY ended_at LIMIT :step) oldest) counted
        WHERE so_far - size < :step))
    ORDER BY uid FOR UPDATE SKIP LOCKED))
"""
# Lines of the audit trail are as old as their number is low, so the index of the numbers will do.
_HISTORY = """
DELETE FROM history WHERE id = ANY(ARRAY(
    SELECT id FROM (SELECT id, at FROM history ORDER BY id LIMIT :step) oldest
    WHERE at < now() - make_interval(secs => :retention_s)))
"""
_ACCOUNTING = """
DELETE FROM accounting WHERE id = ANY(ARRAY(
    SELECT id FROM accounting WHERE ended_at < now() - make_interval(secs => :retention_s)
    ORDER BY ended_at LIMIT :step))
"""
# Learned again from the next pod of such a template.
_LEARNED = """
DELETE FROM learned_sizes WHERE (namespace, template) IN (
    SELECT namespace, template FROM learned_sizes
    WHERE written_at < now() - make_interval(secs => :retention_s) LIMIT :step)
"""
_NODE_REQUESTS = """
DELETE FROM node_requests WHERE number = ANY(ARRAY(
    SELECT number FROM node_requests WHERE is_settled
      AND ended_at < now() - make_interval(secs => :retention_s) ORDER BY number LIMIT :step))
"""


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
    await _delete_in_steps(database, _FLUXJOBS, retention_s)
    await _delete_in_steps(database, _HISTORY, retention_s)
    await _delete_in_steps(database, _ACCOUNTING, accounting_retention_s)
    await _delete_in_steps(database, _LEARNED, retention_s)
    await _delete_in_steps(database, _NODE_REQUESTS, retention_s)
    await _delete_in_steps(database, DELETE_TASKS, FAILEDDELETE_TASKS_S)


async def _delete_in_steps(database: Database, sql: str, retention_s: int) -> int:
    """Repeat a statement that deletes about ``step`` rows until none is left. Return how many."""
    step, deleted = STEP_FIRST, 0
    began_s = time.monotonic()
    while (step_began_s := time.monotonic()) < began_s + TURN_S:
        async with database.begin() as tx:
            number = await tx.execute(sql, step=step, retention_s=retention_s)
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
        rows = await tx.fetch(
            "SELECT s.relname FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid"
            " WHERE s.schemaname = 'public' AND pg_has_role(c.relowner, 'USAGE')"
            " AND n_live_tup >= :rows AND last_analyze IS NULL AND last_autoanalyze IS NULL"
            " ORDER BY relname",
            rows=ANALYZE_FROM,
        )
        for row in rows:
            await tx.execute(f'ANALYZE "{row["relname"]}"')
    return [row["relname"] for row in rows]

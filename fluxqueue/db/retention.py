"""Retention: what is over and gone is forgotten after a time. Called by the ``maintain`` task."""

from __future__ import annotations

from fluxqueue.db.database import Database

ANALYZE_FROM = 1000
"""Rows of a table from which a plan without statistics hurts."""


ACCOUNTING_RETENTION_S = 400 * 86400
"""Runs are kept for longer than a year, so that years can be compared."""


async def delete_old_rows(
    database: Database,
    *,
    retention_s: int,
    accounting_retention_s: int = ACCOUNTING_RETENTION_S,
) -> None:
    """Forget FluxJobs, audit lines and tasks that ended longer than ``retention_s`` ago."""
    async with database.begin() as tx:
        await tx.execute(
            "DELETE FROM fluxjobs WHERE uid IN (SELECT uid FROM fluxjobs WHERE is_gone"
            " AND ended_at < now() - make_interval(secs => :retention_s) LIMIT 5000)",
            retention_s=retention_s,
        )
        await tx.execute(
            "DELETE FROM history WHERE id IN (SELECT id FROM history"
            " WHERE at < now() - make_interval(secs => :retention_s) LIMIT 5000)",
            retention_s=retention_s,
        )
        await tx.execute(
            "DELETE FROM accounting WHERE id IN (SELECT id FROM accounting"
            " WHERE ended_at < now() - make_interval(secs => :retention_s) LIMIT 5000)",
            retention_s=accounting_retention_s,
        )
        await tx.execute(
            "DELETE FROM procrastinate.procrastinate_jobs WHERE id IN ("
            " SELECT id FROM procrastinate.procrastinate_jobs"
            " WHERE status IN ('succeeded', 'failed', 'cancelled', 'aborted')"
            # Their worker lives and has lost them; what they were for was deferred anew.
            " OR (status = 'doing' AND EXISTS (SELECT FROM procrastinate.procrastinate_events e"
            "     WHERE e.job_id = procrastinate_jobs.id AND e.type = 'started'"
            "     AND e.at < now() - interval '1 h')) LIMIT 5000)"
        )


async def analyze_unknown(database: Database) -> list[str]:
    """Give the planner statistics of large tables that have none; name them.

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

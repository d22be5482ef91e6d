"""What is owed: why it has failed, and the sweep that finds what is in no task.

Called by the worker's periodic ``sweep`` and by a controller whose silence has ended. What is owed
stands in the rows and in the view ``owed`` (``sql/50_views.sql``, ``sql/20_tasks.sql``).
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxqueue.db.database import Database, Transaction

ERROR_MAX = 500


async def note_failures(database: Database, errors: Mapping[str, str]) -> None:
    """Write down why effects have failed, by UID; the next success takes it out again."""
    await database.execute(
        """
        UPDATE fluxjobs f SET last_error = e.error
        FROM unnest(CAST(:uids AS text[]), CAST(:errors AS text[])) AS e (uid, error)
        WHERE f.uid IN (SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
                        ORDER BY uid FOR NO KEY UPDATE)
          AND f.uid = e.uid
        """,
        uids=list(errors),
        errors=[error[:ERROR_MAX] for error in errors.values()],
    )


async def sweep(tx: Transaction, *, grace_s: float = 0.0) -> Mapping[str, int]:
    """Defer what has been owed for ``grace_s`` and is in no task; give how many, by task."""
    rows = await tx.fetch(
        "SELECT task, number FROM fluxqueue_sweep(make_interval(secs => :grace_s))",
        grace_s=grace_s,
    )
    return {row["task"]: row["number"] for row in rows}

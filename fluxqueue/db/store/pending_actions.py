"""Pending actions: why one has failed, and the sweep that finds those that are in no task.

The worker's periodic ``sweep`` calls it, and so does a controller after a silence. Pending actions
stand in the rows and in the view ``pending_actions`` (``sql/50_views.sql``, ``sql/20_tasks.sql``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.store.notices import Notice, leave_notices

ERROR_MAX = 500

STALLED = "EffectRefused"
"""Reason of the Event on an effect that is refused, and of its condition ``Stalled``."""


async def note_failures(
    database: Database,
    errors: Mapping[str, str],
    *,
    lasting: Collection[str] = (),
    task: str = "",
) -> None:
    """Write down why effects of ``task`` have failed, by UID. The next success removes it again.

    Parameters: ``lasting`` are the UIDs of failures that do not pass with time alone. A condition
    and one Event report them.
    """
    said = {uid: error.replace("\0", "")[:ERROR_MAX] for uid, error in errors.items()}
    async with database.begin() as tx:
        new = await tx.fetch(
            """
            UPDATE fluxjobs f SET last_error = e.error,
                -- The first word of it stays: another one each time would be news each time.
                stalled = CASE WHEN e.is_lasting
                               THEN jsonb_build_object(CAST(:task AS text), e.error) || f.stalled
                               ELSE f.stalled END
            FROM unnest(CAST(:uids AS text[]), CAST(:errors AS text[]),
                        CAST(:lasting AS bool[])) AS e (uid, error, is_lasting)
                 JOIN (SELECT uid, stalled FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[]))
                       ORDER BY uid FOR NO KEY UPDATE) old USING (uid)
            WHERE f.uid = e.uid
            RETURNING f.uid, f.stalled ->> :task AS told,
                      f.stalled ? :task AND NOT old.stalled ? :task AS is_news
            """,
            uids=list(said),
            errors=list(said.values()),
            lasting=[uid in lasting for uid in said],
            task=task,
        )
        notices = [
            Notice(
                row["uid"],
                STALLED,
                f"{task} is refused and tried again: {row['told']}",
                key=f"{STALLED}/{task}",
                is_warning=True,
            )
            for row in new
            if row["is_news"]
        ]
        await leave_notices(tx, notices)


BOOKING = "booking"
"""The task under which a damaged allocation is noted. The cycle reads it, no task of the queue."""


async def forgive_except(database: Database, still: Collection[str], *, task: str) -> None:
    """Remove the notes of ``task`` from all rows but those of the UIDs ``still``."""
    async with database.begin() as tx:
        # Locked in the order of the UIDs, as everywhere. Another order could deadlock.
        await tx.execute(
            """
            WITH noted AS (
                SELECT uid FROM fluxjobs
                WHERE stalled <> '{}' AND stalled ? :task
                  AND NOT uid = ANY(CAST(:still AS text[]))
                ORDER BY uid FOR NO KEY UPDATE)
            UPDATE fluxjobs f SET stalled = f.stalled - CAST(:task AS text)
            FROM noted WHERE f.uid = noted.uid
            """,
            task=task,
            still=list(still),
        )


async def sweep(tx: Transaction, *, grace_s: float = 0.0) -> Mapping[str, int]:
    """Defer what is pending for ``grace_s`` and in no task, and return how many, by task."""
    rows = await tx.fetch(
        "SELECT task, number FROM fluxqueue_sweep(make_interval(secs => :grace_s))",
        grace_s=grace_s,
    )
    return {row["task"]: row["number"] for row in rows}

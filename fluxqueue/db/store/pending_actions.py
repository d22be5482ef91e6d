"""Pending actions: why one has failed, and the sweep that finds those that are in no task.

The worker's periodic ``sweep`` calls it, and so does a controller after a silence. Pending actions
stand in the rows and in the view ``pending_actions`` (``sql/50_views.sql``, ``sql/20_tasks.sql``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
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
            Q.note_failures,
            columns,
            uids=list(said),
            errors=list(said.values()),
            lasting=[uid in lasting for uid in said],
            task=task,
        )
        notices = [
            Notice(
                uid,
                STALLED,
                f"{task} is refused and tried again: {told}",
                key=f"{STALLED}/{task}",
                is_warning=True,
            )
            for uid, told, is_news in new
            if is_news
        ]
        await leave_notices(tx, notices)


BOOKING = "booking"
"""The task under which a damaged allocation is noted. The cycle reads it, no task of the queue."""


async def forgive_except(database: Database, still: Collection[str], *, task: str) -> None:
    """Remove the notes of ``task`` from all rows but those of the UIDs ``still``."""
    async with database.begin() as tx:
        await tx.execute(
            Q.forgive_except,
            task=task,
            still=list(still),
        )


async def sweep(tx: Transaction, *, grace_s: float = 0.0) -> Mapping[str, int]:
    """Defer what is pending for ``grace_s`` and in no task, and return how many, by task."""
    return dict(await tx.fetch(Q.sweep, columns, grace_s=grace_s))

"""Moves in rows: what a cycle, a user or a look at pods orders of FluxJobs.

Modules of ``db/store`` call it for changes of states (``apply_move`` carries out a ``Move`` of
``fluxjob/lifecycle.py``), and to have a workload suspended or deleted. A move says which rows it
applies to, so a row that another process has changed meanwhile stays as it is. The statements stand
in ``queries/moves.sql``. Nothing here decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.fluxjob.lifecycle import Move
from fluxqueue.fluxjob.states import FluxJobState


@dataclass(frozen=True, slots=True)
class Moved:
    """A row to move, the reason that its users see, and its holder afterwards."""

    uid: str
    reason: str = ""
    held_by: str | None = None


async def apply_move(
    tx: Transaction,
    which: Move,
    rows: Sequence[Moved],
    *,
    query: str = Q.move_rows,
    **values: Any,
) -> set[str]:
    """Carry out a move, and return the UIDs of the rows that it applied to.

    ``query`` is ``Q.move_rows``, or one of its kind that sets more. ``values`` are its further
    parameters.
    """
    if not rows:
        return set()
    moved = await tx.fetch(
        query,
        str,
        target=str(which.target),
        is_examined=which.is_examined,
        is_ending_excluded=which.is_ending_excluded,
        sources=sorted(str(state) for state in which.sources),
        holders=sorted(which.held_by),
        rows=sorted(rows, key=lambda one: one.uid),
        **values,
    )
    return set(moved)


async def vacate(
    tx: Transaction, uid: str, *, by: str, reason: str, words: str | None = None
) -> None:
    """Have a workload suspended. It returns to the queue as its pods end.

    ``by``: what ends its pods (``fluxjob.holders``). ``words``: why its start failed.
    """
    await tx.execute(Q.vacate, uid=uid, by=by, reason=reason, words=words)


async def order_deletion(tx: Transaction, uid: str, *, by: str, reason: str) -> None:
    """Have a workload deleted. Its FluxJob ends as its pods do."""
    await tx.execute(Q.order_deletion, uid=uid, by=by, reason=reason)


async def give_reasons(
    tx: Transaction, reasons: Mapping[str, str], states: Collection[FluxJobState]
) -> None:
    """Write reasons by UID, where they have changed and the FluxJob is in one of ``states``."""
    if reasons:
        await tx.execute(
            Q.give_reasons,
            uids=list(reasons),
            reasons=list(reasons.values()),
            states=sorted(str(state) for state in states),
        )


async def recompute_priorities(
    tx: Transaction, queues: Sequence[str], users: Sequence[str] | None = None
) -> int:
    """Have priorities in ``queues`` computed anew, and return how many have changed.

    ``users``: one for each of ``queues``, if not all users of them.
    """
    return await tx.execute(Q.recompute_priorities, queues=list(queues), users=users)

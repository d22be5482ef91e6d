"""The planned end of live allocations: what moves it, and what follows if it has passed.

``observations`` calls ``follow_ends`` under the locks of the rows, after it has written them. The
worker with the matcher's role calls ``end_overruns``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.moves import order_deletion, vacate
from fluxqueue.db.store.notices import Notice, leave_notices
from fluxqueue.db.store.workload_rows import SeenRow
from fluxqueue.fluxjob.holders import OVERRAN
from fluxqueue.fluxjob.limit import (
    SLACK_S,
    Limit,
    OverrunAction,
    OverrunRules,
    granted_end,
    is_beyond,
    judge_overrun,
    limit_now,
)
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.policy.queue_rules import QueueRules

END_MOVED = "EndMoved"
"""The event of a running job with a planned end that is another than before."""

OVERRUN = "Overrun"
"""The event of a job that holds its nodes past its limit and grace."""


def next_limit(one: WorkloadSeen, old: SeenRow) -> Limit:
    """Return the limit of an allocated workload after this observation."""
    seen = Limit(one.duration_s, one.facts.grace_s, one.facts.is_limited)
    # A group without pods says nothing.
    is_silent = one.result is not None or (one.facts.is_gathered and not one.pods)
    return old.limit if is_silent else limit_now(old.limit, seen, old.elapsed_s or 0)


async def follow_ends(
    tx: Transaction,
    seen: Sequence[WorkloadSeen],
    stored: Mapping[str, SeenRow],
    before: Mapping[str, WorkloadSeen],
) -> None:
    """Set the planned end of allocations by what limits their workloads now, and tell their users.

    Parameters
    ----------
    seen : workloads with rows.
    stored : by UID, the rows before this observation.
    before : what was written last of some of them.
    """
    moved = {
        one.uid: (one, next_limit(one, stored[one.uid]))
        for one in seen
        if _moves(one, stored[one.uid], before.get(one.uid))
    }
    if not moved:
        return
    rows = [
        {
            "uid": uid,
            "held_s": limit.held_s,
            "ends_at": one.ends_at_s,
        }
        for uid, (one, limit) in moved.items()
    ]
    changed = await tx.fetch(Q.follow_ends, columns, rows=rows, slack_s=SLACK_S)
    notices = []
    for uid, former, until in changed:
        was, now = stored[uid].limit, moved[uid][1]
        is_later = until is None or (former or 0) < until
        notices.append(
            Notice(
                uid,
                END_MOVED,
                _describe(was, now, until),
                f"{END_MOVED}/{until}",
                is_warning=is_later and former is not None,
            )
        )
    await leave_notices(tx, notices)


def _moves(one: WorkloadSeen, old: SeenRow, last: WorkloadSeen | None) -> bool:
    """Return whether the planned end of an allocation may be another one than before."""
    starts_at = old.allocated_at_s
    if starts_at is None:
        return False
    was, now = old.limit, next_limit(one, old)
    if now.duration_s is None or now.duration_s != was.duration_s:
        return now.duration_s != was.duration_s
    ends = (one.ends_at_s, None if last is None else last.ends_at_s)
    is_late = any(is_beyond(now, starts_at, end) for end in ends)
    return now.grace_s != was.grace_s or (is_late and not one.facts.is_sweep)


def _describe(was: Limit, now: Limit, until: int | None) -> str:
    end = "its end is unknown" if until is None else f"its nodes are held until {to_rfc3339(until)}"
    for name, old, new in (
        ("limit", was.duration_s, now.duration_s),
        ("grace", was.grace_s, now.grace_s),
    ):
        if old != new:
            there = "removed" if new is None else f"{new} s"
            former = "none" if old is None else f"{old} s"
            return f"the {name} of its pods is {there} instead of {former}: {end}"
    return f"its pods end at another time than limit and grace say: {end}"


_ORDERS = {OverrunAction.REQUEUE: vacate, OverrunAction.CANCEL: order_deletion}
_WORDS = {
    OverrunAction.REPORT: "reservations behind it move",
    OverrunAction.REQUEUE: "it goes back to the queue as its pods end",
    OverrunAction.CANCEL: "it is deleted",
}


class OverrunRow(NamedTuple):
    """A job that holds its nodes past its limit. ``is_told``: its users know of this run."""

    uid: str
    jobid: int
    queue: str
    duration_s: int
    grace_s: int
    is_suspendable: bool
    made_by: str | None
    starts_at: int
    is_ending: bool
    is_told: bool


async def end_overruns(tx: Transaction, rules: Mapping[str, QueueRules], now: int) -> int:
    """Carry out what follows for jobs that hold nodes past their limit. Return their number.

    Parameters
    ----------
    tx : under the matcher's term.
    rules : of all queues.
    now : epoch seconds.
    """
    notices = []
    for row in await tx.fetch(Q.overruns, OverrunRow, now=now, overrun=OVERRUN):
        queue = rules.get(row.queue)
        most_s = None if queue is None else queue.per_job.duration_s
        ends_at = granted_end(Limit(row.duration_s, row.grace_s), row.starts_at, most_s)
        action = (
            None
            if ends_at is None
            else judge_overrun(
                OverrunRules() if queue is None else queue.overrun,
                ends_at,
                now,
                can_requeue=row.is_suspendable,
                can_cancel=row.made_by is None,
            )
        )
        is_over = action is OverrunAction.REPORT or row.is_ending
        if action is None or ends_at is None or (is_over and row.is_told):
            continue
        limit = f"limit and grace ended {to_rfc3339(ends_at)}"
        reason = f"runs past its limit: its {limit}; {_WORDS[action]}"
        if not is_over:
            by = OVERRAN if action is OverrunAction.REQUEUE else f"queue {row.queue}: its {limit}"
            await _ORDERS[action](tx, row.uid, by=by, reason=reason)
        notices.append(Notice(row.uid, OVERRUN, reason, f"{OVERRUN}/{ends_at}", is_warning=True))
    await leave_notices(tx, notices)
    return len(notices)

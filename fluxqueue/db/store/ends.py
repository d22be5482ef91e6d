"""The planned end of live allocations: what moves it, and what follows if it has passed.

``observations`` calls ``follow_ends`` under the locks of the rows, after it has written them. The
worker with the matcher's role calls ``end_overruns``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.store.notices import Notice, leave_notices
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

# The pods of a sweep have ends of their own, which count from the time of their slots.
_FOLLOW = """
WITH old AS (
    SELECT a.id, a.until AS before, CASE
        WHEN r.is_sweep THEN extract(epoch FROM now())::bigint + r.held_s
        WHEN r.ends_at > a.starts_at + r.held_s + CAST(:slack_s AS int) THEN r.ends_at
        ELSE a.starts_at + r.held_s END AS until
    FROM allocations a JOIN jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        uid text, held_s bigint, ends_at bigint, is_sweep bool) USING (uid)
    WHERE a.is_live
), told AS (
    INSERT INTO graph_changes (kind, key)
    SELECT 'allocation', id::text FROM old WHERE until IS DISTINCT FROM before
)
UPDATE allocations a SET until = old.until FROM old
WHERE a.id = old.id AND old.until IS DISTINCT FROM old.before
RETURNING a.uid, old.before, a.until
"""


def next_limit(one: WorkloadSeen, old: Mapping[str, Any]) -> Limit:
    """Return the limit of an allocated workload after this observation."""
    stored, seen = _stored(old), Limit(one.duration_s, one.grace_s, one.is_limited)
    # A group without pods says nothing.
    is_silent = one.result is not None or (one.is_gathered and not one.pods)
    return stored if is_silent else limit_now(stored, seen, old["elapsed_s"])


async def follow_ends(
    tx: Transaction,
    seen: Sequence[WorkloadSeen],
    stored: Mapping[str, Mapping[str, Any]],
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
        if stored[one.uid]["is_allocated"] and _moves(one, stored[one.uid], before.get(one.uid))
    }
    if not moved:
        return
    rows = [
        {"uid": uid, "held_s": limit.held_s, "ends_at": one.ends_at_s, "is_sweep": one.is_sweep}
        for uid, (one, limit) in moved.items()
    ]
    changed = await tx.fetch_dicts(_FOLLOW, rows=orjson.dumps(rows).decode(), slack_s=SLACK_S)
    notices = []
    for row in changed:
        was, now = _stored(stored[row["uid"]]), moved[row["uid"]][1]
        is_later = row["until"] is None or (row["before"] or 0) < row["until"]
        notices.append(
            Notice(
                row["uid"],
                END_MOVED,
                _describe(was, now, row["until"]),
                f"{END_MOVED}/{row['until']}",
                is_warning=is_later and row["before"] is not None,
            )
        )
    await leave_notices(tx, notices)


def _moves(one: WorkloadSeen, old: Mapping[str, Any], last: WorkloadSeen | None) -> bool:
    """Return whether the planned end may be another one than before."""
    was, now = _stored(old), next_limit(one, old)
    if now.duration_s is None or now.duration_s != was.duration_s:
        return now.duration_s != was.duration_s
    ends = (one.ends_at_s, None if last is None else last.ends_at_s)
    is_late = any(is_beyond(now, old["allocated_at_s"], end) for end in ends)
    return now.grace_s != was.grace_s or (is_late and not one.is_sweep)


def _stored(old: Mapping[str, Any]) -> Limit:
    return Limit(old["duration_s"], old["grace_s"], old["is_limited"])


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


# A damaged spec must not fail the statement.
QUEUE_MOST_S = """
CASE WHEN jsonb_typeof(q.spec #> '{limits,perJob,durationSeconds}') = 'number'
     THEN (q.spec #>> '{limits,perJob,durationSeconds}')::numeric::bigint END
"""

# Until when its queue accepted a job: its limit, at most that of the queue, and its grace. A sweep
# has none, because its pods have ends of their own.
GRANTED_UNTIL = f"""
CASE WHEN NOT f.is_sweep THEN a.starts_at + least(f.duration_s, {QUEUE_MOST_S}) + f.grace_s END
"""

_OVERRUNS = f"""
SELECT f.uid, f.jobid, f.queue, f.duration_s, f.grace_s, f.is_suspendable, f.made_by, a.starts_at,
       f.is_deleting OR f.result IS NOT NULL OR f.vacate_by IS NOT NULL AS is_ending,
       EXISTS (SELECT FROM history h WHERE h.uid = f.uid AND h.event = '{OVERRUN}'
               AND h.at >= f.allocated_at) AS is_told
FROM allocations a JOIN fluxjobs f USING (uid) LEFT JOIN fluxqueues q ON q.name = f.queue
WHERE a.is_live AND {GRANTED_UNTIL} < :now
ORDER BY f.uid FOR UPDATE OF f
"""  # noqa: S608 constants

_ACTIONS = {
    OverrunAction.REQUEUE: "UPDATE fluxjobs SET vacate_by = :by, reason = :reason,"
    " release_at = now(), reconcile_at = now() WHERE uid = :uid",
    OverrunAction.CANCEL: "UPDATE fluxjobs SET cancel_by = :by, is_deleting = true,"
    " reason = :reason, release_at = now() WHERE uid = :uid",
}
_WORDS = {
    OverrunAction.REPORT: "reservations behind it move",
    OverrunAction.REQUEUE: "it goes back to the queue as its pods end",
    OverrunAction.CANCEL: "it is deleted",
}


async def end_overruns(tx: Transaction, rules: Mapping[str, QueueRules], now: int) -> int:
    """Carry out what follows for jobs that hold nodes past their limit. Return their number.

    Parameters
    ----------
    tx : under the matcher's term.
    rules : of all queues.
    now : epoch seconds.
    """
    notices = []
    for row in await tx.fetch_dicts(_OVERRUNS, now=now):
        queue = rules.get(row["queue"])
        most_s = None if queue is None else queue.per_job.duration_s
        ends_at = granted_end(Limit(row["duration_s"], row["grace_s"]), row["starts_at"], most_s)
        action = (
            None
            if ends_at is None
            else judge_overrun(
                OverrunRules() if queue is None else queue.overrun,
                ends_at,
                now,
                can_requeue=row["is_suspendable"],
                can_cancel=row["made_by"] is None,
            )
        )
        is_over = action is OverrunAction.REPORT or row["is_ending"]
        if action is None or ends_at is None or (is_over and row["is_told"]):
            continue
        limit = f"limit and grace ended {to_rfc3339(ends_at)}"
        reason = f"runs past its limit: its {limit}; {_WORDS[action]}"
        if not is_over:
            by = (
                OVERRAN if action is OverrunAction.REQUEUE else f"queue {row['queue']}: its {limit}"
            )
            await tx.execute(_ACTIONS[action], uid=row["uid"], by=by, reason=reason)
        notices.append(Notice(row["uid"], OVERRUN, reason, f"{OVERRUN}/{ends_at}", is_warning=True))
    await leave_notices(tx, notices)
    return len(notices)

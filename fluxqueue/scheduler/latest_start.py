"""What a blocked job can rely on: the latest start for which its nodes are kept.

``cycle`` calls it for each reservation. docs/admin/policies.md states the rule for administrators.
Every later job may use the nodes only if it is planned to end before the latest start.

- If all that the job waits for has an enforced limit, its latest start is a promise. It rests on
  the limits, while its nodes are kept from the planned start on.
- Otherwise the planned start is only expected. Later jobs may use the nodes for a slack after the
  last planned end that no limit enforces, once. An overrun moves the latest start, and so do jobs
  of a higher priority. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.tell.room import is_open, rows_in_use
from fluxqueue.prediction.durations import planned_end, promised_start

WHOLE_TRIES = 4
"""How often a start for all the time of a job is searched, as limits of others put it off."""


@dataclass(frozen=True, slots=True)
class StartSlack:
    """How much later than planned a job may start because of later jobs, in seconds.

    ``expected_s`` counts where no limit ends what it waits for, and ``promised_s`` where limits do.
    ``longest_s`` is how long the job itself may run, if its run time is learned. Otherwise it is 0,
    and the job may run as long as it is planned.
    """

    expected_s: int
    promised_s: int = 0
    longest_s: int = 0


def latest_start(
    ledger: ShareLedger,
    planned: Placement,
    now: int,
    *,
    slack: StartSlack,
    ahead: Iterable[Placement] = (),
    former: Placement | None = None,
    replan: Callable[[int], Placement | None] = lambda _: None,
    replan_whole: Callable[[int], Placement | None] = lambda _: None,
) -> Placement:
    """Return ``planned`` as it is reserved: from its latest start on.

    Parameters
    ----------
    planned : The earliest start that the plan allows.
    slack : How much later the job may start because of later jobs.
    ahead : Reservations that are not firm, or have an end that is not.
    former : What the last cycle reserved for the same request.
    replan : Finds the earliest start at or after a time. Without one, ``planned`` is reserved even
        if others have its nodes by its latest start.
    replan_whole : The same for all the time that the job may run.
    """
    awaited = _awaited(ledger, planned, planned.starts_at)
    end = awaited.last_unfirm_end
    if end is None and not any(_waits_for(planned, one) for one in ahead):
        found = promise(ledger, planned, awaited, slack)
        if found is planned or is_open(ledger, found, now):
            return found
        return _promise_whole(ledger, found, replan_whole) or replace(planned, is_firm=False)
    if slack.longest_s and former is not None and _is_due(former, planned):
        return replace(planned, is_firm=False, kept_from=planned.starts_at)
    latest = max(planned.starts_at, (end or 0) + slack.expected_s)
    if former is not None and not former.is_firm:
        latest = max(planned.starts_at, min(latest, former.starts_at))
    moved_s = latest - planned.starts_at
    found = replace(planned, starts_at=latest, until=planned.until + moved_s, is_firm=False)
    if not (moved_s and ledger.plan.placements) or is_open(ledger, found, now):
        return found
    # Another reservation has the nodes by then. Its job may start as early as this one is planned,
    # so a start between its planned and its latest one is nothing to rely on.
    if former is not None and not former.is_firm and is_open(ledger, former, now):
        return former
    later = replan(latest)
    if later is None:
        return replace(planned, is_firm=False)
    return latest_start(
        *(ledger, later, now),
        slack=slack,
        ahead=ahead,
        former=former,
        replan=replan,
        replan_whole=replan_whole,
    )


def _is_due(former: Placement, planned: Placement) -> bool:
    """Return whether plans that were wrong have used up what they may cost the job.

    From then on jobs jump onto its nodes by all their time, and no longer by their typical one. A
    stream of wrong plans could starve it otherwise.
    """
    if former.is_firm:
        return False
    return former.kept_from is not None or planned.starts_at > former.starts_at


def _waits_for(planned: Placement, other: Placement) -> bool:
    if other.until > planned.starts_at:
        return False
    return not {*planned.nodes, *planned.held}.isdisjoint((*other.nodes, *other.held))


@dataclass(frozen=True, slots=True)
class _Awaited:
    """What runs on the nodes of a placement and is planned to end before it starts."""

    ends: tuple[tuple[int, int], ...]
    """Planned end, and when a limit ends it (``FOREVER`` if none does)."""

    @property
    def last_unfirm_end(self) -> int | None:
        """Return the last planned end that no limit enforces, or None."""
        return max((end for end, limit in self.ends if limit == FOREVER), default=None)


def _awaited(ledger: ShareLedger, planned: Placement, until: int) -> _Awaited:
    rows = rows_in_use(ledger, planned)
    found = []
    for live in [ledger.live[key] for key in {key for row in rows for key in ledger.keys_on(row)}]:
        for _, hold in live.holds:
            end = planned_end(hold.until, ledger.time, hold.limit)
            is_there = len(live.holds) == 1 or np.isin(hold.rows, rows).any()
            if end <= until and is_there:
                found.append((end, hold.limit))
    return _Awaited(tuple(found))


def promise(
    ledger: ShareLedger, planned: Placement, awaited: _Awaited, slack: StartSlack
) -> Placement:
    """Return ``planned`` with a start that limits guarantee, whatever jumps by its plan."""
    ahead = (one.until for one in ledger.plan.placements if _waits_for(planned, one))
    bounds = (*(limit for _, limit in awaited.ends), *ahead)
    start = promised_start(planned.starts_at, bounds, slack.promised_s)
    if start == planned.starts_at:
        return planned
    longest_s = slack.longest_s or planned.until - planned.starts_at
    return replace(planned, starts_at=start, until=start + longest_s, kept_from=planned.starts_at)


def _promise_whole(
    ledger: ShareLedger, found: Placement, replan: Callable[[int], Placement | None]
) -> Placement | None:
    """Return a promise that keeps its nodes for all the time that the job may run, or None.

    Of use where another job has the nodes of ``found`` within that time.
    """
    at = found.starts_at
    for _ in range(WHOLE_TRIES):
        whole = replan(at)
        if whole is None:
            return None
        limits = [limit for _, limit in _awaited(ledger, whole, whole.starts_at).ends]
        at = max(limits, default=0)
        if at <= whole.starts_at:
            return whole
        if at == FOREVER:
            return None
    return None


def renewal_turn(promise: Placement) -> int:
    """Return the place of a promise among those to renew. Ties stay in the order of the queue.

    Of the starts that are planned earlier than promised, the first promised comes first: another
    would be planned onto its nodes now, and keep them beyond its promise.
    """
    return 0 if promise.kept_from is None else promise.starts_at


def renew(ledger: ShareLedger, former: Placement, now: int) -> Placement | None:
    """Return a promise as it can be kept now on the same nodes, or None.

    Limits must end what runs there before the promised start, as far as it has any. The nodes must
    be free from the last planned end before that start, of what runs there and of the jobs ahead.
    """
    awaited = _awaited(ledger, former, former.starts_at)
    if any(former.starts_at < limit < FOREVER for _, limit in awaited.ends):
        return None
    if former.kept_from is None:
        return former if is_open(ledger, former, now) else None
    ends = [end for end, _ in awaited.ends]
    ends += [one.until for one in ledger.plan.placements if _waits_for(former, one)]
    kept_from = min(former.starts_at, max(ends, default=now))
    found = replace(former, kept_from=max(now, kept_from))
    return found if is_open(ledger, found, now) else None

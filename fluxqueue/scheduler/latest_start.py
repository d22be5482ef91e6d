"""What a blocked job can rely on: the latest start for which its nodes are kept.

``cycle`` calls it for each reservation. docs/admin/policies.md states the rule for administrators.
Every later job may use the nodes only if it is planned to end before the latest start.

- If all that the job waits for has an enforced limit, its latest start is its planned start. This
  is a promise.
- Otherwise the planned start is only expected. Later jobs may use the nodes for a slack after the
  last planned end that no limit enforces, once. An overrun moves the latest start, and so do jobs
  of a higher priority. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from fluxqueue.graph.ledger.placement import Placement, planned_end
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.tell.room import is_open, rows_in_use


def latest_start(
    ledger: ShareLedger,
    planned: Placement,
    now: int,
    *,
    slack_s: int,
    ahead: Iterable[Placement] = (),
    former: Placement | None = None,
    replan: Callable[[int], Placement | None] = lambda _: None,
) -> Placement:
    """Return ``planned`` as it is reserved: from its latest start on.

    Parameters
    ----------
    planned : The earliest start that the plan allows.
    slack_s : How much later than by plan the job may start because of later jobs, in seconds.
    ahead : Reservations that are not firm, or have an end that is not.
    former : What the last cycle reserved for the same request.
    replan : Finds the earliest start at or after a time. Without one, ``planned`` is reserved even
        if others have its nodes by its latest start.
    """
    end = _last_unfirm_end(ledger, planned)
    if end is None and not any(_waits_for(planned, one) for one in ahead):
        return planned
    latest = max(planned.starts_at, (end or 0) + slack_s)
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
        *(ledger, later, now), slack_s=slack_s, ahead=ahead, former=former, replan=replan
    )


def _waits_for(planned: Placement, other: Placement) -> bool:
    if other.until > planned.starts_at:
        return False
    return not {*planned.nodes, *planned.held}.isdisjoint((*other.nodes, *other.held))


def _last_unfirm_end(ledger: ShareLedger, planned: Placement) -> int | None:
    """Return the last planned end without a limit that ``planned`` waits for, or None."""
    rows = rows_in_use(ledger, planned)
    keys = {key for row in rows for key in ledger.keys_on(row)}
    found = None
    for live in (ledger.live[key] for key in keys):
        if live.is_firm:
            continue
        for _, hold in live.holds:
            end = planned_end(hold.until, ledger.time)
            if end <= planned.starts_at and np.isin(hold.rows, rows).any():
                found = max(found or 0, end)
    return found

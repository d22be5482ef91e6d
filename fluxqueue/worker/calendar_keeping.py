"""The status of FluxReservations, by the holder of the matcher's role.

At intervals it says when each one closes its nodes next, which nodes these are, and which jobs may
still be there. It begins and ends none: the cycle plans around all occurrences.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fluxqueue.db.store.rule_rows import RuleRowKind, StoredRule, read_stored_rules
from fluxqueue.db.store.sharing import read_names
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.kube.resources import FLUX_RESERVATIONS
from fluxqueue.scheduler.calendar import ReservationFigures
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.keeping import ObjectStatuses, Status, conditions, is_valid, keep
from fluxqueue.worker.schedule import CycleRunner

LOOP = "reservations"
"""The name of this loop where the times of loops are reported."""

STATUS_S, IDLE_S = 2.0, 5.0
"""The intervals in seconds between two turns: with reservations, and while there is none."""

NAMED_MAX = 10
"""The most jobs that a status names."""

NODE_LIST_MAX = 1000
"""The longest list of nodes in a status. A longer one is left out."""


class CalendarKeeper:
    """Keep the status of all reservations up to date while the term lasts."""

    def __init__(self, context: WorkerContext, matcher: CycleRunner) -> None:
        self._context, self._matcher = context, matcher
        self._statuses = ObjectStatuses(context.client, FLUX_RESERVATIONS, "reservations")

    async def run(self) -> None:
        """Run until cancelled."""
        await keep(self._context, LOOP, self.turn, self._rest)

    async def _rest(self) -> None:
        await self._context.clock.sleep(STATUS_S if self._statuses.names else IDLE_S)

    async def turn(self) -> int:
        """Write the status of reservations that have changed. Return the number of writes."""
        async with self._context.database.begin() as tx:
            stored = await read_stored_rules(tx, RuleRowKind.RESERVATION)
        self._statuses.forget_others({one.name for one in stored}, {one.uid for one in stored})
        if not stored:
            return 0
        figures = await self._matcher.reservation_figures()
        if figures is None:
            return 0
        shown = {key for one in figures.values() for key in one.jobs[:NAMED_MAX]}
        names = await read_names(self._context.database, shown)
        now_s, written = self._context.clock.now_s(), 0
        for one in stored:
            of = figures.get(one.name, ReservationFigures())
            render = partial(render_reservation_status, one, of, names, at_s=now_s)
            before = await self._statuses.write(one.name, one.uid, render, _as_merge)
            written += before is not None
        return written


def _as_merge(before: Status, status: Status) -> Status:
    """Return the patch to a status. A merge keeps what is left out."""
    return {**{key: None for key in before if key not in status}, **status}


def render_reservation_status(
    stored: StoredRule,
    figures: ReservationFigures,
    names: Mapping[str, str],
    before: Status,
    *,
    at_s: int,
) -> dict[str, Any]:
    """Return a whole status. ``names``: jobs as namespace/name by the UIDs of their workloads."""
    fault, coming = stored.fault or figures.fault, figures.next
    nodes = compress(figures.nodes)
    status: dict[str, Any] = {
        "nodes": len(figures.nodes),
        "jobs": len(figures.jobs),
        "jobNames": [names[key] for key in figures.jobs[:NAMED_MAX] if key in names],
        "observedGeneration": stored.generation,
    }
    if len(nodes) <= NODE_LIST_MAX:
        status["nodeList"] = nodes
    if coming is not None:
        status["start"], status["end"] = to_rfc3339(coming.starts_at), to_rfc3339(coming.until)
    has_begun = coming is not None and coming.starts_at <= at_s
    wanted = [
        is_valid(fault),
        _planned(figures),
        ("Active", has_begun, "HasBegun" if has_begun else "NotNow", ""),
        _empty(figures, is_active=has_begun),
    ]
    return {**status, "conditions": conditions(before, wanted, at_s)}


def _planned(figures: ReservationFigures) -> tuple[str, bool, str, str]:
    if figures.next is None:
        return "Planned", False, "Over", "it has no further occurrence"
    if not figures.nodes:
        return "Planned", False, "NoNodes", "no node of the cluster is among its nodes"
    return "Planned", True, "HasNodes", ""


def _empty(figures: ReservationFigures, *, is_active: bool) -> tuple[str, bool, str, str]:
    """Return whether no job is on its nodes once it has begun."""
    if not is_active:
        return "Empty", False, "NotNow", ""
    count = len(figures.jobs)
    words = "" if not count else f"{count} jobs are there that began before it was made, or overrun"
    return "Empty", not count, "HasJobs" if count else "NoJobs", words

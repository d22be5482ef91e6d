"""The rows alone: view ``drift``, reservations (invariant 9), effects that lag. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fluxqueue.checking.findings import Finding, Severity
from fluxqueue.checking.nodes import readable_nodes
from fluxqueue.checking.view import CheckView
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.scheduler.promises import START_TOLERANCE_S


def loops(view: CheckView) -> Iterator[Finding]:
    """Each loop of controller and worker has succeeded lately, or had nothing to do."""
    for row in view.rows.loops:
        if row.silent_s <= row.patience_s:
            continue
        detail = f"has not succeeded for {row.silent_s // 60} minutes"
        if row.error:
            detail = f"{detail}; last error: {row.error}"
        hint = "look at the log of the process that runs it (docs/admin/runbook.md, A loop is late)"
        yield Finding("loop is late", f"loop {row.loop}", f"{detail}; {hint}", may_pass=False)


def quarantined(view: CheckView) -> Iterator[Finding]:
    """Nothing is set aside: every object can be read, and everything pending can be carried out."""
    for row in view.rows.quarantined_objects:
        name = "/".join(one for one in (row.namespace, row.name) if one)
        yield Finding("object set aside", f"{row.kind} {name}", row.reason, Severity.WARNING)
    for one in view.rows.fluxjobs:
        if one.trouble and not FluxJobState(one.state).is_final:
            yield Finding("input not usable", one.subject, one.trouble, Severity.WARNING)


def drift(view: CheckView) -> Iterator[Finding]:
    """Report what SQL finds by itself. All rows are of one instant, so it does not pass."""
    for row in view.rows.drift:
        yield Finding(row.invariant, row.subject, row.detail, may_pass=False)


def reservations(view: CheckView) -> Iterator[Finding]:
    """Report reservations without a waiting job, and planned starts that have passed."""
    for row in view.rows.fluxjobs:
        if (row.state == FluxJobState.RESERVED) != row.has_reservation:
            has = "has" if row.has_reservation else "has no"
            detail = f"job {row.jobid} is {row.state} and {has} planned start"
            yield Finding("state and reservation differ", row.subject, detail, may_pass=False)
    is_excused = _has_overrun(view) or _has_lost_node(view)
    for planned in view.rows.reservations:
        late_s = view.rows.now_s - planned.starts_at_s
        row_ = view.row_of.get(planned.uid)
        if late_s > START_TOLERANCE_S and not is_excused and row_ is not None:
            detail = f"job {row_.jobid} should have started {late_s} s ago and still waits"
            yield Finding("reservation not kept", row_.subject, detail)


def promises(view: CheckView) -> Iterator[Finding]:
    """Report first promised starts that are late without an excuse.

    While the job still waits, the excuse may follow. If it has started late without one, the
    finding stays.
    """
    is_excused = _has_overrun(view) or _has_lost_node(view)
    for promise in view.rows.promises:
        row = view.row_of.get(promise.uid)
        if row is None or promise.excuse is not None:
            continue
        has_started = promise.allocated_at_s is not None
        late_s = (promise.allocated_at_s or view.rows.now_s) - promise.starts_at_s
        if late_s <= START_TOLERANCE_S or (is_excused and not has_started):
            continue
        what = "started" if has_started else "still waits"
        detail = f"job {row.jobid} {what} {late_s} s after its first promised start"
        yield Finding("promise not kept", row.subject, detail, may_pass=not has_started)


def _has_overrun(view: CheckView) -> bool:
    ends = (allocation.until_s for allocation in view.rows.allocations)
    return any(until_s is not None and until_s < view.rows.now_s for until_s in ends)


def _has_lost_node(view: CheckView) -> bool:
    facts = readable_nodes(view)
    known = {line.node for line in view.rows.usage}
    is_missing = bool(known - {fact.name for fact in facts})
    return is_missing or not all(fact.is_up and fact.is_schedulable for fact in facts)


def late_effects(view: CheckView) -> Iterator[Finding]:
    """Report effects that are overdue or keep failing, as warnings: nothing is broken yet."""
    for effect in view.rows.late:
        row = view.row_of.get(effect.uid)
        subject = row.subject if row else f"workload {effect.uid}"
        detail = f"overdue by {effect.overdue_s} s after {effect.attempts} attempts"
        if effect.last_error:
            detail += f": {effect.last_error}"
        yield Finding(f"effect {effect.task} lags", subject, detail, Severity.WARNING)

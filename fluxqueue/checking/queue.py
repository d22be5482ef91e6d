"""The rows alone: view ``drift``, reservations (invariant 9), effects that lag. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fluxqueue.checking.both_sides import CheckView
from fluxqueue.checking.findings import Finding, Severity
from fluxqueue.checking.node_checks import readable_nodes
from fluxqueue.db.reading.snapshot import AllocationRow, FluxJobRow, PromiseRow, StartFiguresRow
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.scheduler.promises import OVERRAN, START_TOLERANCE_S

OVERRUN_S = 30
"""Seconds past limit and grace after which a job counts as an overrun."""

JUDGED_FROM = 100
"""Fewer true starts in a week say nothing of expected ones."""

HALF_MIN, MOST_MIN = 0.35, 0.8
"""Below these, starts come too late. Expected starts widen by themselves, so this is rare."""


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
        if row is not None and promise.allocated_at_s is None:
            yield from _moved(view, row, promise)
        if row is None or promise.excuse is not None:
            continue
        has_started = promise.allocated_at_s is not None
        late_s = (promise.allocated_at_s or view.rows.now_s) - promise.starts_at_s
        if late_s <= START_TOLERANCE_S or (is_excused and not has_started):
            continue
        what = "started" if has_started else "still waits"
        detail = f"job {row.jobid} {what} {late_s} s after its first promised start"
        yield Finding("promise not kept", row.subject, detail, may_pass=not has_started)


def expected_starts(found: StartFiguresRow) -> Iterator[Finding]:
    """Report how good the expected starts of the last week were, with a warning if they are bad.

    They are no invariant: what disturbs a cluster makes them bad, and breaks nothing.
    """
    if found.started < JUDGED_FROM:
        return
    half, most = found.by_expected / found.started, found.by_latest / found.started
    detail = (
        f"of {found.started} jobs, {half:.0%} have started by their expected start (50% is right),"
        f" and {most:.0%} by the later time (90% or more is right)"
    )
    if found.of_plan is not None:
        detail = f"{detail}; the median run took {found.of_plan:.0%} of its plan"
    is_bad = half < HALF_MIN or most < MOST_MIN
    severity = Severity.WARNING if is_bad else Severity.FIGURE
    yield Finding("expected starts", "the last week", detail, severity, may_pass=False)


def _moved(view: CheckView, row: FluxJobRow, promise: PromiseRow) -> Iterator[Finding]:
    """Report a promise that jobs past their limit keep moving."""
    late_s = view.rows.now_s - promise.starts_at_s
    if (promise.excuse or "").startswith(OVERRAN) and late_s > OVERRUN_S and _overrun(view):
        detail = (
            f"job {row.jobid} waits {late_s} s after its first promised start: {promise.excuse}; "
            "cancel or requeue what overruns, or set spec.overrun of its queue"
        )
        yield Finding("promise moved by an overrun", row.subject, detail)


def overruns(view: CheckView) -> Iterator[Finding]:
    """Report jobs past their limit and grace, and limits beyond those of the queue."""
    for allocation in _overrun(view):
        row = view.row_of.get(allocation.uid)
        if row is not None and allocation.granted_s is not None:
            over_s = view.rows.now_s - allocation.granted_s
            detail = f"job {row.jobid} holds its nodes {over_s} s past its limit and grace"
            yield Finding("overrun", row.subject, detail, Severity.WARNING)
    for allocation in view.rows.allocations:
        row, until_s = view.row_of.get(allocation.uid), allocation.until_s
        if row is None or allocation.most_s is None or allocation.granted_s is None:
            continue
        if until_s is None or until_s > allocation.granted_s + OVERRUN_S:
            detail = (
                f"job {row.jobid} may run on after the {allocation.most_s} s of "
                f"spec.limits.perJob.durationSeconds; spec.overrun of its queue says what follows"
            )
            yield Finding("limit beyond its queue's", row.subject, detail, Severity.WARNING)


def _overrun(view: CheckView) -> list[AllocationRow]:
    now_s = view.rows.now_s
    return [
        one
        for one in view.rows.allocations
        if one.granted_s is not None and one.granted_s + OVERRUN_S < now_s
    ]


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

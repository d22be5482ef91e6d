"""Workloads, their rows, their FluxJobs and what they hold: invariants 2, 4, 6, 7. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fluxqueue.checking.both_sides import CheckView, is_gated, subject_of, uid_of
from fluxqueue.checking.findings import Finding
from fluxqueue.db.reading.snapshot import AllocationRow, FluxJobRow
from fluxqueue.fluxjob.pod_facts import GONE, WorkloadProgress
from fluxqueue.fluxjob.states import PROVISIONING, FluxJobState
from fluxqueue.fluxjob.times import from_rfc3339
from fluxqueue.workload.index_placement import VALID_S
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.labels import NEVER_MANAGED
from fluxqueue.workload.managed import is_managed, is_taken_in
from fluxqueue.workload.objects import Object

RELEASE_S = 30
"""Seconds after which an allocated Job that is still suspended counts as not released."""
PLACING_S = VALID_S + 5
"""Seconds after an allocation in which a placed Job may have slots that it does not need."""


def rows_of_workloads(view: CheckView) -> Iterator[Finding]:
    """Report managed Jobs and bare Pods that are older than one resync and have no row."""
    for uid, workload in view.workloads.items():
        meta = workload["metadata"]
        if uid in view.row_of or not is_taken_in(workload) or meta["namespace"] in NEVER_MANAGED:
            continue
        age_s = view.now_s - from_rfc3339(meta["creationTimestamp"])
        if age_s >= view.unseen_s:
            detail = (
                f"created {age_s} s ago, but unknown to the queue. The next resync queues it, or an"
                " Event on it gives the reason"
            )
            yield Finding("managed workload without a row", _name(workload), detail)


def stranded(view: CheckView) -> Iterator[Finding]:
    """Report held workloads with an ended row, because nothing would ever start them."""
    for uid, workload in view.workloads.items():
        row = view.row_of.get(uid)
        if row is None or not FluxJobState(row.state).is_final or row.is_cancelled:
            continue
        kind = kind_of(workload)
        is_waiting = is_managed(workload) and kind.progress(workload).result is None
        if not is_waiting or (kind.can_be_suspended and not kind.is_suspended(workload)):
            continue
        detail = (
            f"job {row.jobid} is {row.state}, and its {row.workload_kind} waits for it; the next"
            " resync queues it anew (restart the controller to have one now)"
        )
        yield Finding("waiting workload whose row has ended", row.subject, detail)


def workloads_of_rows(view: CheckView) -> Iterator[Finding]:
    """Report unfinished rows that have neither an object nor pods that still terminate."""
    for row in view.rows.fluxjobs:
        is_over = FluxJobState(row.state).is_final
        if is_over or row.uid in view.workloads or view.live_pods(row.uid):
            continue
        yield Finding("row of a workload that is gone", row.subject, f"job {row.jobid} {row.state}")


def allocations(view: CheckView) -> Iterator[Finding]:
    """Report allocations and slots that outlive the need of their workload."""
    for allocation in view.rows.allocations:
        row = view.row_of.get(allocation.uid)
        live = view.live_pods(allocation.uid)
        subject = row.subject if row else f"workload {allocation.uid}"
        fact = _fact(view, allocation.uid)
        if fact.is_over and not live:
            why = "is gone" if allocation.uid not in view.workloads else "has ended"
            detail = f"allocation {allocation.id}: the workload {why} and no pod is left"
            yield Finding("allocation that is not needed", subject, detail)
        else:
            yield from _spare_slots(view, allocation, subject, fact, live)


def _spare_slots(
    view: CheckView,
    allocation: AllocationRow,
    subject: str,
    fact: WorkloadProgress,
    live: list[Object],
) -> Iterator[Finding]:
    held = len(view.slots_of.get(allocation.uid, ()))
    useful = max(0 if fact.is_over else fact.wanted, len(live))
    if held > useful and not _is_placing(view, allocation.uid):
        detail = f"allocation {allocation.id} holds {held} slots of which {useful} can be used"
        yield Finding("slots that are not needed", subject, detail)


def _is_placing(view: CheckView, uid: str) -> bool:
    """Return whether pods may still come with the nodes that the template names: slots are kept."""
    row, workload = view.row_of.get(uid), view.workloads.get(uid)
    if row is None or workload is None or row.allocated_at_s is None:
        return False
    is_placed = kind_of(workload).is_placed(workload)
    return is_placed and view.rows.now_s - row.allocated_at_s < PLACING_S


def releases(view: CheckView) -> Iterator[Finding]:
    """Report workloads that have an allocation and are still suspended or gated."""
    for row in view.rows.fluxjobs:
        workload = view.workloads.get(row.uid)
        if row.state != FluxJobState.ALLOCATED or workload is None or row.allocated_at_s is None:
            continue
        if row.is_vacating:
            continue  # it is rightly suspended until its pods are gone
        waited_s = view.rows.now_s - row.allocated_at_s
        if waited_s < RELEASE_S:
            continue
        if kind_of(workload).is_suspended(workload):
            detail = f"job {row.jobid} was allocated {waited_s} s ago and its Job is suspended"
            yield Finding("allocated workload not released", row.subject, detail)
        elif any(uid_of(p) in view.slot_of_pod and is_gated(p) for p in view.live_pods(row.uid)):
            detail = f"job {row.jobid} was allocated {waited_s} s ago and a pod is still gated"
            yield Finding("allocated workload not released", row.subject, detail)


def fluxjobs(view: CheckView) -> Iterator[Finding]:
    """Report workloads without exactly one FluxJob, and FluxJobs that differ from their row."""
    by_workload: dict[str, list[Object]] = defaultdict(list)
    for fluxjob in view.cluster.fluxjobs:
        by_workload[fluxjob["spec"]["workload"]["uid"]].append(fluxjob)
    for uid, found in by_workload.items():
        names = ", ".join(sorted(one["metadata"]["name"] for one in found))
        if uid not in view.row_of:
            yield Finding("FluxJob without a row", subject_of(found[0], "FluxJob"), f"UID {uid}")
        elif len(found) > 1:
            yield Finding("more than one FluxJob", view.row_of[uid].subject, names)
        else:
            yield from _status(view.row_of[uid], found[0])
    for row in view.rows.fluxjobs:
        workload = view.workloads.get(row.uid)
        if workload is None or workload["metadata"].get("deletionTimestamp"):
            continue  # its FluxJob goes with it, and may go first
        if row.uid not in by_workload:
            yield Finding("row without a FluxJob", row.subject, f"job {row.jobid} {row.state}")


def _status(row: FluxJobRow, fluxjob: Object) -> Iterator[Finding]:
    status = fluxjob.get("status") or {}
    shown = (status.get("state"), status.get("jobid"))
    # The word of a job that waits for nodes is another than that of its row.
    state = FluxJobState.PENDING.value if shown[0] == PROVISIONING else shown[0]
    if (state, shown[1]) != (row.state, row.jobid):
        detail = (
            f"shows {shown[0]} as job {shown[1]}, but the row is {row.state} as job {row.jobid}"
        )
        yield Finding("FluxJob disagrees with its row", subject_of(fluxjob, "FluxJob"), detail)


def _fact(view: CheckView, uid: str) -> WorkloadProgress:
    workload = view.workloads.get(uid)
    return GONE if workload is None else kind_of(workload).progress(workload)


def _name(workload: Object) -> str:
    return subject_of(workload, kind_of(workload).name)

"""Each comparison of the check: silent in health, and one finding for each thing that is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fluxqueue.checking.check import compare
from fluxqueue.checking.findings import Severity
from fluxqueue.checking.queue import expected_starts
from fluxqueue.db.reading.snapshot import (
    AllocationRow,
    DriftRow,
    LateEffect,
    LoopRow,
    PromiseRow,
    QuarantinedRow,
    ReservationRow,
    StartFiguresRow,
    UsageRow,
)
from tests.support import views
from tests.support.views import NOW_S, Scenery, healthy

Break = Callable[[Scenery], None]


def found(break_it: Break, *, unseen_s: int = 300) -> set[str]:
    """The invariants that a broken scenery violates."""
    scenery = healthy()
    break_it(scenery)
    return {finding.invariant for finding in compare(scenery.view(unseen_s=unseen_s))}


def test_health_has_no_findings() -> None:
    """The scenery that all other tests break is in order."""
    assert compare(healthy().view()) == []


def _forget_row(scenery: Scenery) -> None:
    scenery.rows["fluxjobs"], scenery.fluxjobs = [], []
    scenery.rows["allocations"], scenery.rows["slots"] = [], []
    scenery.rows["usage"][0] = UsageRow("node-1", "cpu", 16000, 0, 16000, 0)
    scenery.rows["usage"][1] = UsageRow("node-1", "pods", 110, 0, 2, 108)


def test_a_young_workload_may_be_unknown_but_its_pods_may_not_run() -> None:
    """Within one resync the row may be missing. An ungated pod never may be without a slot."""
    assert found(_forget_row) == {"ungated pod without a slot"}


def test_an_old_workload_must_have_a_row() -> None:
    """Created ten seconds ago, with five allowed."""
    assert "managed workload without a row" in found(_forget_row, unseen_s=5)


def _end_job(scenery: Scenery) -> None:
    scenery.jobs[0]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    for pod in scenery.pods[:2]:
        pod["status"]["phase"] = "Succeeded"


def test_a_finished_workload_holds_nothing() -> None:
    """The Job is complete and its pods have ended, and the slots are still held."""
    assert found(_end_job) == {"allocation that is not needed", "slot held by a pod that is gone"}


def test_a_finished_workload_keeps_the_slots_of_pods_that_still_run() -> None:
    """Releasing before the last pod has ended would give its cores away twice."""

    def end_but_for_one(scenery: Scenery) -> None:
        scenery.jobs[0]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}

    assert found(end_but_for_one) == set()


def _delete_all(scenery: Scenery) -> None:
    scenery.jobs, scenery.pods[:2], scenery.fluxjobs = [], [], []


def test_an_allocation_goes_with_its_workload() -> None:
    """Job and pods are gone. Row, allocation and slots are still there."""
    assert found(_delete_all) == {
        "row of a workload that is gone",
        "allocation that is not needed",
        "slot held by a pod that is gone",
    }


def test_a_slot_beyond_what_the_job_can_use_goes_back() -> None:
    """One completion is left, and two slots are kept for it."""

    def succeed_once(scenery: Scenery) -> None:
        scenery.jobs[0]["status"] = {"succeeded": 1}
        scenery.pods[0]["status"]["phase"] = "Succeeded"
        scenery.rows["slots"][0] = views.slot(0, None)

    assert found(succeed_once) == {"slots that are not needed"}


def test_a_pod_runs_where_its_slot_is() -> None:
    """The slot is on node-2. The pod was bound to node-1."""

    def move_slot(scenery: Scenery) -> None:
        scenery.rows["slots"][0] = views.slot(0, "uid-pi-a", node="node-2")
        usage = scenery.rows["usage"]
        usage[0] = UsageRow("node-1", "cpu", 16000, 8000, 8000, 0)
        usage[1] = UsageRow("node-1", "pods", 110, 1, 1, 108)
        usage[2] = UsageRow("node-2", "cpu", 16000, 8000, 2000, 6000)
        usage[3] = UsageRow("node-2", "pods", 110, 1, 1, 108)

    assert found(move_slot) == {"pod on another node than its slot"}


def test_a_pod_needs_no_more_than_its_slot_has() -> None:
    """Nine cores in a slot of eight overfill the node, or cannot be bound to it."""

    def grow(scenery: Scenery) -> None:
        requests = scenery.pods[0]["spec"]["containers"][0]["resources"]["requests"]
        requests["cpu"] = "9"
        scenery.rows["usage"][0] = UsageRow("node-1", "cpu", 16000, 16000, 1000, -1000)

    assert found(grow) == {"node over capacity"}

    def grow_before_it_is_bound(scenery: Scenery) -> None:
        pod = scenery.pods[0]
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "9"
        del pod["spec"]["nodeName"]
        pod["status"]["phase"] = "Pending"

    assert "pod larger than its slot" in found(grow_before_it_is_bound)


def test_what_no_slot_covers_counts_as_unmanaged_use() -> None:
    """Rows that say nothing of it would have others placed there."""

    def grow(scenery: Scenery) -> None:
        requests = scenery.pods[0]["spec"]["containers"][0]["resources"]["requests"]
        requests["cpu"] = "9"

    assert "node usage: foreign differs" in found(grow)


def test_a_terminal_pod_needs_no_slot() -> None:
    """A failed pod has given its slot to its replacement."""

    def replace_pod(scenery: Scenery) -> None:
        scenery.pods[0]["status"]["phase"] = "Failed"
        scenery.pods.append(views.running_pod("pi-c"))
        scenery.rows["slots"][0] = views.slot(0, "uid-pi-c")

    assert found(replace_pod) == set()


def test_overfilling_by_others_alone_is_a_warning() -> None:
    """Pods were bound past the scheduler onto a node where none of ours is."""
    scenery = healthy()
    scenery.pods.append(views.foreign_pod("rogue", "node-2", "15"))
    scenery.rows["usage"][2] = UsageRow("node-2", "cpu", 16000, 0, 17000, -1000)
    scenery.rows["usage"][3] = UsageRow("node-2", "pods", 110, 0, 2, 108)
    (finding,) = compare(scenery.view())
    assert (finding.invariant, finding.severity) == ("node over capacity", Severity.WARNING)


@pytest.mark.parametrize(
    ("line", "invariant"),
    [
        (UsageRow("node-2", "cpu", 16000, 0, 0, 16000), "node usage: foreign differs"),
        (UsageRow("node-2", "cpu", 16000, 8000, 2000, 6000), "node usage: allocated differs"),
        (UsageRow("node-2", "cpu", 32000, 0, 2000, 30000), "node usage: capacity differs"),
        (UsageRow("node-2", "cpu", 16000, 0, 2000, 16000), "node usage does not add up"),
    ],
)
def test_node_usage_is_counted_anew(line: UsageRow, invariant: str) -> None:
    """Free, allocated, foreign and capacity are each compared with the cluster's objects."""

    def miscount(scenery: Scenery) -> None:
        scenery.rows["usage"][2] = line

    assert found(miscount) == {invariant}


def test_nodes_of_rows_and_cluster_are_the_same() -> None:
    """A node that the rows do not know, and one that the rows have not forgotten."""

    def swap(scenery: Scenery) -> None:
        scenery.nodes.append(views.node("node-3"))
        scenery.rows["usage"].append(UsageRow("node-4", "cpu", 1, 0, 0, 1))

    assert found(swap) == {"node unknown to the rows", "node that is gone"}


def test_a_fluxjob_says_what_its_row_says() -> None:
    """State and jobid are compared."""

    def lag(scenery: Scenery) -> None:
        scenery.fluxjobs[0]["status"]["state"] = "Pending"

    assert found(lag) == {"FluxJob disagrees with its row"}


def test_fluxjobs_and_rows_are_one_to_one() -> None:
    """A second FluxJob of the same workload, and one of a workload that is not known."""

    def double(scenery: Scenery) -> None:
        scenery.fluxjobs.append(views.fluxjob("pi", "Running", jobid=1))
        scenery.fluxjobs.append(views.fluxjob("stranger", "Running", jobid=2))

    def lose(scenery: Scenery) -> None:
        scenery.fluxjobs = []

    def lose_with_its_owner(scenery: Scenery) -> None:
        lose(scenery)
        scenery.jobs[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert found(double) == {"more than one FluxJob", "FluxJob without a row"}
    assert found(lose) == {"row without a FluxJob"}
    assert "row without a FluxJob" not in found(lose_with_its_owner), "it was collected first"


def test_an_allocated_job_is_released_soon() -> None:
    """A minute after its allocation the Job is still suspended."""

    def forget_release(scenery: Scenery) -> None:
        scenery.jobs[0]["spec"]["suspend"] = True
        scenery.pods = scenery.pods[2:]
        scenery.rows["slots"] = [views.slot(0, None), views.slot(1, None)]
        scenery.rows["fluxjobs"] = [views.fluxjob_row("pi", "Allocated", jobid=1)]
        scenery.fluxjobs = [views.fluxjob("pi", "Allocated", jobid=1)]

    assert found(forget_release) == {"allocated workload not released"}


def _reserve(scenery: Scenery, starts_at_s: int) -> None:
    scenery.rows["fluxjobs"].append(
        views.fluxjob_row("later", "Reserved", jobid=2, has_reservation=True)
    )
    scenery.jobs.append({**scenery.jobs[0], "metadata": {**scenery.jobs[0]["metadata"]}})
    scenery.jobs[1]["metadata"] |= {"name": "later", "uid": "uid-later"}
    scenery.fluxjobs.append(views.fluxjob("later", "Reserved", jobid=2))
    scenery.rows["reservations"] = [ReservationRow("uid-later", starts_at_s)]


def test_a_reservation_is_kept() -> None:
    """Ten seconds past its start and still waiting, with no cause. Before, all is well."""
    assert found(lambda scenery: _reserve(scenery, NOW_S - 10)) == {"reservation not kept"}
    assert found(lambda scenery: _reserve(scenery, NOW_S + 10)) == set()


def test_a_reservation_may_be_late_behind_a_job_that_overran() -> None:
    """The running Job should have ended before."""

    def overrun(scenery: Scenery) -> None:
        _reserve(scenery, NOW_S - 10)
        scenery.rows["allocations"] = [AllocationRow(7, "uid-pi", until_s=NOW_S - 20)]

    assert found(overrun) == set()


def test_a_reserved_state_has_its_planned_start() -> None:
    """State and reservations are written together, so this does not pass by waiting."""
    scenery = healthy()
    _reserve(scenery, NOW_S + 10)
    scenery.rows["reservations"] = []
    scenery.rows["fluxjobs"][1] = replace(scenery.rows["fluxjobs"][1], has_reservation=False)
    (finding,) = compare(scenery.view())
    assert finding.invariant == "state and reservation differ"
    assert not finding.may_pass


def test_drift_is_reported_as_sql_found_it_and_late_effects_as_warnings() -> None:
    """Rows of the view pass through. An effect that lags is not yet a broken invariant."""
    scenery = healthy()
    scenery.rows["drift"] = [DriftRow("node over capacity", "node-1", "cpu: 17 of 16")]
    scenery.rows["late"] = [LateEffect("release", "uid-pi", 9, 0, last_error="409 Conflict")]
    drifted, late = compare(scenery.view())
    assert (drifted.detail, drifted.may_pass) == ("cpu: 17 of 16", False)
    assert late.severity is Severity.WARNING
    assert "Job default/pi" in late.subject
    assert "409 Conflict" in late.detail


def _promise(
    scenery: Scenery, starts_at_s: int, allocated_at_s: int | None, excuse: str | None = None
) -> None:
    scenery.rows["promises"] = [PromiseRow("uid-pi", starts_at_s, allocated_at_s, excuse)]


@pytest.mark.parametrize(
    ("allocated_at_s", "excuse", "expected"),
    [
        (NOW_S - 100, None, set()),
        (NOW_S - 90, None, {"promise not kept"}),
        (NOW_S - 90, "overrun of job 3", set()),
        (None, None, {"promise not kept"}),
        (None, "less capacity on n1", set()),
    ],
)
def test_the_first_promised_start_is_kept_or_excused(
    allocated_at_s: int | None, excuse: str | None, expected: set[str]
) -> None:
    """What started, or still waits, later than first promised needs a recorded excuse."""
    assert found(lambda scenery: _promise(scenery, NOW_S - 100, allocated_at_s, excuse)) == expected


@pytest.mark.parametrize(
    ("starts", "severity"),
    [
        (StartFiguresRow(), None),
        (StartFiguresRow(99, 0, 0), None),
        (StartFiguresRow(100, 50, 92, 0.8), Severity.FIGURE),
        (StartFiguresRow(100, 100, 100), Severity.FIGURE),
        (StartFiguresRow(100, 20, 92), Severity.WARNING),
        (StartFiguresRow(100, 50, 70), Severity.WARNING),
    ],
)
def test_expected_starts_of_a_week_are_judged(
    starts: StartFiguresRow, severity: Severity | None
) -> None:
    """They are no invariant, so bad ones break none. A few say nothing."""
    assert [one.severity for one in expected_starts(starts)] == ([severity] if severity else [])


def test_a_late_start_is_late_for_good() -> None:
    """Looking again does not mend it, and an overrun of now does not excuse a start of then."""
    scenery = healthy()
    _promise(scenery, NOW_S - 100, NOW_S - 50)
    scenery.rows["allocations"] = [AllocationRow(7, "uid-pi", until_s=NOW_S - 20)]
    (finding,) = compare(scenery.view())
    assert not finding.may_pass
    assert "50 s after its first promised start" in finding.detail


@pytest.mark.parametrize(
    ("granted_s", "most_s", "until_s", "expected"),
    [
        (NOW_S + 5, None, NOW_S + 5, set()),
        (NOW_S - 30, None, NOW_S - 30, set()),
        (NOW_S - 31, None, NOW_S - 31, {"overrun"}),
        (NOW_S + 60, 60, NOW_S + 90, set()),
        (NOW_S + 60, 60, NOW_S + 36_000, {"limit beyond its queue's"}),
        (NOW_S + 60, 60, None, {"limit beyond its queue's"}),
        (None, None, None, set()),
    ],
)
def test_jobs_past_their_limit_are_named(
    granted_s: int | None, most_s: int | None, until_s: int | None, expected: set[str]
) -> None:
    """As warnings: they hold their nodes rightly, and the way out is a setting."""
    scenery = healthy()
    scenery.rows["allocations"] = [AllocationRow(7, "uid-pi", until_s, granted_s, most_s)]
    findings = compare(scenery.view())
    assert {one.invariant for one in findings} == expected
    assert all(one.severity is Severity.WARNING for one in findings)


def test_all_is_not_well_while_an_overrun_moves_a_promise() -> None:
    scenery = healthy()
    _reserve(scenery, NOW_S + 60)
    scenery.rows["allocations"] = [AllocationRow(7, "uid-pi", NOW_S - 100, NOW_S - 100)]
    scenery.rows["promises"] = [PromiseRow("uid-later", NOW_S - 100, None, "overrun of job 1")]
    assert {
        one.invariant for one in compare(scenery.view()) if one.severity is Severity.BROKEN
    } == {"promise moved by an overrun"}
    scenery.rows["allocations"] = [AllocationRow(7, "uid-pi", NOW_S + 100, NOW_S + 100)]
    assert compare(scenery.view()) == [], "it is over"


def _strand(scenery: Scenery) -> None:
    scenery.jobs[0]["spec"]["suspend"] = True
    scenery.pods = scenery.pods[2:]
    scenery.rows |= {"allocations": [], "slots": []}
    scenery.rows["usage"][:2] = [
        UsageRow("node-1", "cpu", 16000, 0, 0, 16000),
        UsageRow("node-1", "pods", 110, 0, 0, 110),
    ]
    scenery.rows["fluxjobs"] = [views.fluxjob_row("pi", "Cancelled", jobid=1)]
    scenery.fluxjobs = [views.fluxjob("pi", "Cancelled", jobid=1)]


def test_what_waits_has_a_row_that_has_not_ended() -> None:
    """It would never be started. The way out stands beside it."""
    assert found(_strand) == {"waiting workload whose row has ended"}
    scenery = healthy()
    _strand(scenery)
    (finding,) = compare(scenery.view())
    assert (finding.severity, finding.subject) == (Severity.BROKEN, "Job default/pi")
    assert "resync" in finding.detail


@pytest.mark.parametrize("how", ["ended", "deleted", "cancelled", "resumed", "not ours"])
def test_what_waits_for_nobody_may_have_one(how: str) -> None:
    """It is over, or about to be, or was never held."""

    def spare(scenery: Scenery) -> None:
        _strand(scenery)
        job, row = scenery.jobs[0], scenery.rows["fluxjobs"][0]
        if how == "ended":
            job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        elif how == "deleted":
            job["metadata"]["deletionTimestamp"] = views.CREATED
        elif how == "cancelled":
            scenery.rows["fluxjobs"] = [replace(row, is_cancelled=True)]
        elif how == "resumed":
            job["spec"]["suspend"] = False
        else:
            del job["spec"]["template"]["spec"]["schedulingGates"]

    assert found(spare) == set()


def test_each_loop_has_succeeded_lately() -> None:
    """The finding names the loop, for how long, and its last error."""
    scenery = healthy()
    scenery.rows["loops"] = [
        LoopRow("cycle", 421, 300, "relation does not exist"),
        LoopRow("publish", 299, 300),
        LoopRow("resync", 800, 900),
    ]
    (finding,) = compare(scenery.view())
    assert (finding.invariant, finding.subject) == ("loop is late", "loop cycle")
    assert "7 minutes" in finding.detail
    assert "relation does not exist" in finding.detail


def test_what_is_set_aside_is_a_warning() -> None:
    """An object, and input of a FluxJob. A FluxJob that is over is left out."""
    scenery = healthy()
    scenery.rows["quarantined_objects"] = [
        QuarantinedRow("node", "n9", "", "n9", "cpu: 'x' is no quantity")
    ]
    (row,) = scenery.rows["fluxjobs"]
    scenery.rows["fluxjobs"] = [replace(row, trouble="priority: 'x' is no number")]
    told = {(one.invariant, one.severity) for one in compare(scenery.view())}
    assert told == {
        ("object set aside", Severity.WARNING),
        ("input not usable", Severity.WARNING),
    }


def test_a_node_that_cannot_be_read_costs_no_other_finding() -> None:
    """The check goes on with all others."""

    def spoil(scenery: Scenery) -> None:
        scenery.nodes.append(views.node("node-3"))
        scenery.nodes[-1]["status"]["allocatable"] = {"cpu": ["many"]}
        scenery.fluxjobs[0]["status"]["state"] = "Pending"

    assert found(spoil) == {"FluxJob disagrees with its row"}


def test_a_comparison_that_one_object_breaks() -> None:
    """It is a finding, and all other comparisons are made."""

    def spoil(scenery: Scenery) -> None:
        scenery.pods[0]["spec"]["containers"] = 7
        scenery.fluxjobs[0]["status"]["state"] = "Pending"

    assert found(spoil) >= {"comparison not possible", "FluxJob disagrees with its row"}

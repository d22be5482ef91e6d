"""Comparing everything with everything: in health nothing is found, and each difference is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from fluxqueue.controller.observing.read_workload import see_gone, see_workload
from fluxqueue.controller.observing.resync_diff import (
    Differences,
    Suspects,
    compare,
    find,
)
from fluxqueue.controller.observing.sight import Published, Sight, publication
from fluxqueue.db.store.resync_rows import Present, RowSeen
from fluxqueue.fluxjob.node import Destination
from fluxqueue.fluxjob.observation import WorkloadGone
from fluxqueue.workload.labels import GATE
from fluxqueue.workload.release_patches import pin_patch
from fluxqueue.workload.site import Site
from tests.support.workloads import bare_pod, batch_job, owner

Obj = dict[str, Any]
GATED = {"schedulingGates": [{"name": GATE}]}
JOB = batch_job("work", meta={"creationTimestamp": "2026-01-01T00:00:00Z"}, pod=GATED)
UID = JOB["metadata"]["uid"]
ROW = RowSeen(
    uid=UID,
    jobid=3,
    state="Running",
    version=5,
    flux_uid="flux",
    observed={"wanted": 1},
    result=None,
    is_deleting=False,
    is_gone=False,
    pods={"uid-work-0": ("Running", False, False, "n1")},
)


def _pod(**spec: Any) -> Obj:
    meta = {"ownerReferences": [owner("Job", "work")], "resourceVersion": "5"}
    pod = bare_pod("work-0", meta=meta, **{"nodeName": "n1", **spec})
    return {**pod, "status": {"phase": "Running"}}


def _fluxjob(**status: Any) -> Obj:
    return {
        "metadata": {"name": "work-job", "namespace": "default", "uid": "flux"},
        "spec": {"workload": {"uid": UID}},
        "status": {"state": "Running", "jobid": 3, "version": 5, **status},
    }


def _published(fluxjob: Obj) -> dict[str, Published]:
    one = publication(fluxjob)
    assert one is not None
    return {one.workload_uid: one}


def _sight(*, pod: Obj | None = None, fluxjob: Obj | None = None, **more: Any) -> Sight:
    pod = pod or _pod()
    known = {
        "objects": {UID: JOB},
        "pods_of": {UID: {pod["metadata"]["uid"]: pod}},
        "fluxjobs": _published(fluxjob or _fluxjob()),
        "hosts": {"host-1": "n1"},
        "default_cpu_m": 1000,
    }
    return Sight(**{**known, **more})


def _see(workload: Any, pods: Any, flux_uid: str | None) -> Any:
    return see_workload(workload, pods, flux_uid=flux_uid, class_values={}, site=Site())


async def _find(sight: Sight, row: RowSeen | None = ROW, *, holds: bool = True) -> Suspects:
    async def rows() -> AsyncIterator[Present]:
        yield _present(row, holds=holds)

    return await find(sight, rows())


def _present(row: RowSeen | None, *, holds: bool) -> Present:
    rows = {} if row is None else {row.uid: row}
    return Present(rows, frozenset({"uid-work-0"} if holds else ()))


async def _compare(sight: Sight, row: RowSeen | None = ROW, *, holds: bool = True) -> Differences:
    """Find, and look again at those found: both must be of one opinion."""
    suspects = await _find(sight, row, holds=holds)
    uids = [*suspects.others, *suspects.found]
    gone = _see_gone(sight)
    differences = compare(sight.of(uids), _present(row, holds=holds), uids, _see, gone)
    assert {one.seen.uid for one in differences.found} == set(suspects.found)
    everybody = {*sight.objects, *({row.uid} if row else ())}
    assert differences == compare(
        sight, _present(row, holds=holds), everybody, _see, _see_gone(sight)
    )
    return differences


def _see_gone(sight: Sight) -> Callable[[str], WorkloadGone]:
    return lambda uid: see_gone(None, list(sight.pods_of.get(uid, {}).values()), [])


def _names(found: Differences) -> set[str]:
    kinds = ("found", "changed", "gone", "stale_statuses")
    return {kind for kind in kinds if getattr(found, kind)}


async def test_nothing_is_found_in_health() -> None:
    """And the owner of each FluxJob is known."""
    found = await _compare(_sight())
    assert _names(found) == set()
    assert (await _find(_sight())).flux_uids == {UID: "flux"}


async def test_a_row_that_is_missing_or_older() -> None:
    """It is taken over with what its FluxJob says, and the pods that run."""
    for found in (
        await _compare(_sight(), None),
        await _compare(_sight(), replace(ROW, version=4)),
        await _compare(_sight(), holds=False),
    ):
        (one,) = found.found
        assert one.record is not None
        assert one.record.jobid == 3
        assert [(pod.uid, pod.node) for pod in one.pods] == [("uid-work-0", "n1")]


async def test_a_row_that_is_newer_is_published() -> None:
    """A user wrote over the status, or it was lost with its FluxJob."""
    status = {"state": "Pending", "version": 2}
    found = await _compare(_sight(fluxjob=_fluxjob(**status)))
    assert _names(found) == {"stale_statuses"}


async def test_what_changed_unseen() -> None:
    """Pods, suspension, completions: the row is written again."""
    row = replace(ROW, pods={})
    assert _names(await _compare(_sight(), row)) == {"changed"}
    suspended = replace(ROW, observed={"wanted": 1, "is_suspended": True})
    assert _names(await _compare(_sight(), suspended)) == {"changed"}


def _indexed(**status: Any) -> Obj:
    spec = {**JOB["spec"], "completionMode": "Indexed", "completions": 4, "parallelism": 4}
    return {**JOB, "spec": spec, "status": status}


def _of_index(index: int, phase: str, created: str, node: str, reason: str = "") -> Obj:
    meta = {
        "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        "creationTimestamp": f"2026-01-01T00:00:{created}Z",
    }
    pod = bare_pod(f"work-{index}-{created}", meta=meta, nodeName=node)
    return {**pod, "status": {"phase": phase, "reason": reason}}


async def test_an_index_that_has_ended_unseen() -> None:
    """Its pod was gone before. Only the status of the BatchJob tells."""
    row = replace(ROW, pods={}, observed={"wanted": 3, "ended_indexes": "{[1,2),[4,)}"})
    sight = {"pods_of": {UID: {}}}
    told = _sight(objects={UID: _indexed(completedIndexes="1")}, **sight)
    assert _names(await _compare(told, row)) == set()
    # One more has failed for good, and parallelism hides it in the number.
    job = _indexed(completedIndexes="1", failedIndexes="2")
    more = {**job, "spec": {**job["spec"], "parallelism": 2}}
    sight_of_more = _sight(objects={UID: more}, **sight)
    fewer = replace(row, observed={**row.observed, "wanted": 2})
    assert _names(await _compare(sight_of_more, fewer)) == {"changed"}


async def test_where_an_index_was_is_told_by_its_last_pod() -> None:
    """Not if it runs, was refused, or has ended."""
    pods = [
        *(_of_index(0, "Failed", "01", "old"), _of_index(0, "Failed", "02", "n0")),
        *(_of_index(1, "Failed", "01", "n1"), _of_index(1, "Running", "02", "n1")),
        _of_index(2, "Failed", "01", "n2", "OutOfcpu"),
        _of_index(3, "Failed", "01", "n3"),
    ]
    its = {UID: {pod["metadata"]["uid"]: pod for pod in pods}}
    sight = _sight(objects={UID: _indexed(failedIndexes="3")}, pods_of=its)
    (found,) = (await _compare(sight, None)).found
    assert found.last_nodes == {0: "n0"}


async def test_what_is_gone() -> None:
    """Its row says so afterwards, with the pods that it left behind."""
    found = await _compare(_sight(objects={}))
    assert [pod.uid for pod in found.gone[UID].pods] == ["uid-work-0"]
    gone = replace(ROW, is_gone=True)
    assert _names(await _compare(_sight(objects={}), gone)) == set()


async def test_a_pod_gets_no_row_before_its_fluxjob() -> None:
    """Released it has no gate. Were the rows lost then, it would be unmanaged. Not a BatchJob."""
    solo = bare_pod("solo", **GATED)
    sight = _sight(objects={"uid-solo": solo}, pods_of={}, fluxjobs={})
    found = await _compare(sight, None)
    assert _names(found) == set()
    flux_uids = (await _find(sight, None)).flux_uids
    assert flux_uids == {"uid-solo": None}, "so that its FluxJob is made, and then its row"
    of_job = await _compare(_sight(pods_of={}, fluxjobs={}), None)
    assert [one.seen.uid for one in of_job.found] == [UID]


async def test_a_fluxjob_of_another_is_none() -> None:
    """A name decides nothing: a FluxJob of another user gets no row by it."""
    solo = bare_pod("solo", nodeName="n1")
    forged = _fluxjob()
    forged["spec"]["workload"]["uid"] = "uid-solo"
    sight = _sight(objects={"uid-solo": solo}, pods_of={}, fluxjobs=_published(forged))
    assert (await _find(sight, None)).flux_uids == {}


async def test_where_a_pod_goes_that_is_not_bound_yet() -> None:
    """By the label that pins it, or by the node's name, which no other node has."""
    selector = {"kubernetes.io/hostname": "host-1"}
    selected = _pod(nodeName="", nodeSelector=selector)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    affinity = {"nodeAffinity": required}
    named = _pod(nodeName="", affinity=affinity)
    both = _pod(nodeName="", nodeSelector=selector, affinity=affinity)
    for pod, node in ((selected, "n1"), (named, "n7"), (both, "n7")):
        (one,) = (await _compare(_sight(pod=pod), None)).found
        assert [placed.node for placed in one.pods] == [node]


async def test_what_pods_hold_of_nodes_while_others_are_taken_over() -> None:
    """So that no job of an earlier page is given what runs already. Requests count as admitted."""
    suspects = await _find(_sight(), None)
    assert suspects.held(suspects.found) == {("n1", "cpu"): 1000, ("n1", "pods"): 1}
    assert (suspects.highest_jobid, suspects.outdated) == (3, [])
    older = await _find(_sight(), replace(ROW, version=4))
    assert older.outdated == [UID]


async def test_a_number_in_a_template_counts_only_beside_its_fluxjob() -> None:
    """A user whom admission does not see could write any, and ours would go on from there."""
    patch = pin_patch(UID, to=Destination("n1", "n1"), jobid=900, nodes="n1")["spec"]["template"]
    spec = {name: value for name, value in patch["spec"].items() if name != "schedulingGates"}
    released = batch_job("work", meta={"uid": UID}, pod=spec, template_meta=patch["metadata"])
    lost = await _find(_sight(objects={UID: released}, fluxjobs={}), None)
    assert (list(lost.found), lost.highest_jobid) == ([UID], 0)
    untold = _published(_fluxjob(jobid=None))
    told_late = await _find(_sight(objects={UID: released}, fluxjobs=untold), None)
    assert told_late.highest_jobid == 900

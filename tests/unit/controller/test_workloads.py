"""The last seen workloads and their FluxJobs: which of them still need one."""

from __future__ import annotations

import pytest

from fluxqueue.controller.observing.workloads import Workloads
from tests.support.workloads import batch_job

JOB = batch_job("work")
UID = JOB["metadata"]["uid"]
ENDING = {**JOB, "metadata": {**JOB["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def _wrapped() -> Workloads:
    workloads = Workloads()
    workloads.keep(UID, JOB)
    workloads.wrap(UID, "flux", "7")
    return workloads


def test_a_workload_that_lost_its_fluxjob_needs_a_new_one() -> None:
    """Someone deleted the FluxJob alone."""
    workloads = _wrapped()
    assert workloads.unwrap(UID)
    assert workloads.find_unwrapped(UID) == JOB
    assert not workloads.unwrap(UID), "it lacks one already"


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_workload_that_is_being_deleted_gets_no_second_fluxjob(is_listed: bool) -> None:
    """The first was collected before its owner. Another one would be, too, again and again."""
    workloads = _wrapped()
    workloads.keep(UID, ENDING)
    if is_listed:
        workloads.begin_listing()
        assert list(workloads.take_listed({UID: None})) == []
    else:
        assert not workloads.unwrap(UID)
    assert workloads.find_unwrapped(UID) is None
    assert workloads.flux_uids[UID] == "flux", "its row goes on under the UID that clients know"


def test_a_list_of_fluxjobs_names_what_lacks_one() -> None:
    """While its workload stands."""
    workloads = _wrapped()
    workloads.begin_listing()
    assert list(workloads.take_listed({UID: None})) == [UID]
    assert workloads.find_unwrapped(UID) == JOB

"""What counts of a workload that its author has spoilt after admission: key by key."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fluxqueue.fluxjob.faults import ANNOTATION, TEMPLATE
from fluxqueue.workload import labels
from fluxqueue.workload.kinds.admitted import assemble_owner
from fluxqueue.workload.kinds.pod_group import Assembly
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.last_good import FAULTS_MAX, LAST_REQUEST, mend, said_by
from fluxqueue.workload.owner_kinds import BUILT_IN
from fluxqueue.workload.pod_request import slot_kind
from fluxqueue.workload.site import DEFAULT_SITE

Obj = dict[str, Any]


def job(said: dict[str, str], *, template: dict[str, str] | None = None, **spec: Any) -> Obj:
    """A stored BatchJob of two pods. Keys without their prefix."""
    container = {"name": "c", "resources": {"requests": {"cpu": "2"}}}
    pods: Obj = {"spec": {"containers": [container], **spec.pop("pods", {})}}
    if template is not None:
        pods["metadata"] = {"annotations": _full(template)}
    return {
        "kind": "Job",
        "metadata": {
            "uid": "u",
            "name": "edited",
            "namespace": "ns",
            "creationTimestamp": "2030-01-01T00:00:00Z",
            "annotations": _full(said),
        },
        "spec": {"parallelism": 2, "completions": 2, "template": pods, **spec},
    }


def _full(said: dict[str, str]) -> dict[str, str]:
    return {f"fluxqueue/{key}": value for key, value in said.items()}


BAD = {
    "duration": "as long as it takes",
    "priority": "urgent",
    "exclusive": "yes",
    "spread": "rack",
    "within": "a rack!",
    "prefer-within": "",
    "cores": "half",
    "match-policy": "best",
    "jobspec": "{resources: [",
    "depends-on": "afterwards:x",
    "begin-time": "soonish",
    "hold": "True",
    "on-node-loss": "panic",
}
"""By key, a value that no parser takes."""

GOOD = {
    "duration": "7m",
    "priority": "11",
    "exclusive": "true",
    "spread": "node",
    "within": "zone",
    "prefer-within": "rack",
    "cores": "whole",
    "match-policy": "pack",
    "jobspec": "[{type: slot, count: 2, label: s, with: [{type: core, count: 3}]}]",
    "depends-on": "afterok:first",
    "begin-time": "2031-05-05T05:05:05Z",
    "hold": "true",
    "on-node-loss": "requeue",
}


@pytest.mark.parametrize("key", BAD)
def test_a_bad_value_keeps_its_last_good_one(key: str) -> None:
    """The warning has the key, the value that stands there and what counts."""
    was = job({key: GOOD[key]})
    found = mend(job({key: BAD[key]}), said_by(was), DEFAULT_SITE)
    kind = kind_of(was)
    assert kind.wishes(found.workload) == kind.wishes(was)
    assert found.request == kind.to_request(was)
    assert found.said == {f"fluxqueue/{key}": GOOD[key]}
    (fault,) = found.faults
    assert (fault.reason, fault.where) == (ANNOTATION, f"fluxqueue/{key}")
    assert fault.instead.startswith("its last good value")


@pytest.mark.parametrize("key", BAD)
def test_without_a_last_good_value_the_default_counts(key: str) -> None:
    """As if nothing stood there."""
    found = mend(job({key: BAD[key]}), {}, DEFAULT_SITE)
    plain = job({})
    assert kind_of(plain).wishes(found.workload) == kind_of(plain).wishes(plain)
    assert found.request == kind_of(plain).to_request(plain)
    assert found.faults[0].instead == "its default counts"


@pytest.mark.parametrize("key", BAD)
def test_all_other_values_are_heeded(key: str) -> None:
    """Those that stand beside it: hold, priority, duration, what it waits for."""
    beside = {"hold": "true", "priority": "9", "duration": "90s", "depends-on": "after:x"}
    others = {name: value for name, value in beside.items() if name != key}
    found = mend(job({key: BAD[key], **others}), {}, DEFAULT_SITE)
    wishes = kind_of(found.workload).wishes(found.workload)
    assert wishes == kind_of(found.workload).wishes(job(others))
    assert len(found.faults) == 1


def test_two_that_cannot_stand_together() -> None:
    """One of them is blamed, and only that one goes back."""
    spec = '[{"type": "node", "count": 1, "with": [{"type": "slot", "count": 2, "label": "s"}]}]'
    found = mend(job({"jobspec": spec, "spread": "node", "hold": "true"}), {}, DEFAULT_SITE)
    assert found.request is not None
    assert kind_of(found.workload).wishes(found.workload).is_held
    assert [fault.reason for fault in found.faults] == [ANNOTATION]


def test_a_jobspec_that_its_pods_no_longer_fit() -> None:
    """Scaled beside its own jobspec: the jobspec of before fits as little, so it is left out."""
    was = said_by(job({"jobspec": GOOD["jobspec"]}))
    found = mend(job({"jobspec": GOOD["jobspec"]}, parallelism=5, completions=5), was, DEFAULT_SITE)
    assert found.request is not None
    assert found.request.size == 5
    assert found.faults[0].where == labels.JOBSPEC


def test_what_its_pods_ask_for_cannot_be_read() -> None:
    """Then the last request counts, and of the annotations all that can be read."""
    term = {"key": "a", "operator": "About", "values": ["many"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    pods = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    found = mend(job({"hold": "true", "priority": "lots"}, pods=pods), {}, DEFAULT_SITE)
    assert found.request is None
    assert kind_of(found.workload).wishes(found.workload).is_held
    assert [fault.reason for fault in found.faults] == [ANNOTATION, TEMPLATE]
    assert found.faults[-1].instead == LAST_REQUEST


def test_the_jobs_own_value_goes_before_that_of_its_template() -> None:
    """Whichever of the two is spoilt."""
    past = {labels.PRIORITY: "3"}
    own = mend(job({"priority": "x"}, template={"priority": "8"}), past, DEFAULT_SITE)
    assert kind_of(own.workload).wishes(own.workload).priority == 3
    inner = mend(job({"priority": "8"}, template={"priority": "x"}), past, DEFAULT_SITE)
    assert (inner.faults, kind_of(inner.workload).wishes(inner.workload).priority) == ((), 8)


def test_unknown_keys_are_left_out_and_told_in_bounded_time() -> None:
    """However many an object carries. All others are applied."""
    many = {f"x{number}": "1" for number in range(12_000)}
    began_s = time.process_time()
    found = mend(job({**many, "hold": "true"}), {}, DEFAULT_SITE)
    assert time.process_time() - began_s < 1.0
    assert kind_of(found.workload).wishes(found.workload).is_held
    assert len(found.faults) == FAULTS_MAX


def test_values_that_are_no_text() -> None:
    """A custom resource can carry anything."""
    odd = job({"hold": "true"})
    odd["metadata"]["annotations"][labels.PRIORITY] = 7
    odd["metadata"]["annotations"][labels.WITHIN] = ["zone"]
    found = mend(odd, {}, DEFAULT_SITE)
    assert {fault.where for fault in found.faults} == {labels.PRIORITY, labels.WITHIN}
    assert kind_of(found.workload).wishes(found.workload).is_held


def test_a_group_of_pods() -> None:
    """The oldest pod's value is spoilt. The last good one of the group counts."""
    pods: dict[str, Obj] = {}
    for number in range(3):
        said = {"priority": "no" if number == 0 else "4", "hold": "true"}
        pods[f"p{number}"] = {
            "metadata": {
                "uid": f"p{number}",
                "name": f"p{number}",
                "namespace": "ns",
                "creationTimestamp": f"2030-01-01T00:00:0{number}Z",
                "annotations": _full(said),
            },
            "spec": {"containers": [{"name": "c"}], "schedulingGates": [{"name": "fluxqueue"}]},
            "status": {},
        }
    group = Assembly(
        uid="g",
        name="g",
        fluxjob="g-group",
        namespace="ns",
        user="",
        created="2030-01-01T00:00:00Z",
        spec={"minimum": 3, "maximum": 3},
        members=pods,
        slot_kinds={uid: slot_kind(pod) for uid, pod in pods.items()},
        jobs={},
    ).assemble()
    found = mend(group, {labels.PRIORITY: "6"}, DEFAULT_SITE)
    wishes = kind_of(group).wishes(found.workload)
    assert (wishes.priority, wishes.is_held, found.faults[0].where) == (6, True, labels.PRIORITY)
    assert found.request is not None
    assert found.request.size == 3


def test_what_makes_pods_and_is_suspended() -> None:
    """A value in one of its templates. The object itself is not changed."""
    entry = next(one for one in BUILT_IN if one.kind == "JobSet")
    template = {
        "metadata": {"annotations": _full({"duration": "never"})},
        "spec": {"containers": [{"name": "c"}]},
    }
    replicated = {
        "name": "w",
        "replicas": 2,
        "template": {"spec": {"parallelism": 3, "template": template}},
    }
    meta = {"name": "set", "namespace": "ns", "uid": "s", "annotations": _full({"hold": "true"})}
    stored = {"metadata": meta, "spec": {"suspend": True, "replicatedJobs": [replicated]}}
    owner = assemble_owner(stored, entry, "jobset.x-k8s.io/v1alpha2")
    found = mend(owner, {labels.DURATION: "2h"}, DEFAULT_SITE)
    wishes = kind_of(owner).wishes(found.workload)
    assert (wishes.duration_s, wishes.is_held) == (7200, True)
    assert template["metadata"]["annotations"] == _full({"duration": "never"})
    assert found.request is not None
    assert found.request.size == 6


def test_equal_objects_are_mended_equally_twice() -> None:
    """What counted once goes on counting, edit after edit."""
    first = mend(job({"priority": "??"}), {labels.PRIORITY: "5"}, DEFAULT_SITE)
    second = mend(job({"priority": "!!", "hold": "true"}), first.said, DEFAULT_SITE)
    assert kind_of(second.workload).wishes(second.workload).priority == 5
    third = mend(job({"priority": "2"}), second.said, DEFAULT_SITE)
    assert (third.faults, third.said) == ((), {labels.PRIORITY: "2"})

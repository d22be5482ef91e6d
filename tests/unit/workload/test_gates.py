"""The JSON Patches: applied with a JSON Patch library, the objects are what they should be."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import Destination
from fluxqueue.workload import gates, labels
from fluxqueue.workload import release_patches as releases
from fluxqueue.workload.annotations import Wishes, read_wishes
from fluxqueue.workload.json_patch import diff
from fluxqueue.workload.kinds.table import kind_of
from tests.support.workloads import bare_pod, batch_job

OURS = {"name": "fluxqueue"}
OTHER = {"name": "other.example/gate"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
BY_NAME = {
    "nodeAffinity": {
        REQUIRED: {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
            ]
        }
    }
}


_UNPINNED: dict[str, Any] = {"nodeAffinity": {REQUIRED: None}}


def _admit(workload: dict[str, Any]) -> dict[str, Any]:
    held = kind_of(workload).held(workload, read_wishes(workload), "")
    result: dict[str, Any] = jsonpatch.apply_patch(workload, diff(workload, held))
    assert result == held
    return result


def test_a_batch_job_is_suspended_gated_labelled_and_nothing_else() -> None:
    job = batch_job(parallelism=4)
    expected = copy.deepcopy(job)
    expected["metadata"]["labels"] = {"fluxqueue/managed": "true"}
    expected["spec"]["suspend"] = True
    expected["spec"]["template"]["metadata"]["labels"] = {"fluxqueue/managed": "true"}
    expected["spec"]["template"]["spec"]["schedulingGates"] = [OURS]
    assert _admit(job) == expected


def test_what_is_there_already_stays() -> None:
    job = batch_job(
        meta={"labels": {"app": "a"}},
        template_meta={"labels": {"tier": "b"}},
        pod={"schedulingGates": [OTHER]},
    )
    result = _admit(job)
    assert result["metadata"]["labels"] == {"app": "a", "fluxqueue/managed": "true"}
    assert result["spec"]["template"]["metadata"]["labels"]["tier"] == "b"
    assert result["spec"]["template"]["spec"]["schedulingGates"] == [OTHER, OURS]


def test_a_template_without_metadata_gets_some() -> None:
    job = batch_job()
    del job["spec"]["template"]["metadata"]
    assert _admit(job)["spec"]["template"]["metadata"]["labels"] == {"fluxqueue/managed": "true"}


@pytest.mark.parametrize("former", ["fluence", "fluxnetes", "FluxionScheduler"])
def test_who_names_a_predecessor_gets_a_scheduler_that_exists(former: str) -> None:
    """Manifests of the lineage would otherwise wait for a scheduler that is not there."""
    job = batch_job(pod={"schedulerName": former})
    assert _admit(job)["spec"]["template"]["spec"]["schedulerName"] == "default-scheduler"
    pod = bare_pod(schedulerName=former)
    assert _admit(pod)["spec"]["schedulerName"] == "default-scheduler"


def test_any_other_scheduler_is_the_authors_choice() -> None:
    job = batch_job(pod={"schedulerName": "their-own"})
    assert _admit(job)["spec"]["template"]["spec"]["schedulerName"] == "their-own"


def test_an_authors_suspension_is_remembered() -> None:
    result = _admit(batch_job(suspend=True))
    assert result["metadata"]["annotations"] == {"fluxqueue/author-suspended": "true"}
    assert result["spec"]["suspend"] is True


def test_a_claimed_suspension_of_a_running_batch_job_is_dropped() -> None:
    """Otherwise the annotation would keep a workload for ever that was not suspended."""
    job = batch_job(meta={"annotations": {"fluxqueue/author-suspended": "true", "a": "b"}})
    assert _admit(job)["metadata"]["annotations"] == {"a": "b"}


def test_our_own_suspension_is_not_taken_for_the_authors() -> None:
    """Reinvocation and exported manifests show us what we once made."""
    once = _admit(batch_job())
    assert "annotations" not in once["metadata"]
    assert kind_of(once).held(once, read_wishes(once), "") is once


def test_what_is_taken_in_bears_no_number_of_a_job_yet() -> None:
    """An exported manifest does. If an object has one, the policy believes that it was started."""
    numbered = {"fluxqueue/jobid": "7", "a": "b"}
    in_group = {"fluxqueue/pod-group": "g", "fluxqueue/group-size": "5"}
    pod = _admit(bare_pod(meta={"labels": numbered}))
    whole = _admit(batch_job(template_meta={"labels": numbered}))
    part = _admit(batch_job(meta={"labels": in_group}, template_meta={"labels": numbered}))
    for meta in (pod["metadata"], *(one["spec"]["template"]["metadata"] for one in (whole, part))):
        assert meta["labels"] == {"a": "b", "fluxqueue/managed": "true"}


_NODE = {HOSTNAME: "n1"}


@pytest.mark.parametrize(
    ("told", "pod", "left"),
    [
        ({"labels": {"fluxqueue/jobid": "7"}}, {"nodeSelector": _NODE}, {"nodeSelector": {}}),
        (
            {"annotations": {"fluxqueue/nodes": "n1"}},
            {"nodeSelector": {**_NODE, "pool": "a"}},
            {"nodeSelector": {"pool": "a"}},
        ),
        (
            {"labels": {"fluxqueue/jobid": "7"}},
            {"affinity": copy.deepcopy(BY_NAME)},
            {"affinity": {"nodeAffinity": {}}},
        ),
        ({}, {"nodeSelector": _NODE}, {"nodeSelector": _NODE}),
        ({}, {"affinity": BY_NAME}, {"affinity": BY_NAME}),
    ],
)
@pytest.mark.parametrize("kind", ["Job", "Pod"])
def test_an_exported_manifest_runs_on_any_node(
    kind: str, told: dict[str, Any], pod: dict[str, Any], left: dict[str, Any]
) -> None:
    """The node was ours if the manifest has a number or nodes of a release, else its author's."""
    told, pod = copy.deepcopy(told), copy.deepcopy(pod)
    is_job = kind == "Job"
    made = batch_job(template_meta=told, pod=pod) if is_job else bare_pod(meta=told, **pod)
    once = _admit(made)
    template = once["spec"]["template"] if is_job else once
    assert {key: template["spec"][key] for key in left} == left
    assert not {"fluxqueue/nodes"} & (template["metadata"].get("annotations") or {}).keys()
    assert kind_of(once).held(once, read_wishes(once), "") is once


@pytest.mark.parametrize("make", [batch_job, bare_pod])
def test_the_wished_duration_becomes_the_deadline_only_where_none_is_set(make: Any) -> None:
    wish = {"annotations": {"fluxqueue/duration": "10m"}}
    assert _admit(make(meta=wish))["spec"]["activeDeadlineSeconds"] == 600
    kept = make(meta=wish, activeDeadlineSeconds=5)
    assert _admit(kept)["spec"]["activeDeadlineSeconds"] == 5


def test_a_pod_is_gated_and_labelled_and_nothing_else() -> None:
    pod = bare_pod()
    expected = copy.deepcopy(pod)
    expected["metadata"]["labels"] = {"fluxqueue/managed": "true"}
    expected["spec"]["schedulingGates"] = [OURS]
    assert _admit(pod) == expected


_MAPS = st.one_of(
    st.none(),
    st.dictionaries(
        st.sampled_from(["a", "b/c", "d~e", "fluxqueue/managed", "fluxqueue/jobid"]),
        st.just("true"),
    ),
)
_GATES = st.lists(st.sampled_from([OURS, OTHER]), max_size=2, unique_by=lambda g: g["name"])


@given(
    top=_MAPS, inner=_MAPS, gated=st.none() | _GATES, suspend=st.booleans() | st.none(),
    deadline=st.none() | st.integers(1, 9), wish=st.none() | st.integers(1, 9),
)  # fmt: skip
def test_admission_is_idempotent(
    *, top: Any, inner: Any, gated: Any, suspend: Any, deadline: Any, wish: Any
) -> None:
    """A second round changes nothing, whatever the first one found."""
    job = batch_job(
        meta={"labels": top, "annotations": inner},
        template_meta={"labels": inner},
        pod={"schedulingGates": gated},
        suspend=suspend,
        activeDeadlineSeconds=deadline,
    )
    for workload in (job, bare_pod(meta={"labels": top}, schedulingGates=gated)):
        wishes = Wishes(duration_s=wish)
        held = kind_of(workload).held(workload, wishes, "")
        once = jsonpatch.apply_patch(workload, diff(workload, held))
        assert kind_of(once).held(once, wishes, "") is once


def test_release_unsuspends_this_very_batch_job() -> None:
    patch = releases.resume_patch("u")
    assert (patch["metadata"]["uid"], patch["spec"]) == ("u", {"suspend": False})


def test_a_release_over_several_nodes_takes_back_the_one_before() -> None:
    """Its template named a node: the gate comes back, the node goes."""
    template = releases.resume_patch("u", is_pinned=True)["spec"]["template"]
    assert releases.unpin_patch("u")["spec"] == {"suspend": True, "template": template}
    assert template["spec"] == {
        "schedulingGates": [OURS],
        "nodeSelector": {HOSTNAME: None},
        "affinity": _UNPINNED,
    }
    assert template["metadata"] == {"labels": {"fluxqueue/jobid": None}}


def test_a_release_to_one_node_is_in_the_template() -> None:
    """No gate, and the node by label and by name: its pods need no patch."""
    patch = releases.pin_patch("u", to=Destination("n1", "host1"), jobid=7, nodes="n1")
    assert patch["metadata"]["uid"] == "u"
    assert patch["spec"]["suspend"] is False
    template = patch["spec"]["template"]
    assert template["metadata"] == {
        "labels": {"fluxqueue/jobid": "7"},
        "annotations": {"fluxqueue/nodes": "n1"},
    }
    assert template["spec"] == {
        "schedulingGates": [{"$patch": "delete", **OURS}],
        "nodeSelector": {HOSTNAME: "host1"},
        "affinity": BY_NAME,
    }


def test_where_a_label_is_enough_no_affinity_is_written() -> None:
    """And none is left of the release before, which may have named another node."""
    to = Destination("n1", "n1", is_labelled_index=True)
    for is_pinned, left in ((False, {}), (True, {"affinity": _UNPINNED})):
        patch = releases.pin_patch("u", to=to, jobid=7, nodes="n1", is_pinned=is_pinned)
        assert patch["spec"]["template"]["spec"] == {
            "schedulingGates": [{"$patch": "delete", **OURS}],
            "nodeSelector": {HOSTNAME: "n1"},
            **left,
        }


def test_resuspension_forgets_the_authors() -> None:
    notes = {"fluxqueue/author-suspended": "true", "a": "b"}
    job = batch_job(meta={"annotations": notes}, pod={"schedulingGates": [OURS]})
    result = jsonpatch.apply_patch(job, releases.suspend_again_patch(job))
    assert result["spec"]["suspend"] is True
    assert result["metadata"]["annotations"] == {"fluxqueue/author-suspended": "false", "a": "b"}


@pytest.mark.parametrize("patch", [releases.suspend_patch("u"), releases.unpin_patch("u")])
def test_every_suspension_of_ours_says_so(patch: dict[str, Any]) -> None:
    """And every release takes it back, so that the next one differs from it."""
    assert patch["metadata"]["annotations"] == {"fluxqueue/author-suspended": "false"}
    pin = releases.pin_patch("u", to=Destination("n1", None), jobid=7, nodes="n1")
    for release in (
        releases.resume_patch("u"),
        releases.resume_patch("u", is_pinned=True),
        pin,
    ):
        assert release["metadata"]["annotations"] == {"fluxqueue/author-suspended": None}


def test_a_patch_fails_on_a_job_that_has_changed_meanwhile() -> None:
    """A freed Job is not suspended again, and a released one is not freed."""
    job = _admit(batch_job())
    again, leave = (
        releases.suspend_again_patch(job),
        releases.leave_job_patch(job, is_unsuspended=True),
    )
    released = {**job, "spec": {**job["spec"], "suspend": False}}
    for changed, patch in ((jsonpatch.apply_patch(job, leave), again), (released, leave)):
        with pytest.raises((jsonpatch.JsonPatchTestFailed, jsonpatch.JsonPointerException)):
            jsonpatch.apply_patch(changed, patch)


@pytest.mark.parametrize(
    ("author", "again", "is_unsuspended", "suspend"),
    [
        (False, False, True, False),
        (False, False, False, True),
        (False, True, True, False),
        (True, False, True, True),
    ],
)
def test_letting_go_takes_our_gate_and_our_suspension_and_nothing_else(
    *, author: bool, again: bool, is_unsuspended: bool, suspend: bool
) -> None:
    """A second suspension of ours goes, too. What its author suspended stays suspended."""
    job = _admit(batch_job(suspend=author, pod={"schedulingGates": [{"name": "theirs"}]}))
    if again:
        resumed = {**job, "spec": {**job["spec"], "suspend": False}}
        job = jsonpatch.apply_patch(resumed, releases.suspend_again_patch(resumed))
    patch = releases.leave_job_patch(job, is_unsuspended=is_unsuspended)
    free = jsonpatch.apply_patch(job, patch)
    assert free["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "theirs"}]
    assert free["spec"]["suspend"] is suspend
    assert not free["metadata"].get("annotations")


def test_freeing_a_pod_takes_our_gate_alone() -> None:
    pod = bare_pod(schedulingGates=[{"name": "theirs"}, OURS])
    free = jsonpatch.apply_patch(pod, releases.leave_pod_patch(pod))
    assert free["spec"]["schedulingGates"] == [{"name": "theirs"}]
    assert "nodeSelector" not in free["spec"]


@pytest.mark.parametrize("has_affinity", [False, True])
@pytest.mark.parametrize(
    "to",
    [
        Destination("n1", "host1"),
        Destination("n1", None),
        Destination("n1", "n1", is_labelled_index=True),
    ],
)
def test_ungating_names_the_gate_and_the_node(to: Destination, has_affinity: bool) -> None:
    """By label, and by name where that is not enough. Terms of its own are one value that a merge
    would replace.
    """
    patch = releases.ungate_patch("u", to=to, jobid=7, nodes="n[1-2]", has_affinity=has_affinity)
    expected: dict[str, Any] = {"schedulingGates": [{"$patch": "delete", **OURS}]}
    if to.hostname is not None:
        expected["nodeSelector"] = {HOSTNAME: to.hostname}
    if not (has_affinity or to.is_labelled_index):
        expected["affinity"] = BY_NAME
    assert patch == {
        "metadata": {
            "uid": "u",
            "labels": {"fluxqueue/jobid": "7"},
            "annotations": {"fluxqueue/nodes": "n[1-2]"},
        },
        "spec": expected,
    }


def test_ungating_resets_the_owners_of_fields_if_asked() -> None:
    """An empty list would change nothing: the API server resets them by one empty entry."""
    to = Destination("n1", "host1")
    plain = releases.ungate_patch("u", to=to, jobid=7, nodes="n1")
    reset = releases.ungate_patch("u", to=to, jobid=7, nodes="n1", drops_managed_fields=True)
    assert "managedFields" not in plain["metadata"]
    assert reset["metadata"].pop("managedFields") == [{}]
    assert reset == plain


def test_narrowing_fails_on_another_pod_and_on_moved_gates() -> None:
    pod = bare_pod(schedulingGates=[OTHER, OURS])
    patch = releases.ungate_by_name_patch(pod, to=Destination("n", None), jobid=1, nodes="n")
    for changed in (
        bare_pod("solo", meta={"uid": "another"}, schedulingGates=[OTHER, OURS]),
        bare_pod(schedulingGates=[OURS, OTHER]),
    ):
        with pytest.raises(jsonpatch.JsonPatchTestFailed):
            jsonpatch.apply_patch(changed, patch)


def test_an_ungated_pod_needs_no_patch() -> None:
    pod = bare_pod(schedulingGates=[OTHER])
    assert releases.ungate_by_name_patch(pod, to=Destination("n", None), jobid=1, nodes="n") is None


def test_pinning_by_name_narrows_every_term() -> None:
    """Terms are alternatives: one that is not narrowed would allow other nodes."""
    expression = {"key": "a", "operator": "Exists"}
    other = {"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}
    terms = [{"matchExpressions": [expression]}, {"matchFields": [other]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    pod = bare_pod(schedulingGates=[OURS], affinity=affinity)
    patch = releases.ungate_by_name_patch(pod, to=Destination("n1", None), jobid=7, nodes="n1")
    result: dict[str, Any] = jsonpatch.apply_patch(pod, patch)
    assert result["spec"]["schedulingGates"] == []
    name = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert result["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [expression], "matchFields": [name]},
        {"matchFields": [other, name]},
    ]


def _group(size: str, **more: Any) -> dict[str, Any]:
    named = {"fluxqueue/pod-group": "mpi", "fluxqueue/group-size": size}
    return {"labels": named | more.pop("labels", {}), **more}


def test_a_pod_of_a_group_is_gated_and_marked() -> None:
    result = _admit(bare_pod(meta=_group("3-5")))
    assert result["spec"]["schedulingGates"] == [OURS]
    assert result["metadata"]["annotations"] == {"fluxqueue/group": "mpi 3-5"}


def test_a_mark_that_a_manifest_brings_is_taken_away() -> None:
    forged = {"annotations": {"fluxqueue/group": "mpi 3-5", "a": "b"}}
    assert _admit(bare_pod(meta=forged))["metadata"]["annotations"] == {"a": "b"}


def test_a_job_that_starts_with_others_is_not_suspended_and_tells_its_pods() -> None:
    """Its pods must come to be counted: gated, with its wishes, its queue and its deadline."""
    wishes = {"fluxqueue/duration": "10m", "fluxqueue/priority": "7"}
    job = batch_job(meta=_group("5", labels={"fluxqueue/queue": "fast"}, annotations=wishes))
    result = _admit(job)
    template = result["spec"]["template"]
    assert result["spec"]["suspend"] is False
    assert "activeDeadlineSeconds" not in result["spec"]
    assert template["spec"]["activeDeadlineSeconds"] == 600
    assert template["spec"]["schedulingGates"] == [OURS]
    assert template["metadata"]["labels"]["fluxqueue/queue"] == "fast"
    assert template["metadata"]["annotations"] == wishes | {"fluxqueue/group": "mpi 5-5"}
    assert not kind_of(result).is_held(result), "its pods are held, not it"


@pytest.mark.parametrize("make", [batch_job, bare_pod])
@pytest.mark.parametrize("inner", [{}, {"labels": {"a": "b"}}, {"annotations": {"c": "d"}}])
def test_admission_to_a_group_is_idempotent(make: Any, inner: dict[str, Any]) -> None:
    made = make(meta=_group("5", annotations={"fluxqueue/duration": "1h"}))
    if "template" in made["spec"]:
        made["spec"]["template"]["metadata"] = inner
    kind, wishes = kind_of(made), read_wishes(made)
    once = jsonpatch.apply_patch(made, diff(made, kind.held(made, wishes, "alice")))
    assert kind.held(once, read_wishes(once), "alice") is once
    if "template" in once["spec"]:
        template = once["spec"]["template"]["metadata"]
        assert inner.get("labels", {}).items() <= template["labels"].items()


@pytest.mark.parametrize(
    ("parallelism", "size", "is_the_group"), [(5, "5", True), (3, "5", False), (4, "3-5", False)]
)
def test_a_job_as_large_as_its_group_is_the_group(
    parallelism: int, size: str, is_the_group: bool
) -> None:
    job = batch_job(meta=_group(size), parallelism=parallelism, completions=parallelism)
    assert _admit(job)["spec"]["suspend"] is is_the_group


def test_a_group_smaller_than_its_job_is_refused_unless_it_is_spelt_as_of_old() -> None:
    """Fluence started with so many at least: there all pods of the Job count."""
    job = batch_job(meta=_group("2"), parallelism=3, completions=3)
    with pytest.raises(InvalidInput, match="runs 3 pods at once") as caught:
        _admit(job)
    assert caught.value.where == "metadata.labels[fluxqueue/group-size]"
    old = {"fluence.pod-group": "mpi", "fluence.group-size": "2"}
    former = batch_job(template_meta={"labels": old}, parallelism=3, completions=3)
    assert _admit(former)["spec"]["suspend"] is True


def test_a_pod_with_a_group_and_no_size_is_told() -> None:
    with pytest.raises(InvalidInput, match="group without a size"):
        _admit(bare_pod(meta={"labels": {"fluxqueue/pod-group": "mpi"}}))


def test_an_apply_keeps_the_node_of_a_released_job_and_our_own_patch_removes_it() -> None:
    """Otherwise a Job that returns to the queue would ask for its last node for ever."""

    def job(labels_: dict[str, str], selector: dict[str, str]) -> dict[str, Any]:
        template = {"metadata": {"labels": labels_}, "spec": {"nodeSelector": selector}}
        return {"spec": {"template": template}}

    released = job({labels.JOBID: "7"}, {"pool": "a", labels.HOSTNAME: "n1"})
    kept = gates.repinned(released, job({labels.JOBID: "7"}, {"pool": "a"}))
    assert kept == released
    without_number = job({}, {"pool": "a"})
    assert gates.repinned(released, without_number) is without_number
    assert gates.repinned(released, released) is released


def test_the_template_of_an_author_is_unpinned_and_stays_suspended_by_that_author() -> None:
    """Otherwise the webhook would undo the resumption by that author, as that of an apply."""
    patch = releases.unpin_patch("u", is_authors=True)
    assert patch["metadata"] == {"uid": "u"}
    assert patch["spec"] == {"template": releases.unpin_patch("u")["spec"]["template"]}

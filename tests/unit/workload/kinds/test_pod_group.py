"""Groups of pods as workloads: what they ask for, how far they are, and when they are over."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec.shape import slot_kinds
from fluxqueue.workload.kinds.pod_group import POD_GROUP, slots_beside
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.observed_pod import pod_fact
from fluxqueue.workload.pod_request import slot_kind
from fluxqueue.workload.references import Reference
from tests.support.pod_groups import group, member
from tests.support.workloads import batch_job, owner


def _counts(made: dict[str, Any]) -> list[tuple[int, int]]:
    kinds = slot_kinds(POD_GROUP.to_request(made))
    return sorted((dict(kind.needs)["cpu"], kind.count) for kind in kinds)


def test_unequal_pods_are_kinds_of_slots() -> None:
    made = group(member("a", "2"), member("b", "8"), member("c", "8"))
    assert kind_of(made) is POD_GROUP
    assert _counts(made) == [(2000, 1), (8000, 2)]
    assert POD_GROUP.gathering(made).missing == 0  # type: ignore[union-attr]


def test_the_oldest_up_to_the_least_size_are_the_request() -> None:
    """The rest grows it. A kind of which none is needed yet stands there with a count of 0."""
    pods = [member(f"p{number}", "1") for number in range(3)] + [member("q", "4")]
    made = group(*pods, most=9)
    assert _counts(made) == [(1000, 3), (4000, 0)]
    further = slot_kinds(POD_GROUP.further(made))  # type: ignore[arg-type]
    assert sorted((dict(kind.needs)["cpu"], kind.count) for kind in further) == [
        (1000, 1),
        (4000, 1),
    ]


def test_a_native_group_starts_with_all_its_pods() -> None:
    """kube-scheduler holds all of them back while one is gated. Its least size is waited for."""
    named = {"schedulingGroup": {"podGroupName": "mpi"}}
    made = group(*[member(f"p{number}", **named) for number in range(5)], most=None)
    assert _counts(made) == [(1000, 5)]
    assert POD_GROUP.size(made) == 5
    few = group(*[member(f"p{number}", **named) for number in range(2)], most=None)
    assert POD_GROUP.gathering(few).missing == 1  # type: ignore[union-attr]
    assert POD_GROUP.size(few) == 2


def test_a_part_of_a_composite_group_is_not_released_alone() -> None:
    """kube-scheduler binds none of its pods while a pod of another part is gated."""
    made = group(*[member(f"p{number}") for number in range(3)], spec={"parent": "tree"})
    waits = POD_GROUP.gathering(made)
    assert waits is not None
    assert waits.missing == 1
    assert "is a part of CompositePodGroup tree" in waits.reason
    assert "fluxqueue/pod-group" in waits.reason


def test_pods_that_differ_in_where_they_may_go_are_different_kinds() -> None:
    made = group(member("a"), member("b", nodeSelector={"disk": "ssd"}), least=2)
    request = POD_GROUP.to_request(made)
    assert len(request.slot_where) == 2
    assert len({label for label, _ in request.slot_where}) == 2


def test_a_pods_name_image_or_command_makes_no_kind() -> None:
    one, other = member("a"), member("b")
    other["spec"]["containers"][0] |= {"name": "x", "image": "y", "command": ["z"]}
    assert slot_kind(one) == slot_kind(other)
    assert slot_kind(member("a", "2")) != slot_kind(one)


def test_what_was_let_go_asks_for_no_node_in_the_name_of_others() -> None:
    gone = member("a", phase="Running", nodeSelector={"kubernetes.io/hostname": "n1"})
    made = group(gone, member("b"), most=9)
    assert "n1" not in str(POD_GROUP.further(made))


@pytest.mark.parametrize(
    ("pods", "missing", "words"),
    [
        ([], 3, "0 of 3 pods; missing 3"),
        ([member("a"), member("b")], 1, "2 of 3 pods; missing 1"),
        ([member("a"), member("b"), member("c")], 0, ""),
        (
            [member("a"), member("b"), member("c", meta={"deletionTimestamp": "now"})],
            1,
            "2 of 3 pods; missing 1",
        ),
    ],
)
def test_gathering(pods: list[dict[str, Any]], missing: int, words: str) -> None:
    found = POD_GROUP.gathering(group(*pods))
    assert found is not None
    assert (found.missing, found.reason) == (missing, words)


def test_a_size_that_its_podgroup_says_is_waited_for() -> None:
    found = POD_GROUP.gathering(group(member("a"), least=None, most=None))
    assert found is not None
    assert found.missing == 1
    assert "waits for PodGroup mpi" in found.reason


def test_it_is_over_with_its_last_pod() -> None:
    done = [member(name, phase="Succeeded") for name in "ab"]
    assert POD_GROUP.progress(group(*done, member("c", phase="Running"))).result is None
    assert POD_GROUP.progress(group(*done, member("c"))).wanted == 1
    assert POD_GROUP.progress(group(*done)).result is FluxJobState.COMPLETED
    failed = group(*done, member("c", phase="Failed"))
    assert POD_GROUP.progress(failed).result is FluxJobState.FAILED


def test_a_job_that_makes_another_pod_keeps_it_going() -> None:
    """Its failed pod is not the group's failure. Its own end is."""
    made_by = {"ownerReferences": [owner("Job", "pi")]}
    failed = member("a", phase="Failed", meta=made_by)
    job = batch_job("pi", parallelism=2, completions=2)
    going = POD_GROUP.progress(group(failed, jobs={"uid-pi": job}))
    assert (going.wanted, going.result) == (2, None)
    over = job | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert POD_GROUP.progress(group(failed, jobs={"uid-pi": over})).result is FluxJobState.COMPLETED


def test_no_more_run_than_its_most() -> None:
    pods = [member(f"p{number}") for number in range(5)]
    assert POD_GROUP.progress(group(*pods, most=4)).wanted == 4


def test_of_wishes_that_disagree_the_oldest_counts() -> None:
    first = member("a", meta={"annotations": {"fluxqueue/within": "zone"}})
    second = member("b", "2", meta={"annotations": {"fluxqueue/within": "rack"}})
    second["metadata"]["annotations"]["fluxqueue/exclusive"] = "true"
    wishes = POD_GROUP.wishes(group(first, second))
    assert (wishes.within, wishes.is_exclusive) == ("zone", True)


@pytest.mark.parametrize(("wish", "why"), [("spread", "unequal"), ("jobspec", "not for groups")])
def test_what_cannot_be_of_unequal_pods_is_refused(wish: str, why: str) -> None:
    value = {"spread": "node", "jobspec": "[{type: slot, count: 1, label: x, with: []}]"}[wish]
    if wish == "jobspec":
        value = "[{type: slot, count: 2, label: x, with: [{type: core, count: 1}]}]"
    note = {"annotations": {f"fluxqueue/{wish}": value}}
    with pytest.raises(InvalidInput, match=why):
        POD_GROUP.to_request(group(member("a", meta=note), member("b", "2"), least=2))


def test_facts_bear_the_kind_of_slot_and_no_index() -> None:
    index = {"annotations": {"batch.kubernetes.io/job-completion-index": "3"}}
    pod = member("a", meta=index)
    assert pod_fact(pod).index == 3
    (fact,) = POD_GROUP.pod_facts(group(pod), [pod])
    assert (fact.index, fact.kind) == (None, slot_kind(pod))


def test_who_makes_its_pods_is_named_where_it_is_not_a_job() -> None:
    alone, of_job = member("a"), member("b", meta={"ownerReferences": [owner("Job")]})
    assert POD_GROUP.facts(group(alone, of_job), WorkloadFacts()).made_by is None
    of_set = member("c", meta={"ownerReferences": [owner("ReplicaSet", "web")]})
    assert POD_GROUP.facts(group(alone, of_set), WorkloadFacts()).made_by == "ReplicaSet web"


def test_wishes_in_which_its_pods_do_not_agree_are_told() -> None:
    """A value of only one of them is no disagreement, nor is what we write ourselves."""
    said = [{"fluxqueue/priority": str(n), "fluxqueue/user": f"u{n}"} for n in range(2)]
    said[0]["fluxqueue/duration"] = "1h"
    made = group(*(member(f"p{n}", meta={"annotations": one}) for n, one in enumerate(said)))
    assert POD_GROUP.disregarded(made) == [
        "fluxqueue/priority where pods disagree (the oldest's counts)"
    ]
    before = POD_GROUP.asks(made)
    made["members"]["uid-p1"]["metadata"]["annotations"]["fluxqueue/priority"] = "0"
    assert POD_GROUP.disregarded(made) == []
    assert POD_GROUP.asks(made) != before


def driven(*followers: dict[str, Any], driver: str = "Running", **more: Any) -> dict[str, Any]:
    """The group of a driver with room for two followers of 4 cpu, as it is after its start."""
    first = member("driver", "2", phase=driver)
    first["metadata"] |= {"annotations": {"fluxqueue/followers": "2 cpu=4"}} | more
    members = {pod["metadata"]["uid"]: pod for pod in (first, *followers)}
    made = group(*members.values(), least=1, most=None, spec={"complete": True})
    kinds = {uid: slots_beside(members, pod) for uid, pod in members.items()}
    return made | {"of": Reference("v1", "Pod", "driver", "uid-driver"), "slotKinds": kinds}


def follower(name: str, cpu: str = "4", *, phase: str = "Running") -> dict[str, Any]:
    reference = owner("Pod") | {"apiVersion": "v1", "uid": "uid-driver"}
    return member(name, cpu, phase=phase, meta={"ownerReferences": [reference]})


def test_a_driver_asks_for_slots_of_pods_that_are_not_there_yet() -> None:
    made = driven(driver="Pending")
    assert _counts(made) == [(2000, 1), (4000, 2)]
    assert POD_GROUP.to_request(made).size == 3
    assert POD_GROUP.gathering(made) is None


def test_slots_are_kept_for_followers_that_are_missing_as_long_as_the_driver_runs() -> None:
    for there, wanted in ([], 3), ([follower("a")], 3), ([follower("a"), follower("b")], 3):
        assert POD_GROUP.progress(driven(*there)).wanted == wanted
    gone = follower("a", phase="Failed")
    fact = POD_GROUP.progress(driven(gone, follower("b")))
    assert fact.wanted == 3
    assert sorted(fact.wanted_of.values()) == [1, 2]
    more = POD_GROUP.progress(driven(*(follower(name) for name in "abc")))
    assert (more.wanted, sorted(more.wanted_of.values())) == (4, [1, 3])
    # A larger one takes none of the kept slots.
    larger = POD_GROUP.progress(driven(follower("a", "5")))
    assert (larger.wanted, sorted(larger.wanted_of.values())) == (4, [1, 1, 2])


def test_a_driver_that_ends_or_is_being_deleted_keeps_no_slots() -> None:
    assert POD_GROUP.progress(driven(follower("a"), driver="Succeeded")).wanted == 1
    going = driven(follower("a"), deletionTimestamp="2026-01-01T00:00:00Z")
    assert POD_GROUP.progress(going).wanted == 1


def test_the_result_of_a_driver_is_that_of_its_group() -> None:
    def result(*there: dict[str, Any], **how: Any) -> FluxJobState | None:
        return POD_GROUP.progress(driven(*there, **how)).result

    lost, done = follower("a", phase="Failed"), follower("b", phase="Succeeded")
    assert result(lost, done, driver="Succeeded") is FluxJobState.COMPLETED
    assert result(done, driver="Failed") is FluxJobState.FAILED
    assert result(lost, done) is None
    assert result(follower("c"), driver="Succeeded") is None
    killed = driven(done, driver="Failed")
    killed["members"]["uid-driver"]["status"]["fluxqueueKilled"] = True
    assert POD_GROUP.progress(killed).result is FluxJobState.CANCELLED


def test_a_driver_speaks_for_its_followers() -> None:
    notes = {"fluxqueue/followers": "2 cpu=4", "fluxqueue/duration": "10m"}
    made = driven(follower("a", phase="Pending"), annotations=notes)
    assert POD_GROUP.wishes(made).duration_s == 600
    made["members"]["uid-driver"]["spec"]["activeDeadlineSeconds"] = 600
    assert POD_GROUP.deadline_s(made) == 600
    assert POD_GROUP.facts(made, WorkloadFacts()).made_by is None

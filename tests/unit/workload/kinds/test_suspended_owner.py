"""What waits suspended and makes pods: what it asks for, how far it is, and how it ends."""

from __future__ import annotations

from typing import Any

from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload.kinds.admitted import assemble_owner
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER, slots_of_member, tell_made
from fluxqueue.workload.kinds.table import kind_in_row, kind_named, kind_of, kind_of_fluxjob
from fluxqueue.workload.owner_kinds import OwnerKinds
from fluxqueue.workload.references import Reference
from tests.support.owners import job_set_spec
from tests.support.workloads import bare_pod, batch_job, owner

Obj = dict[str, Any]

ENTRY = OwnerKinds().find("jobset.x-k8s.io", "JobSet")
API_VERSION = "jobset.x-k8s.io/v1alpha2"


def template(cpu: str, **meta: Any) -> Obj:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": meta, "spec": {"containers": [container]}}


def job_set(*, suspend: Any = True, **more: Any) -> Obj:
    """A driver of 1 cpu and three workers of 2."""
    assert ENTRY is not None
    spec = job_set_spec(driver=(1, template("1")), workers=(3, template("2")))
    spec |= {} if suspend is None else {"suspend": suspend}
    marks = {"fluxqueue/suspended": "true"}
    meta = {"name": "train", "namespace": "default", "uid": "u", "annotations": marks}
    meta["labels"] = {"fluxqueue/managed": "true"}
    return assemble_owner({"metadata": meta, "spec": spec}, ENTRY, API_VERSION, **more)


def pod(name: str, phase: str, cpu: str = "2", by: str = "") -> Obj:
    made = bare_pod(meta={"name": name, "uid": name})
    made["spec"]["containers"] = template(cpu)["spec"]["containers"]
    made["status"] = {"phase": phase}
    if by:
        made["metadata"]["ownerReferences"] = [{**owner("Job", by), "uid": by}]
    return made


def with_pods(*pods: Obj, **jobs: Obj) -> Obj:
    members = {one["metadata"]["uid"]: one for one in pods}
    kinds = {uid: slots_of_member(job_set(), one) for uid, one in members.items()}
    return job_set(suspend=False, members=members, slot_kinds=kinds, jobs=jobs)


def test_each_kind_of_its_templates_is_a_kind_of_slots() -> None:
    request = SUSPENDED_OWNER.to_request(job_set())
    slots = [(one.count.minimum, one.with_[0].count.minimum) for one in request.resources]
    assert slots == [(1, 1000), (3, 2000)]
    assert SUSPENDED_OWNER.size(job_set()) == 4


def test_a_template_that_says_no_is_left_to_others() -> None:
    made = job_set()
    made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["metadata"] = {
        "labels": {"fluxqueue/managed": "false"}
    }
    assert SUSPENDED_OWNER.size(made) == 1


def test_it_is_held_by_a_field_that_was_stored() -> None:
    """A version that lacks the field is not waited for."""
    assert SUSPENDED_OWNER.is_held(job_set())
    assert SUSPENDED_OWNER.is_held(job_set(suspend=False))
    assert not SUSPENDED_OWNER.is_held(job_set(suspend=None))


def test_pods_of_a_named_group_are_not_its() -> None:
    made = job_set()
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"] = {
        "labels": {"fluxqueue/pod-group": "other"}
    }
    assert SUSPENDED_OWNER.why_not(made) == "its pods say of which group they are"


def test_its_own_wishes_win_over_its_templates() -> None:
    made = job_set()
    inner = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    inner["metadata"] = {"annotations": {"fluxqueue/duration": "5m", "fluxqueue/priority": "3"}}
    made["metadata"]["annotations"]["fluxqueue/duration"] = "1m"
    wishes = SUSPENDED_OWNER.wishes(made)
    assert (wishes.duration_s, wishes.priority) == (60, 3)


def test_slots_are_wanted_for_pods_that_have_yet_to_come_and_for_those_that_failed() -> None:
    assert SUSPENDED_OWNER.progress(job_set()).wanted == 4
    part = with_pods(pod("d", "Succeeded", "1"), pod("w0", "Running"), pod("w1", "Failed"))
    fact = SUSPENDED_OWNER.progress(part)
    assert fact.wanted == 3
    assert list(fact.wanted_of.values()) == [3]
    assert fact.result is None


def test_a_job_of_it_says_how_many_more_it_makes() -> None:
    """Three pods at once and five in all: of the first that succeed others take the place."""
    job = batch_job(parallelism=3, completions=5)
    job["status"] = {"succeeded": 1}
    pods = [pod("w0", "Succeeded", by="j"), pod("w1", "Running", by="j")]
    assert SUSPENDED_OWNER.progress(with_pods(*pods, j=job)).wanted == 4
    job["status"] = {"succeeded": 4}
    assert SUSPENDED_OWNER.progress(with_pods(*pods, j=job)).wanted == 2


def test_it_is_over_when_it_says_so_or_all_have_succeeded() -> None:
    made = job_set(suspend=False)
    made["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert SUSPENDED_OWNER.progress(made).result is FluxJobState.FAILED
    ended = [pod("d", "Succeeded", "1"), *(pod(f"w{n}", "Succeeded") for n in range(3))]
    assert SUSPENDED_OWNER.progress(with_pods(*ended)).result is FluxJobState.COMPLETED
    assert SUSPENDED_OWNER.progress(with_pods(*ended[1:])).result is None


def test_a_pod_that_no_template_tells_of_needs_slots_of_its_own() -> None:
    odd = pod("odd", "Pending", "5")
    odd["spec"]["schedulingGates"] = [{"name": "fluxqueue"}]
    further = SUSPENDED_OWNER.further(with_pods(odd))
    assert further is not None
    assert [one.count.minimum for one in further.resources] == [1, 3, 0]


def test_a_pod_is_known_by_the_mark_in_its_template() -> None:
    """Its operator may add to it what its template does not say."""
    made = job_set()
    inner = made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    inner["metadata"] = {"labels": {"fluxqueue/slots": "pod-12345678"}}
    marked = pod("w0", "Pending", "3")
    marked["metadata"]["labels"] = {"fluxqueue/slots": "pod-12345678"}
    assert slots_of_member(made, marked) == "pod-12345678"
    marked["metadata"]["labels"] = {"fluxqueue/slots": "pod-of-others"}
    assert slots_of_member(made, marked) != "pod-of-others"


def test_rows_and_fluxjobs_find_their_entry() -> None:
    reference = Reference(API_VERSION, "JobSet", "train", "u", "jobsets", "spec.suspend")
    assert kind_of(job_set()) is SUSPENDED_OWNER
    assert kind_in_row("JobSet", reference) is SUSPENDED_OWNER
    assert kind_in_row("Job", None) is kind_named("Job")
    fluxjob: Obj = {"spec": {"workload": {"apiVersion": API_VERSION, "kind": "JobSet"}}}
    assert kind_of_fluxjob(fluxjob) is SUSPENDED_OWNER
    fluxjob["metadata"] = {"labels": {"fluxqueue/without-object": "true"}}
    assert kind_of_fluxjob(fluxjob) is kind_named("PodGroup")
    others = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    assert kind_of_fluxjob({"spec": {"workload": others}}) is SUSPENDED_OWNER


def train_job(**more: Any) -> Obj:
    """A TrainJob, perhaps with the JobSet that tells what it asks for."""
    entry = OwnerKinds().find("trainer.kubeflow.org", "TrainJob")
    assert entry is not None
    marks = {"fluxqueue/suspended": "true"}
    meta = {"name": "tune", "namespace": "default", "uid": "t", "annotations": marks}
    meta["labels"] = {"fluxqueue/managed": "true"}
    spec = {"suspend": True, "activeDeadlineSeconds": 600}
    return assemble_owner(
        {"metadata": meta, "spec": spec}, entry, "trainer.kubeflow.org/v1alpha1", **more
    )


def test_one_whose_templates_stand_elsewhere_gathers_until_those_are_there() -> None:
    alone = train_job()
    found = SUSPENDED_OWNER.gathering(alone)
    assert found is not None
    assert (found.missing, found.reason) == (
        1,
        "waits for its JobSet, which says what it asks for",
    )
    assert SUSPENDED_OWNER.to_request(alone).size == 0
    assert SUSPENDED_OWNER.priority(alone, class_values={}).value == 0
    assert ENTRY is not None
    stored = {"metadata": {"uid": "j", "generation": 3}, "spec": job_set()["spec"]}
    told = train_job(made=tell_made(stored, ENTRY))
    assert SUSPENDED_OWNER.gathering(told) is None
    request = SUSPENDED_OWNER.to_request(told)
    assert (request.size, request.duration_s) == (4, 600)
    assert SUSPENDED_OWNER.news(alone) != SUSPENDED_OWNER.news(told)
    assert SUSPENDED_OWNER.asks(alone) != SUSPENDED_OWNER.asks(told)


def test_one_whose_templates_are_not_known_is_over_only_when_it_says_so() -> None:
    """Pods of its first step have succeeded. How many more it has is not known."""
    members = {"a": pod("a", "Succeeded")}
    unknown = train_job(members=members, slot_kinds={"a": "pod"})
    assert SUSPENDED_OWNER.progress(unknown).result is None
    said = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert SUSPENDED_OWNER.progress({**unknown, "status": said}).result is FluxJobState.FAILED

"""Workloads completed as admission completes their pods: LimitRanges and RuntimeClasses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fluxqueue.jobspec.shape import slot_kinds
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.kinds.admitted import assemble_owner
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.pod_group import POD_GROUP
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import BUILT_IN
from fluxqueue.workload.pod_defaults import default_requests, with_default_requests
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.site import DEFAULT_SITE
from fluxqueue.workload.surroundings import complete as complete_with
from tests.support.owners import job_set_spec
from tests.support.pod_groups import group, member
from tests.support.surroundings import KnownSurroundings

Obj = dict[str, Any]


def complete(workload: Object, around: KnownSurroundings, **more: Any) -> Object:
    """Complete a workload with the default levels."""
    return complete_with(workload, around, DEFAULT_SITE.levels, **more)


def limit_range(name: str, **item: Obj) -> Obj:
    """A LimitRange with one entry for containers."""
    return {"metadata": {"name": name}, "spec": {"limits": [{"type": "Container", **item}]}}


def container(requests: Obj | None = None, limits: Obj | None = None, **more: Any) -> Obj:
    """A container."""
    parts = (("requests", requests), ("limits", limits))
    return {"name": "c", "resources": {key: one for key, one in parts if one}, **more}


def a_job(**spec: Any) -> Obj:
    """A BatchJob of two pods."""
    return {
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "ns", "uid": "u"},
        "spec": {"parallelism": 2, "completions": 2, "template": {"spec": spec}},
    }


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"defaultRequest": {"cpu": "2"}, "default": {"cpu": "3"}}, {"cpu": "2"}),
        ({"default": {"memory": "3Gi"}}, {"memory": "3Gi"}),
        ({"max": {"cpu": "4"}}, {"cpu": "4"}),
        ({"max": {"cpu": "4"}, "default": {"cpu": "3"}}, {"cpu": "3"}),
        ({"min": {"cpu": "1"}, "max": {"memory": "1Gi"}}, {"cpu": "1", "memory": "1Gi"}),
        ({"min": {"cpu": "1"}, "max": {"cpu": "2"}}, {"cpu": "2"}),
        ({}, {}),
    ],
)
def test_what_one_range_gives_to_containers(item: Obj, expected: Obj) -> None:
    """The API server derives a default from the limits and bounds that are there."""
    assert default_requests([limit_range("one", **item)]) == expected


def test_bounds_of_whole_pods_give_nothing_to_containers() -> None:
    """The API server refuses pods by them, and has no defaults there."""
    ranges = limit_range("pods", max={"cpu": "2"}, min={"cpu": "1"})
    ranges["spec"]["limits"][0]["type"] = "Pod"
    assert default_requests([ranges]) == {}
    assert default_requests([limit_range("ratio", maxLimitRequestRatio={"cpu": "2"})]) == {}


def test_of_several_ranges_the_first_wins() -> None:
    """And entries for pods and claims are no defaults."""
    ranges = [
        limit_range("b", defaultRequest={"cpu": "9", "memory": "9Gi"}),
        limit_range("a", default={"cpu": "1"}),
        {"metadata": {"name": "0"}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "7"}}]}},
    ]
    assert default_requests(ranges) == {"cpu": "1", "memory": "9Gi"}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container()]}, 500),
        ({"containers": [container({"cpu": "2"})]}, 2000),
        # A limit is the request before any LimitRange is looked at.
        ({"containers": [container(None, {"cpu": "3"})]}, 3000),
        ({"containers": [container(), container()]}, 1000),
        ({"containers": [container()], "initContainers": [container({"cpu": "4"})]}, 4000),
        (
            {"containers": [container()], "initContainers": [container(restartPolicy="Always")]},
            1000,
        ),
        # Requests of the whole pod come before those of containers.
        ({"containers": [container()], "resources": {"requests": {"cpu": "3"}}}, 3000),
        ({"containers": [container()], "resources": {"limits": {"cpu": "3"}}}, 3000),
        (
            {
                "containers": [container({"cpu": "1"}), container()],
                "resources": {"limits": {"cpu": "3"}},
            },
            1000,
        ),
    ],
)
def test_containers_without_a_request_get_one(spec: Obj, cpu: int) -> None:
    """All containers, and what follows from the whole pod before that."""
    done = with_default_requests(spec, {"cpu": "500m"})
    assert raw_request(done)["cpu"] == cpu
    assert raw_request(with_default_requests(done, {"cpu": "500m"}))["cpu"] == cpu


def test_a_runtime_class_adds_to_every_pod() -> None:
    """Overhead, node selector and tolerations count in the request."""
    sandbox = {
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {
            "nodeSelector": {"sandbox": "yes"},
            "tolerations": [{"key": "sandbox", "operator": "Exists"}],
        },
    }
    around = KnownSurroundings(runtimes={"box": sandbox})
    body = a_job(containers=[container({"cpu": "1"})], runtimeClassName="box")
    request = BATCH_JOB.to_request(complete(body, around))
    plain = BATCH_JOB.to_request(body)
    (slot,) = request.resources
    assert {one.type: one.count.minimum for one in slot.with_}["cpu"] == 1250
    assert request.where.constraint is not None
    assert plain.where.constraint is None
    assert [one.key for one in request.where.tolerations] == ["sandbox"]
    again = complete(complete(body, around), around)
    assert BATCH_JOB.to_request(again) == request


def test_only_its_namespace_counts_and_an_untouched_workload_is_itself() -> None:
    """The reading of a workload that nothing touches costs nothing more."""
    around = KnownSurroundings(limits={"other": [limit_range("a", default={"cpu": "2"})]})
    body = a_job(containers=[container()])
    assert complete(body, around) is body
    elsewhere = {**body, "metadata": {**body["metadata"], "namespace": "other"}}
    assert complete(elsewhere, around) is not elsewhere


def test_pods_that_exist_are_as_they_are_and_new_ones_are_completed() -> None:
    """A LimitRange that came after a pod does not change it."""
    around = KnownSurroundings(limits={"ns": [limit_range("a", default={"cpu": "2"})]})
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container()]}}
    assert complete(pod, around, namespace="ns") is pod
    new = complete(pod, around, namespace="ns", is_new=True)
    assert raw_request(BARE_POD.pod_spec(new))["cpu"] == 2000


def test_every_template_of_an_owner_is_completed() -> None:
    """Each by itself, wherever it is in the object."""
    around = KnownSurroundings(limits={"ns": [limit_range("a", default={"cpu": "3"})]})
    small, bare = ({"spec": {"containers": [container(one)]}} for one in ({"cpu": "1"}, None))
    spec = job_set_spec(lead=(1, small), workers=(4, bare))
    stored = {"metadata": {"name": "s", "namespace": "ns", "uid": "u"}, "spec": spec}
    entry = next(one for one in BUILT_IN if one.kind == "JobSet")
    owner = assemble_owner(stored, entry, "jobset.x-k8s.io/v1alpha2")
    done = complete(owner, around)
    specs = SUSPENDED_OWNER.pod_specs(done)
    assert [raw_request(spec)["cpu"] for spec in specs] == [1000, 3000]
    assert SUSPENDED_OWNER.size(done) == 5


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (("data", "data"), {"one-pod-claim:ns:data": 2}),
        (("data", "data", "logs"), {"one-pod-claim:ns:data": 3}),
        (("data", "logs"), {}),
        (("many", "many"), {}),
        (("many", "many", "data"), {}),
    ],
)
def test_members_of_a_group_with_one_claim_are_known(
    claims: tuple[str, ...], expected: Obj
) -> None:
    """Also beside members with other claims. A claim of each member, as in a set, is none."""
    one, many = ({"accessModes": [f"ReadWrite{mode}"]} for mode in ("OncePod", "Many"))
    specs = {"data": one, "logs": one, "many": many}
    around = KnownSurroundings(
        claims={name: {"metadata": {"name": name}, "spec": spec} for name, spec in specs.items()}
    )
    pods = []
    for number, name in enumerate(claims):
        volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": name}}]
        pods.append(member(f"p{number}", volumes=volumes))
    made = group(*pods, least=len(pods), most=len(pods))
    made["metadata"]["namespace"] = "ns"
    request = POD_GROUP.to_request(complete(made, around), site=DEFAULT_SITE)
    used: Counter[str] = Counter()
    for kind in slot_kinds(request):
        used.update({name: n * kind.count for name, n in kind.needs if ":" in name})
    assert used == expected


@pytest.mark.parametrize("pods", [1, 2])
def test_ports_and_claims_for_one_pod_are_taken_by_slots(pods: int) -> None:
    """Nothing of it is left to kube-scheduler."""
    spec = {"accessModes": ["ReadWriteOncePod"], "volumeName": "disk"}
    around = KnownSurroundings(
        claims={"data": {"metadata": {"name": "data"}, "spec": spec}},
        volumes={"disk": {"metadata": {"name": "disk"}, "spec": {}}},
    )
    ports = [{"containerPort": 1, "hostPort": 9, "hostIP": "10.0.0.1"}]
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    job = a_job(containers=[container(ports=ports)], volumes=volumes)
    job["spec"] |= {"parallelism": pods, "completions": pods}
    done = complete(job, around)
    (kind,) = slot_kinds(BATCH_JOB.to_request(done, site=DEFAULT_SITE))
    needs = {name: amount for name, amount in kind.needs if ":" in name}
    assert needs == {
        "host-port:TCP:9": 1,
        "host-port:TCP:9:10.0.0.1": 1,
        "one-pod-claim:ns:data": 1,
    }
    assert ignored(BATCH_JOB.pod_spec(done)) == []

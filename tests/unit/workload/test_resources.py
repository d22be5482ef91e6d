"""The effective pod request, held against the rules of component-helpers' PodRequests."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.pod_resources import effective_request, raw_request
from tests.support.workloads import container

GIB = 2**30


def _requests(**quantities: str) -> dict[str, Any]:
    return container(requests=quantities)


def test_containers_add_up() -> None:
    spec = {"containers": [_requests(cpu="500m", memory="1Gi"), _requests(cpu="1", memory="2Gi")]}
    assert effective_request(spec) == {"cpu": 1500, "memory": 3 * GIB, "pods": 1}


def test_a_limit_without_a_request_is_the_request_and_only_there() -> None:
    spec = {"containers": [container(requests={"cpu": "1"}, limits={"cpu": "4", "memory": "1Gi"})]}
    assert effective_request(spec) == {"cpu": 1000, "memory": GIB, "pods": 1}


def test_no_cpu_counts_as_one_core_for_managed_pods_only() -> None:
    spec = {"containers": [container(), container("b")]}
    assert effective_request(spec) == {"cpu": 1000, "pods": 1}
    assert effective_request(spec, default_cpu_m=250) == {"cpu": 250, "pods": 1}
    assert effective_request(spec, default_cpu_m=0) == {"pods": 1}
    assert raw_request(spec) == {"pods": 1}
    assert effective_request({"containers": [_requests(cpu="0")]}) == {"cpu": 1000, "pods": 1}


def test_init_containers_count_by_their_peak_not_by_their_sum() -> None:
    spec = {
        "containers": [_requests(cpu="2", memory="1Gi")],
        "initContainers": [_requests(cpu="3"), _requests(cpu="1", memory="4Gi")],
    }
    assert effective_request(spec) == {"cpu": 3000, "memory": 4 * GIB, "pods": 1}


def test_sidecars_run_beside_containers_and_beside_later_init_containers() -> None:
    """KEP-753: a sidecar adds to the containers, and to each init container after it."""
    sidecar = {**_requests(cpu="1"), "restartPolicy": "Always"}
    after = {"containers": [_requests(cpu="2")], "initContainers": [sidecar, _requests(cpu="5")]}
    before = {"containers": [_requests(cpu="2")], "initContainers": [_requests(cpu="5"), sidecar]}
    small = {"containers": [_requests(cpu="2")], "initContainers": [sidecar, _requests(cpu="1")]}
    assert effective_request(after)["cpu"] == 6000
    assert effective_request(before)["cpu"] == 5000
    assert effective_request(small)["cpu"] == 3000


def test_overhead_and_extended_resources_are_added() -> None:
    spec = {
        "containers": [_requests(cpu="1", **{"nvidia.com/gpu": "2", "ephemeral-storage": "1Mi"})],
        "overhead": {"cpu": "250m", "memory": "64Mi"},
    }
    assert effective_request(spec) == {
        "cpu": 1250,
        "memory": 64 * 2**20,
        "ephemeral-storage": 2**20,
        "nvidia.com/gpu": 2,
        "pods": 1,
    }


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"requests": {"cpu": "8", "memory": "2Gi"}}, {"cpu": 8000, "memory": 2 * GIB}),
        ({"limits": {"cpu": "8"}}, {"cpu": 1000}),
        ({"limits": {"memory": "3Gi"}}, {"cpu": 1000, "memory": 3 * GIB}),
        ({"requests": {"nvidia.com/gpu": "4"}}, {"cpu": 1000}),
        ({"requests": {"hugepages-2Mi": "4Mi"}}, {"cpu": 1000, "hugepages-2Mi": 4 * 2**20}),
        ({}, {"cpu": 1000}),
    ],
)
def test_pod_level_resources_replace_the_sum(
    resources: dict[str, Any], expected: dict[str, int]
) -> None:
    """Pod-level requests win. Its limits count only where no container asks (as defaulted)."""
    spec = {"containers": [_requests(cpu="1")], "resources": resources}
    assert effective_request(spec) == {**expected, "pods": 1}


def test_a_resized_container_counts_with_the_larger_amount_until_the_kubelet_has_acted() -> None:
    status = {
        "containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}],
        "initContainerStatuses": [{"name": "other"}],
    }
    spec = {"containers": [_requests(cpu="1")]}
    assert raw_request(spec, status=status)["cpu"] == 4000
    assert raw_request({"containers": [_requests(cpu="6")]}, status=status)["cpu"] == 6000


INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
WAITS = {**INFEASIBLE, "reason": "Deferred"}


@pytest.mark.parametrize(
    ("conditions", "cpu"), [([], 900_000), ([WAITS], 900_000), ([{}, INFEASIBLE], 1000)]
)
def test_a_resize_that_its_node_can_never_make_does_not_count(
    conditions: list[dict[str, str]], cpu: int
) -> None:
    """Else one patch of a small pod takes the whole node from all others."""
    held = {"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}
    status = {"containerStatuses": [{"name": "main", **held}], "conditions": conditions}
    assert raw_request({"containers": [_requests(cpu="900")]}, status=status)["cpu"] == cpu
    of_pod = {"containers": [_requests()], "resources": {"requests": {"cpu": "900"}}}
    assert raw_request(of_pod, status={**held, "conditions": conditions})["cpu"] == cpu


@pytest.mark.parametrize("field", ["resources", "allocatedResources"])
def test_a_resized_pod_counts_with_what_the_kubelet_still_holds(field: str) -> None:
    """As a whole, or for one of its containers: it asks for less before it has less."""
    held = {field: {"requests": {"cpu": "4"}} if field == "resources" else {"cpu": "4"}}
    smaller = {"containers": [_requests(cpu="1")], "resources": {"requests": {"cpu": "2"}}}
    assert raw_request(smaller, status=held)["cpu"] == 4000
    status = {"initContainerStatuses": [{"name": "main", **held}]}
    sidecar = {**_requests(cpu="1"), "restartPolicy": "Always"}
    assert raw_request({"initContainers": [sidecar]}, status=status)["cpu"] == 4000


def test_zero_amounts_are_left_out_and_nulls_are_absent() -> None:
    spec = {
        "containers": [{"name": "c", "resources": None}, _requests(memory="0")],
        "initContainers": None,
        "overhead": None,
        "resources": None,
    }
    assert raw_request(spec) == {"pods": 1}


def test_an_unreadable_quantity_is_named_by_its_whole_path() -> None:
    spec = {"containers": [_requests(cpu="1"), container("b", limits={"memory": "1gb"})]}
    with pytest.raises(InvalidInput) as caught:
        effective_request(spec, where="spec.template.spec")
    assert caught.value.where == "spec.template.spec.containers[1].resources.limits.memory"
    assert "1gb" in str(caught.value)


def test_claims_of_a_bound_pod_count_beside_its_requests() -> None:
    """As kube-scheduler 1.37 writes them: cpu by a mapping, memory for the pod and by container."""
    status = {
        "nodeAllocatableResourceClaimStatuses": [
            {
                "resourceClaimName": "c",
                "containers": ["a", "b"],
                "mapping": [{"name": "cpu", "quantity": "16"}],
                "overhead": [{"name": "memory", "perPod": "1Gi", "perContainer": "256Mi"}],
            }
        ]
    }
    spec = {"containers": [{"name": "a", "resources": {"requests": {"cpu": "500m"}}}]}
    found = raw_request(spec, status=status)
    assert found == {"cpu": 16_500, "memory": (1 << 30) + (512 << 20), "pods": 1}

"""Claims that take cpu of their node (DRA, Kubernetes 1.37), on a real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
)
from fluxqueue.workload.pod_resources import CLAIMED, raw_request
from tests.support.control_plane import ControlPlane, Options, features_here, missing_reason
from tests.support.devices import DRIVER, Watched, gpu_class, gpu_slice
from tests.support.waiting import eventually


@pytest.mark.real_cluster
@pytest.mark.long("it starts a control plane of its own")
async def test_cpu_that_a_claim_takes_counts_before_and_after_the_pod_is_bound() -> None:
    """Seen on 1.37.2: a pod with 500m in its spec, and a device of two cores, uses 2500m.

    Only its status says so. Before, 500m were counted, and a job too many was sent to the node.
    """
    if reason := missing_reason():
        pytest.skip(reason)
    feature = features_here().node_claims
    if feature is None:
        pytest.skip("this minor has no claims for cpu of nodes")
    options = Options(feature=feature, node_grace_s=100_000)
    async with ControlPlane(options=options) as plane, KubeClient(plane.config) as admin:
        await admin.create(DEVICE_CLASSES, None, gpu_class("cpus", f"device.driver == '{DRIVER}'"))
        # Such a slice is refused until its node is there and declares the feature.
        await admin.create(NODES, None, {"metadata": {"name": "n0"}})
        room = {"cpu": "4", "memory": "4Gi", "pods": "20"}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        status: dict[str, Any] = {"capacity": room, "allocatable": room, "conditions": [ready]}
        status["declaredFeatures"] = ["DRANodeAllocatableResources"]
        await admin.patch(NODES, None, "n0", {"status": status}, subresource="status")
        made = gpu_slice("s0", 1, nodeName="n0")
        takes = {"cpu": {"mapping": {"deviceMultiplier": "2"}}}
        made["spec"]["devices"][0]["nodeAllocatableResources"] = takes
        await admin.create(RESOURCE_SLICES, None, made)
        watched = Watched(admin)
        try:
            await watched.watch.look()
            assert watched.watch.device_takes("cpus") == {"cpu": 2000}
            assert watched.watch.device_takes("none") == {}
        finally:
            await watched.watch.stop()
        bound = await _bound_pod(admin)
        assert bound["status"][CLAIMED][0]["mapping"] == [{"name": "cpu", "quantity": "2"}]
        assert raw_request(bound["spec"], status=bound["status"])["cpu"] == 2500


async def _bound_pod(admin: KubeClient) -> dict[str, Any]:
    """Create a pod with a claim, and return it once it is bound."""
    exactly = {"deviceClassName": "cpus"}
    devices = {"requests": [{"name": "one", "exactly": exactly}]}
    template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": devices}}}
    await admin.create(RESOURCE_CLAIM_TEMPLATES, "default", template)
    requests = {"requests": {"cpu": "500m"}, "claims": [{"name": "c"}]}
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": requests}],
        "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}],
    }
    await admin.get(SERVICE_ACCOUNTS, "default", "default")
    await admin.create(PODS, "default", {"metadata": {"name": "p"}, "spec": spec})
    found: dict[str, Any] = {}

    async def is_bound() -> bool:
        found.update(await admin.get(PODS, "default", "p"))
        return bool(found["spec"].get("nodeName")) and CLAIMED in found["status"]

    await eventually(is_bound, "the pod is bound")
    return found

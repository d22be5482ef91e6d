"""DeviceTaintRules of a real API server, which serves them behind a feature gate."""

from __future__ import annotations

import pytest

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
from tests.support.control_plane import ControlPlane, Options, features_here, missing_reason
from tests.support.devices import DRIVER, Watched, body, gpu_class, gpu_slice


@pytest.mark.real_cluster
@pytest.mark.long("it starts a control plane of its own")
async def test_a_rule_of_the_real_server_taints_its_device() -> None:
    """As the server stores it, in the version that is served."""
    if reason := missing_reason():
        pytest.skip(reason)
    feature = features_here().taint_rules
    if feature is None:
        pytest.skip("this minor has no DeviceTaintRules")
    options = Options(feature=feature)
    async with ControlPlane(options=options) as plane, KubeClient(plane.config) as admin:
        await admin.create(DEVICE_CLASSES, None, gpu_class("gpu", f"device.driver == '{DRIVER}'"))
        await admin.create(RESOURCE_SLICES, None, gpu_slice("s0", 2, nodeName="n0"))
        watched = Watched(admin)
        try:
            await watched.watch.look()
            await watched.until_marked("n0")
            assert watched.has() == (2, None)
            served = await watched.watch._rules_served()
            assert served is not None
            taint = {"key": "example.com/broken", "effect": "NoExecute"}
            selector = {"driver": DRIVER, "device": "s0-1"}
            spec = {"deviceSelector": selector, "taint": taint}
            await admin.create(served, None, body(served, "broken", spec=spec))
            await watched.until_marked("n0")
            assert watched.has() == (2, 1)
            await admin.delete(served, None, "broken")
            await watched.until_marked("n0")
            assert watched.has() == (2, None)
        finally:
            await watched.watch.stop()

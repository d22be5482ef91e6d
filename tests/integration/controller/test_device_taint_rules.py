"""DeviceTaintRules of a real API server, which serves them behind a feature gate."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_SLICES
from tests.integration.controller.test_devices import (
    DRIVER,
    Watched,
    body,
    gpu_class,
    gpu_slice,
)
from tests.support.control_plane import (
    ASSETS_ENV,
    PROGRAMS,
    ControlPlane,
    Options,
    missing_reason,
)

GATE = "DRADeviceTaintRules"


def with_rules() -> Options | None:
    """Options by which the rules are served, None if the programs do not know them."""
    program = Path(os.environ[ASSETS_ENV]) / "kube-apiserver"
    told = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    if f"kube:{GATE}=" not in told:
        return None
    gates = f"--feature-gates={GATE}=true"
    flags = {name: [gates] for name in PROGRAMS[1:]}
    served = [f"resource.k8s.io/{one.version}=true" for one in DEVICE_TAINT_RULES[1:]]
    return Options(
        extra_args=flags | {"kube-apiserver": [gates, f"--runtime-config={','.join(served)}"]}
    )


@pytest.mark.real_cluster
@pytest.mark.long("it starts a control plane of its own")
async def test_a_rule_of_the_real_server_taints_its_device() -> None:
    """As the server stores it, in the version that is served."""
    if reason := missing_reason():
        pytest.skip(reason)
    options = with_rules()
    if options is None:
        pytest.skip(f"these programs have no gate {GATE}")
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
